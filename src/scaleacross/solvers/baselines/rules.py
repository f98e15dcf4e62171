"""Rules that several baselines share."""

from __future__ import annotations

from typing import Final

from scaleacross.cost_models.candidates import Bools, Candidates
from scaleacross.solvers.pools import AcceleratorPool, Allocation
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees, GridAxis, ScheduleName, ShardLevel

AxisOrder = tuple[GridAxis, ...]
MEGATRON_ORDER: Final[AxisOrder] = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
"""Default rank order tp-cp-ep-dp-pp, fastest first (ep is inside dp_shard); stages are whole blocks of global ranks."""
FRAMEWORK_SCHEDULES: Final[tuple[ScheduleName, ...]] = ("1F1B", "Interleaved1F1B")
"""What training frameworks run unless they are asked for something else."""


def allowed_schedules(job: Job, wanted: tuple[ScheduleName, ...]) -> tuple[ScheduleName, ...]:
    """Return the wanted schedules that the job allows; all of its own when it allows none of them."""
    return tuple(name for name in wanted if name in job.schedules) or job.schedules


def whole_or_zero_1(job: Job) -> tuple[ShardLevel, ...]:
    """Return no sharding and ZeRO-1, as far as the job allows them; all that it allows when it allows neither."""
    return tuple(level for level in job.shard if level in ("none", "optimizer")) or job.shard


def one_data_parallel_group(candidates: Candidates) -> Bools:
    """Return which rows have either sharded or replicated data parallelism, not both."""
    return (candidates.dp_shard == 1) | (candidates.dp_replicate == 1)


def whole_blocks(pool: AcceleratorPool, degrees: Degrees, axis: GridAxis) -> list[Allocation]:
    """Return the allocations in which every building holds whole parts of an axis: whole stages, or whole replicas."""
    return pool.allocations(degrees.world_size, [degrees.world_size // degrees.of(axis)])


def as_megatron_runs_it(job: Job) -> Job:
    """Return the job restricted to Megatron-LM: 1F1B, plain or interleaved, and no sharding or ZeRO-1."""
    fixed = {"schedules": allowed_schedules(job, FRAMEWORK_SCHEDULES), "shard": whole_or_zero_1(job)}
    return job.model_copy(update=fixed)
