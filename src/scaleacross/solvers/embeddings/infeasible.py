"""Errors that say why tables fit nowhere, and by how much."""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.embedding.options import ShardingProblem, holders
from scaleacross.errors import InfeasibleError
from scaleacross.spec.recommendation import TIERS, RecommendationJob
from scaleacross.units import human_bytes


def require_options(job: RecommendationJob, problem: ShardingProblem) -> None:
    """Raise InfeasibleError if some table has no option at all, however much room there is."""
    bare = next((table for table, options in zip(problem.tables, problem.options, strict=True) if not options), None)
    if bare is None:
        return
    raise InfeasibleError(
        f"No plan of '{job.name}': table '{bare.name}' ({bare.rows:,} rows of {bare.dimension}) cannot be placed by shardings "
        f"{', '.join(job.shardings)} with kernels {', '.join(job.kernels)}. fused_uvm and fused_uvm_caching need the topology's "
        "host memory, key_value its SSD (buildings: host); column shards need two times least_column_width. Ways out: allow "
        "table_wise or row_wise, and kernel fused."
    )


def no_plan(job: RecommendationJob, problem: ShardingProblem, smallest: ShardingProblem) -> InfeasibleError:
    """The error for a problem without a plan: least bytes of the tables, bytes of each memory, and ways out.

    Args:
        smallest: the same problem with one sample per accelerator, which separates tables from the memory of a batch.
    """
    fleet = problem.fleet
    least, bare = _least(problem), _least(smallest)
    room, whole = fleet.capacity.sum(axis=0), smallest.fleet.capacity.sum(axis=0)
    have = ", ".join(
        f"{human_bytes(size)} of {tier.replace('_', ' ')}" for tier, size in zip(TIERS, room, strict=True) if size
    )
    batch = float(least.sum() - bare.sum() + whole.sum() - room.sum())
    emptied = bool(((room == 0) & (whole > 0)).any())  # a memory that the batch uses up
    filled = emptied or batch > bare.sum()  # the batch, more than tables
    needed = (
        f"{human_bytes(float((bare if filled else least).sum()))} with {job.optimizer} state in {job.table_precision}"
    )
    copied = all(option.sharding == "data_parallel" for options in problem.options for option in options)
    needed += ", copies on all ranks counted" if copied else ""
    beside = f", a batch of {job.global_batch_samples:,} samples {human_bytes(batch)} more" if filled else ""
    left = f"{have} for tables and what is read of them" if filled else have
    head = f"No plan of '{job.name}': its tables take at least {needed}{beside}; {fleet.num_ranks:,} accelerators have {left}"
    missing = float(least.sum() - room.sum())
    largest = problem.tables[int(least.argmax())]
    if missing > 0:
        said = f"{human_bytes(missing)} are missing"
    else:
        said = (
            "no split fits: host memory is used only by kernels fused_uvm and fused_uvm_caching, SSD by key_value, and the "
            f"largest table, '{largest.name}', takes {human_bytes(float(least.max()))}"
        )
    fewer = ["a smaller global_batch_samples"] if filled else []
    return InfeasibleError(f"{head}; {said}. {_ways_out(job, float(room[1]), fewer, copied)}")


def _least(problem: ShardingProblem) -> Floats:
    """Least bytes of each table, (tables,), with copies and with what a batch reads of it."""
    fleet = problem.fleet
    return np.array([min(o.memory.sum() * holders(o, fleet) for o in options) for options in problem.options])


def _ways_out(job: RecommendationJob, host_bytes: float, ways: list[str], copied: bool) -> str:
    """Extend ``ways`` and word them.

    If every rank has a copy of every table, neither host memory nor more ranks make room.
    """
    if copied:
        ways.append("allow shardings that hold a table once (table_wise, column_wise, row_wise)")
    if job.table_precision == "fp32":
        ways.append("table_precision: fp16 halves the rows")
    if job.optimizer in ("adagrad", "adam"):
        ways.append("optimizer: rowwise_adagrad keeps one figure per row in place of one or more per element")
    if not host_bytes and not copied:
        ways.append("state the topology's host memory (buildings: host)")
    if max(job.replica_groups) > 1:
        ways.append("fewer replica_groups hold fewer copies")
    return "Ways out: " + "; ".join([*ways, *([] if copied else ["more accelerators"])]) + "."
