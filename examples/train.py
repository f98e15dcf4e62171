"""Trains a small transformer as a plan says: its pipeline, its data-parallel groups, its sharding, its collectives.

    scaleacross plan examples/two_small_buildings/job.yaml -o build/small
    scaleacross run build/small/launch.json --local -- examples/train.py --steps 20

Everything below is plain PyTorch: ``torch.distributed.pipelining`` for the stages, ``fully_shard`` or DDP for the replicas. What
the launch file adds is which rank is where. Run it with ``--backend gloo`` to see the same losses without the runtime. Where
torch sees GPUs each process takes one, and the schedules run over NCCL's send and receive.
"""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import scaleacross.runtime  # noqa: F401  registers the backend
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE, read_launch
from scaleacross.runtime.mesh import mesh_of
from scaleacross.runtime.start import rank_of_process, start
from scaleacross.spec.launch import LaunchConfig

WIDTH, HEADS, VOCABULARY = 128, 4, 512
BACKENDS = {"cpu": "cpu:scaleacross", "cuda": "cpu:scaleacross,cuda:scaleacross"}
SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


class Block(nn.Module):
    """One transformer layer: causal attention and a feed-forward net, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Stage(nn.Module):
    """The layers of one pipeline rank, with the embedding on the first and the head on the last."""

    def __init__(self, num_layers: int, first: bool, last: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if first else nn.Identity()
        self.blocks = nn.ModuleList([Block() for _ in range(num_layers)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def refuse_what_is_not_here(launch: LaunchConfig) -> None:
    """This example has pipeline and data parallelism only; it says so instead of training something else."""
    degrees = launch.degrees
    problems = {
        f"{axis} {degrees.of(axis)}": f"degrees.{axis}=1" for axis in ("tp", "cp", "ep") if degrees.of(axis) > 1
    }
    if degrees.pp > 1 and launch.pipeline.schedule not in SCHEDULES:
        problems[f"schedule {launch.pipeline.schedule}"] = f"schedules=[{','.join(SCHEDULES)}]"
    if launch.replica_batches:
        problems["replicas with different batches"] = "one accelerator type"
    if problems:
        ways = " ".join(f"--set {way}" if "=" in way else way for way in problems.values())
        raise SystemExit(f"this example does not train {', '.join(problems)}; plan with {ways}")


def data_parallel(stage: nn.Module, mesh: DeviceMesh, launch: LaunchConfig) -> nn.Module:
    """Sharded where the plan shards, replicated where it replicates."""
    if launch.degrees.dp_shard > 1:
        inside = mesh["dp_replicate", "dp_shard"] if launch.degrees.dp_replicate > 1 else mesh["dp_shard"]
        for block in stage.blocks:
            fully_shard(block, mesh=inside, reshard_after_forward=launch.shard == "parameters")
        return fully_shard(stage, mesh=inside, reshard_after_forward=launch.shard == "parameters")
    if launch.degrees.dp_replicate > 1:
        return DistributedDataParallel(stage, process_group=mesh.get_group("dp_replicate"))
    return stage


def batch_of(step: int, replica: int, sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """Sequences that count upwards from a random start by a random stride: easy to learn, different for every replica."""
    random = torch.Generator().manual_seed(1000 * step + replica)
    start = torch.randint(VOCABULARY, (sequences, 1), generator=random)
    stride = torch.randint(1, 4, (sequences, 1), generator=random)
    tokens = (start + stride * torch.arange(length + 1)) % VOCABULARY
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(
    launch: LaunchConfig, steps: int, backend: str, timeout_s: float = 60, device: torch.device | None = None
) -> list[float]:
    """Losses per step, the mean over all replicas; the same list on every rank. Without a device it trains on the CPU."""
    rank, degrees, device = dist.get_rank(), launch.degrees, device or torch.device("cpu")
    at, mesh = (
        launch.coordinates(rank),
        mesh_of(launch, rank, device_type=device.type, backend=backend, timeout_s=timeout_s),
    )
    torch.manual_seed(at["pp"])
    layers = sum(launch.layers_per_stage[at["pp"]])
    stage = Stage(layers, first=at["pp"] == 0, last=at["pp"] == degrees.pp - 1).to(device)
    model = data_parallel(stage, mesh, launch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    micro = launch.pipeline.micro_batch_sequences
    sequences = micro * launch.num_micro_batches
    if degrees.pp > 1:
        example = batch_of(0, 0, micro, launch.sequence_length)[0].to(device)
        shape = torch.zeros(micro, launch.sequence_length, WIDTH, requires_grad=True, device=device)
        given = example if at["pp"] == 0 else shape
        logits = torch.zeros(micro, launch.sequence_length, VOCABULARY, device=device)
        made = shape if at["pp"] < degrees.pp - 1 else logits
        group = mesh.get_group("pp")
        pipeline = SCHEDULES[launch.pipeline.schedule](
            PipelineStage(model, at["pp"], degrees.pp, device, (given,), (made,), group=group),
            n_microbatches=launch.num_micro_batches,
            loss_fn=loss_of,
        )
    replica, losses = at["dp_replicate"] * degrees.dp_shard + at["dp_shard"], []
    for step in range(steps):
        inputs, targets = (one.to(device) for one in batch_of(step, replica, sequences, launch.sequence_length))
        parts: list[Tensor] = []
        if degrees.pp == 1:
            for x, y in zip(inputs.split(micro), targets.split(micro), strict=True):
                parts.append(loss_of(model(x), y))
            torch.stack(parts).mean().backward()
        elif at["pp"] == 0:
            pipeline.step(inputs)
        elif at["pp"] == degrees.pp - 1:
            pipeline.step(target=targets, losses=parts)
        else:
            pipeline.step()
        optimizer.step()
        optimizer.zero_grad()
        mean = torch.stack(parts).mean().detach() if parts else torch.zeros((), device=device)
        dist.all_reduce(mean)  # only the last stage has losses
        losses.append(float(mean) / degrees.dp)
    return losses


def main() -> None:
    """Read the launch file, join the job, train, say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=60, help="seconds that the start or a collective may take")
    parser.add_argument("--device", choices=BACKENDS, help="default: cuda where torch sees a GPU")
    parser.add_argument("--backend", help=f"gloo or nccl, to compare; default: {' or '.join(BACKENDS.values())}")
    parser.add_argument("--losses", type=Path, help="write the losses here, one per line")
    arguments = parser.parse_args()
    if LAUNCH_VARIABLE not in os.environ:
        raise SystemExit("start it with: scaleacross run LAUNCH.json -- examples/train.py")
    launch = read_launch(os.environ[LAUNCH_VARIABLE])
    refuse_what_is_not_here(launch)
    torch.set_num_threads(1)
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = arguments.backend or BACKENDS[device.type]
    start(launch, rank_of_process(), timeout_s=arguments.timeout, backend=backend)
    losses = train(launch, arguments.steps, backend, arguments.timeout, device)
    if dist.get_rank() == 0:
        shown = itertools.chain(range(0, len(losses) - 1, 5), [len(losses) - 1])
        for step in shown:
            print(f"step {step:3d}  loss {losses[step]:.4f}", flush=True)
        if arguments.losses:
            arguments.losses.write_text("".join(f"{loss!r}\n" for loss in losses), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
