"""The program that every rank runs to train as a plan says; rank 0 writes the seconds and the loss of every step.

``SCALEACROSS_LAUNCH`` names the plan. Without it each rank trains the whole model alone, which measures a core.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import scaleacross.runtime  # noqa: F401  registers the backend
from scaleacross.errors import InputError
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE, read_launch
from scaleacross.runtime.mesh import own_group
from scaleacross.runtime.tracing import recorder_of_process
from scaleacross.spec.launch import LaunchConfig
from scaleacross.spec.parallelism import Axis
from scaleacross.testbed.codec_rates import codec_rates
from scaleacross.testbed.cpus import take_share
from scaleacross.testbed.flat_parameters import FlatParameters
from scaleacross.testbed.model import batch_of, loss_of, part_of
from scaleacross.testbed.model_shape import ModelShape
from scaleacross.testbed.ranks import TASK_VARIABLE
from scaleacross.testbed.trainable import SCHEDULES, why_untrainable

PIPELINES: Final = dict(zip(SCHEDULES, (ScheduleGPipe, Schedule1F1B), strict=True))
TIMEOUT: Final = timedelta(seconds=120)
WHOLE: Final = 1 << 40
"""Number of parameters of a bucket that holds all."""


def main() -> None:
    """Run the task of this rank, as the module docstring says."""
    task = json.loads(Path(os.environ[TASK_VARIABLE]).read_text(encoding="utf-8"))
    shape = ModelShape.model_validate(task["shape"])
    torch.set_num_threads(1)
    take_share()
    launch = read_launch(os.environ[LAUNCH_VARIABLE]) if LAUNCH_VARIABLE in os.environ else None
    dist.init_process_group("cpu:scaleacross", timeout=TIMEOUT)
    if launch is None:
        out: Any = {"runs": [_alone(shape, stated) for stated in task["runs"]], "codecs": codec_rates()}
    else:
        out = _as_planned(shape, launch, task["steps"], Path(task["out"]).with_suffix(".now"))
        if task["traces"]:
            recorder_of_process(dist.get_rank()).dump(task["traces"])
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, out)
    if dist.get_rank() == 0:
        Path(task["out"]).write_text(json.dumps(gathered), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _as_planned(shape: ModelShape, launch: LaunchConfig, steps: int, now: Path) -> dict[str, list[float]]:
    """Return the end of every step, and its loss on the last stage; ``now`` grows by a byte per step."""
    if (reason := why_untrainable(launch)) is not None:
        raise InputError(reason)
    rank, degrees = dist.get_rank(), launch.degrees
    at = launch.coordinates(rank)
    axes: tuple[Axis, ...] = ("pp", "dp_shard", "dp_replicate")
    limit_s = TIMEOUT.total_seconds()
    groups = {axis: own_group(launch, axis, rank, timeout_s=limit_s) if degrees.of(axis) > 1 else None for axis in axes}
    layers = [sum(chunks) for chunks in launch.layers_per_stage]
    first = list(accumulate(layers, initial=0))[at["pp"]]
    part = part_of(shape, first, layers[at["pp"]])
    sharded = launch.shard == "optimizer" and degrees.dp_shard > 1
    flat = FlatParameters(
        part,
        groups["dp_shard"] if sharded else None,
        groups["dp_replicate"] if sharded else groups["dp_replicate"] or groups["dp_shard"],
        _bucket_parameters(launch),
    )
    micro, length = launch.pipeline.micro_batch_sequences, launch.sequence_length
    sequences = micro * launch.num_micro_batches
    replica = at["dp_replicate"] * degrees.dp_shard + at["dp_shard"]
    mine = range(replica * sequences, (replica + 1) * sequences)
    run = _pipeline(shape, launch, part, groups["pp"], at["pp"]) if degrees.pp > 1 else _plain(part, micro)
    ends, losses = [], []
    dist.barrier()
    with (now if rank == 0 else Path(os.devnull)).open("wb", buffering=0) as count:
        for step in range(steps):
            inputs, targets = batch_of(step, mine, length, shape.vocabulary_size)
            parts = run(inputs, targets)
            flat.update()
            ends.append(time.perf_counter())
            count.write(b".")
            if parts:
                losses.append(float(torch.stack(parts).mean()))
    return {"ends": ends, "losses": losses}


def _alone(shape: ModelShape, stated: dict[str, int]) -> dict[str, float]:
    """Return the median seconds of passes and update of the whole model, while all other ranks do the same."""
    micro, count, length = stated["micro_batch"], stated["num_micro_batches"], stated["length"]
    part = part_of(shape.model_copy(update={"num_layers": stated["layers"]}), 0, stated["layers"])
    flat, run = FlatParameters(part, None, None, WHOLE), _plain(part, micro)
    took = []
    for step in range(stated["steps"] + 1):
        inputs, targets = batch_of(step, range(micro * count), length, shape.vocabulary_size)
        dist.barrier()
        began = time.perf_counter()
        run(inputs, targets)
        middle = time.perf_counter()
        flat.update()
        took.append((middle - began, time.perf_counter() - middle))
    passes, updates = zip(*took[1:], strict=True)
    return {"passes_s": sorted(passes)[len(passes) // 2], "update_s": sorted(updates)[len(updates) // 2]}


def _plain(part: torch.nn.Module, micro: int) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """Return a function that runs micro-batches one after the other."""

    def run(inputs: Tensor, targets: Tensor) -> list[Tensor]:
        losses, count = [], len(inputs) // micro
        for x, y in zip(inputs.split(micro), targets.split(micro), strict=True):
            loss = loss_of(part(x), y)
            (loss / count).backward()
            losses.append(loss.detach())
        return losses

    return run


def _pipeline(
    shape: ModelShape, launch: LaunchConfig, part: torch.nn.Module, group: Any, stage: int
) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """Return a function that runs the plan's schedule over the stages."""
    micro, length, last = launch.pipeline.micro_batch_sequences, launch.sequence_length, launch.degrees.pp - 1
    between = torch.zeros(micro, length, shape.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    given = torch.zeros(micro, length, dtype=torch.int64) if stage == 0 else between
    made = between if stage < last else torch.zeros(micro, length, shape.vocabulary_size)
    device = torch.device("cpu")
    schedule = PIPELINES[launch.pipeline.schedule](
        PipelineStage(part, stage, last + 1, device, (given,), (made,), group=group),
        n_microbatches=launch.num_micro_batches,
        loss_fn=loss_of,
    )

    def run(inputs: Tensor, targets: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        if stage == 0:
            schedule.step(inputs)
        elif stage == last:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        return [loss.detach() for loss in losses]

    return run


def _bucket_parameters(launch: LaunchConfig) -> int:
    """Return the parameters per collective of gradients, as the plan states it; all in one if it states none."""
    for groups in launch.process_groups:
        for one in groups.collectives:
            if one.op in ("reduce_scatter", "all_reduce") and groups.axis.startswith("dp"):
                return max(1, round(one.bytes_per_rank / launch.optimizer.reduce_bytes))
    return WHOLE


if __name__ == "__main__":
    main()
