"""Trains a small transformer as a plan says: its pipeline, its data-parallel groups, its sharding, its collectives.

    scaleacross plan examples/two_small_buildings/job.yaml -o build/small
    scaleacross run build/small/launch.json --local -- examples/train.py --steps 20

Everything below is plain PyTorch: ``torch.distributed.pipelining`` for the stages, ``fully_shard`` or DDP for the replicas. What
the launch file adds is which rank is where. Run it with ``--backend gloo`` to see the same losses without the runtime. Where
torch sees GPUs each process takes one, and the schedules run over NCCL's send and receive.

It trains as the plan is modelled: products, gathered parameters and pipeline messages in bf16 over masters in fp32, gradients in
``optimizer.reduce_bytes``, reduced and gathered as often as the shard level says, layers computed again where the plan says so.
What it cannot run so, it refuses.
"""

from __future__ import annotations

import argparse
import itertools
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import scaleacross.runtime  # noqa: F401  registers the backend
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE, read_launch
from scaleacross.runtime.mesh import mesh_of
from scaleacross.runtime.start import rank_of_process, start
from scaleacross.spec.launch import LaunchConfig
from scaleacross.spec.parallelism import PASS_GATHERS, REDUCED_EVERY_PASS

WIDTH, HEADS, VOCABULARY = 128, 4, 512
BACKENDS = {"cpu": "cpu:scaleacross", "cuda": "cpu:scaleacross,cuda:scaleacross"}
SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}
REDUCED_IN = {2.0: torch.bfloat16, 4.0: torch.float32}


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
    """The layers of one pipeline rank, with the embedding on the first and the head on the last; its result is in bf16."""

    def __init__(self, num_layers: int, first: bool, last: bool, again: bool) -> None:
        super().__init__()
        self.again = again
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if first else nn.Identity()
        self.blocks = nn.ModuleList([Block() for _ in range(num_layers)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        # fully_shard gathers parameters in bf16; those that are whole are in fp32, and autocast converts what products read
        with torch.autocast(x.device.type, torch.bfloat16, enabled=not isinstance(self, FSDPModule)):
            x = self.embed(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
            return self.head(x).bfloat16()


def refuse_what_is_not_here(launch: LaunchConfig) -> None:
    """This example runs a part of what plans say; it says so instead of training something else."""
    if launch.embedding is not None:
        raise SystemExit(f"{launch.plan_name} is a plan of a recommendation model: examples/train_dlrm.py trains it")
    degrees, pipelined = launch.degrees, launch.degrees.pp > 1
    problems = {
        f"{axis} {degrees.of(axis)}": f"degrees.{axis}=1" for axis in ("tp", "cp", "ep") if degrees.of(axis) > 1
    }
    if pipelined and launch.pipeline.schedule not in SCHEDULES:
        problems[f"schedule {launch.pipeline.schedule}"] = f"schedules=[{','.join(SCHEDULES)}]"
    if pipelined and launch.pipeline.order:
        problems["an order of the schedule's own"] = "no --refine"
    if pipelined and launch.shard in REDUCED_EVERY_PASS:  # torch's pipelines reduce gradients once per step
        problems[f"shard {launch.shard} under a pipeline"] = "shard=[none,optimizer]"
    if degrees.dp_shard > 1 and launch.shard == "none":
        problems[f"shard none with dp_shard {degrees.dp_shard}"] = "degrees.dp_shard=1"
    if launch.precision != "bf16":
        problems[f"precision {launch.precision}"] = "precision=bf16"
    if launch.optimizer.parameter_bytes != 2:
        problems[f"parameters of {launch.optimizer.parameter_bytes:g} bytes"] = "optimizer.parameter_bytes=2"
    if launch.optimizer.reduce_bytes not in REDUCED_IN:
        problems[f"gradients sent in {launch.optimizer.reduce_bytes:g} bytes"] = "optimizer.reduce_bytes=4"
    if launch.recompute not in ("none", "full"):
        problems[f"recompute {launch.recompute}"] = "recompute=[none,full]"
    if launch.activation_offload or launch.optimizer_offload:
        problems["offloading"] = "activation_offload=[0] optimizer_offload=[0]"
    if launch.replica_batches:
        problems["replicas with different batches"] = "one accelerator type"
    if problems:
        ways = " ".join(f"--set '{way}'" if "=" in way else way for way in problems.values())
        raise SystemExit(f"this example does not train {', '.join(problems)}; plan with {ways}")


def data_parallel(stage: nn.Module, mesh: DeviceMesh, launch: LaunchConfig) -> nn.Module:
    """Sharded where the plan shards, replicated where it replicates."""
    reduced_in = REDUCED_IN[launch.optimizer.reduce_bytes]
    if launch.degrees.dp_shard > 1:
        options = {
            "mesh": mesh["dp_replicate", "dp_shard"] if launch.degrees.dp_replicate > 1 else mesh["dp_shard"],
            "reshard_after_forward": PASS_GATHERS.get(launch.shard, 0) == 2,
            "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced_in),
        }
        for block in stage.blocks:
            fully_shard(block, **options)
        return fully_shard(stage, **options)
    if launch.degrees.dp_replicate > 1:
        model = DistributedDataParallel(stage, process_group=mesh.get_group("dp_replicate"))
        if reduced_in is torch.bfloat16:
            # by its own name DDP refuses the hook where there is no NCCL
            model.register_comm_hook(model.process_group, lambda group, bucket: bf16_compress_hook(group, bucket))
        return model
    return stage


def run_micro_batches(model: nn.Module, launch: LaunchConfig, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """One after the other, without a pipeline; gradients are reduced, and parameters dropped, when the shard level says."""
    micro, count, losses = launch.pipeline.micro_batch_sequences, launch.num_micro_batches, []
    for number, (x, y) in enumerate(zip(inputs.split(micro), targets.split(micro), strict=True), 1):
        last = number == count
        if isinstance(model, FSDPModule):
            model.set_is_last_backward(last)
            model.set_requires_gradient_sync(last or launch.shard in REDUCED_EVERY_PASS)
            model.set_requires_all_reduce(last)
            model.set_reshard_after_backward(last or launch.shard in PASS_GATHERS)
        kept_here = isinstance(model, DistributedDataParallel) and not last
        with model.no_sync() if kept_here else nullcontext():
            loss = loss_of(model(x), y)
            (loss / count).backward()
        losses.append(loss.detach())
    return losses


def batch_of(step: int, replica: int, sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """Sequences that count upwards from a random start by a random stride: easy to learn, different for every replica."""
    random = torch.Generator().manual_seed(1000 * step + replica)
    start = torch.randint(VOCABULARY, (sequences, 1), generator=random)
    stride = torch.randint(1, 4, (sequences, 1), generator=random)
    tokens = (start + stride * torch.arange(length + 1)) % VOCABULARY
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


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
    stage = Stage(layers, first=at["pp"] == 0, last=at["pp"] == degrees.pp - 1, again=launch.recompute == "full")
    model = data_parallel(stage.to(device), mesh, launch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    micro = launch.pipeline.micro_batch_sequences
    sequences = micro * launch.num_micro_batches
    if degrees.pp > 1:
        example = batch_of(0, 0, micro, launch.sequence_length)[0].to(device)
        between = {"dtype": torch.bfloat16, "device": device}
        shape = torch.zeros(micro, launch.sequence_length, WIDTH, requires_grad=True, **between)
        given = example if at["pp"] == 0 else shape
        logits = torch.zeros(micro, launch.sequence_length, VOCABULARY, **between)
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
            parts = run_micro_batches(model, launch, inputs, targets)
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
