"""Why tables fit nowhere, and by how much."""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.embedding.options import ShardingProblem, holders
from scaleacross.errors import InfeasibleError
from scaleacross.spec.recommendation import TIERS, RecommendationJob
from scaleacross.units import human_bytes


def require_options(job: RecommendationJob, problem: ShardingProblem) -> None:
    """Raises InfeasibleError where a table has nowhere to go, however much room there is."""
    bare = next((table for table, options in zip(problem.tables, problem.options, strict=True) if not options), None)
    if bare is None:
        return
    raise InfeasibleError(
        f"No plan of '{job.name}': table '{bare.name}' ({bare.rows:,} rows of {bare.dimension}) cannot be placed by shardings "
        f"{', '.join(job.shardings)} with kernels {', '.join(job.kernels)}. fused_uvm and fused_uvm_caching need the topology's "
        "host memory, key_value its SSD (buildings: host); column shards need two times least_column_width. Ways out: allow "
        "table_wise or row_wise, and kernel fused."
    )


def no_plan(job: RecommendationJob, problem: ShardingProblem) -> InfeasibleError:
    """The error that says what is short: bytes that tables take at least, beside what each memory has, and the ways out."""
    fleet = problem.fleet
    room = fleet.capacity.sum(axis=0)
    least = np.array([min(o.memory.sum() * holders(o, fleet) for o in options) for options in problem.options])
    have = ", ".join(
        f"{human_bytes(size)} of {tier.replace('_', ' ')}" for tier, size in zip(TIERS, room, strict=True) if size
    )
    needed = f"{human_bytes(float(least.sum()))} with {job.optimizer} state in {job.table_precision}"
    head = f"No plan of '{job.name}': its tables take at least {needed}; {fleet.num_ranks:,} accelerators have {have}"
    missing = float(least.sum() - room.sum())
    largest = problem.tables[int(least.argmax())]
    if missing > 0:
        said = f"{human_bytes(missing)} are missing"
    else:
        said = (
            "no split fits: host memory is used only by kernels fused_uvm and fused_uvm_caching, SSD by key_value, and the "
            f"largest table, '{largest.name}', takes {human_bytes(float(least.max()))}"
        )
    return InfeasibleError(f"{head}; {said}. {_ways_out(job, float(room[1]))}")


def _ways_out(job: RecommendationJob, host_bytes: float) -> str:
    ways = []
    if job.table_precision == "fp32":
        ways.append("table_precision: fp16 halves the rows")
    if job.optimizer in ("adagrad", "adam"):
        ways.append("optimizer: rowwise_adagrad keeps one figure per row in place of one or more per element")
    if not host_bytes:
        ways.append("state the topology's host memory (buildings: host)")
    if max(job.replica_groups) > 1:
        ways.append("fewer replica_groups hold fewer copies")
    return "Ways out: " + "; ".join([*ways, "more accelerators"]) + "."
