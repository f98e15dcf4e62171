"""Run by torchrun on 4 CPU processes: execute every emitted schedule.csv and hold loss and gradients against one process.

Argument: a folder with one sub-folder per schedule, each with schedule.csv and stages.json. Prints one JSON line per schedule on
rank 0. Needs torch only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

HIDDEN, VOCABULARY, LENGTH, SEQUENCES = 16, 32, 6, 2
# schedules over several stages per rank that PyTorch generates itself: ours must be the same order
OWN = {
    "Interleaved1F1B": schedules.ScheduleInterleaved1F1B,
    "LoopedBFS": schedules.ScheduleLoopedBFS,
    "InterleavedZeroBubble": schedules.ScheduleInterleavedZeroBubble,
    "ZBVZeroBubble": schedules.ScheduleZBVZeroBubble,
    "DualPipeV": schedules.ScheduleDualPipeV,
}


def model(num_stages: int) -> list[nn.Module]:
    """One transformer block per stage, with the embedding in the first and the head in the last."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for stage in range(num_stages):
        block = nn.TransformerEncoderLayer(HIDDEN, 2, 4 * HIDDEN, dropout=0.0, batch_first=True, norm_first=True)
        before = [nn.Embedding(VOCABULARY, HIDDEN)] if stage == 0 else []
        after = [nn.Linear(HIDDEN, VOCABULARY)] if stage == num_stages - 1 else []
        parts.append(nn.Sequential(*before, block, *after))
    return parts


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def gradients(parts: list[nn.Module], stages: list[int]) -> dict[str, torch.Tensor]:
    found = {}
    for part, stage in zip(parts, stages, strict=True):
        found |= {f"{stage}.{name}": parameter.grad for name, parameter in part.named_parameters()}
    return found


def single_process(
    num_stages: int, tokens: torch.Tensor, target: torch.Tensor, m: int
) -> tuple[float, dict[str, torch.Tensor]]:
    parts = model(num_stages)
    losses = []
    for inputs, wanted in zip(tokens.chunk(m), target.chunk(m), strict=True):
        for part in parts:
            inputs = part(inputs)
        losses.append(loss_of(inputs, wanted))
    loss = torch.stack(losses).mean()
    loss.backward()
    return loss.item(), gradients(parts, list(range(num_stages)))


def run(folder: Path, rank: int, world: int) -> dict[str, object]:
    facts = json.loads((folder / "stages.json").read_text())
    num_stages, m = facts["num_stages"], facts["num_microbatches"]
    mine = [stage for stage, holder in enumerate(facts["stage_to_rank"]) if holder == rank]
    parts = [model(num_stages)[stage] for stage in mine]
    device = torch.device("cpu")
    stages = [PipelineStage(part, stage, num_stages, device) for part, stage in zip(parts, mine, strict=True)]
    runtime = schedules._PipelineScheduleRuntime(stages, m, loss_fn=loss_of)
    runtime._load_csv(str(folder / "schedule.csv"), format="compute_only")
    torch.manual_seed(1)
    tokens, target = torch.randint(VOCABULARY, (2, m * SEQUENCES, LENGTH))
    losses: list[torch.Tensor] = []
    runtime.step(*([tokens] if 0 in mine else []), target=target if num_stages - 1 in mine else None, losses=losses)
    gathered: list[tuple[list[float], dict[str, torch.Tensor]]] = [None] * world  # type: ignore[list-item]
    dist.all_gather_object(gathered, ([loss.item() for loss in losses], gradients(parts, mine)))
    found = {name: value for _, part in gathered for name, value in part.items()}
    loss = sum(value for values, _ in gathered for value in values) / m
    expected_loss, expected = single_process(num_stages, tokens, target, m)
    error = max(float((found[name] - value).abs().max()) for name, value in expected.items())
    return {
        "schedule": facts["schedule"],
        "same_parameters": sorted(found) == sorted(expected),
        "loss": loss,
        "loss_error": abs(loss - expected_loss),
        "gradient_error": error,
        "largest_gradient": max(float(value.abs().max()) for value in expected.values()),
        "same_order_as_torch": same_order(facts["schedule"], stages, m, runtime.pipeline_order),
    }


def same_order(name: str, stages: list[PipelineStage], m: int, loaded: dict[int, list[object]]) -> bool | None:
    """Whether PyTorch's own schedule of that name has the same actions on every rank; None where it has no such schedule."""
    if name not in OWN:
        return None
    order = OWN[name](stages, m).pipeline_order
    flat = {
        rank: [str(part) for action in row if action is not None for part in (action.sub_actions or (action,))]
        for rank, row in order.items()
    }
    ours = {rank: [str(action) for action in row] for rank, row in loaded.items()}
    return flat == ours


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        outcome = run(folder, rank, world)
        if rank == 0:
            print(json.dumps(outcome), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
