"""Decisions that differ from a found one in one choice and keep all others, its placement and its layers included.

A search gives candidates equal layers, or those that make the slowest stage fastest, and moves layers of a few of its
best afterwards. So it never times the neighbours of a decision whose layers have moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any, Final

from scaleacross import verification as checks
from scaleacross.cost_models.axes import searched_network
from scaleacross.cost_models.candidates import candidate_of
from scaleacross.cost_models.levels import accelerator_types
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.errors import InputError
from scaleacross.solvers.balance import balance_of
from scaleacross.solvers.network_of_plan import Networked
from scaleacross.solvers.search_state import Placed
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.plan import Decision
from scaleacross.workloads.problem import Problem

FACTORS: Final = (2, 3)
"""Factors that may move from one degree to another, or into ep and out of it."""
SHARED: Final = ("tp", "cp", "dp_shard", "dp_replicate")
"""Degrees between which they move. Another number of pipeline ranks would ask for other layers."""


def near_decisions(problem: Problem, decision: Decision) -> Iterator[tuple[float, Decision]]:
    """Yield the estimate in seconds, on the best network, and the decision of every neighbour that the job allows.

    The neighbours have no network. A decision with a recompute policy per stage has no neighbours, because other choices
    need other memory.
    """
    if decision.stage_recompute is not None:
        return
    used = [problem.topology.building(share.building) for share in decision.placed.fill]
    network = searched_network(problem.job, accelerator_types(used))
    for changes in _changes(problem, decision):
        near = Decision.model_validate({**dict(decision), "network": None, **changes})
        if any(checks.illegal(problem, near)):
            continue
        try:
            cost = plan_cost(problem.job, problem.profile, problem.topology, near, network=network)
        except InputError:
            continue  # smaller micro-batches may make a pipeline too long to be timed
        if all(stage.fits for stage in cost.memory):
            yield cost.cost.step_s, near


def as_placed(problem: Problem, placed: Placed, near: Networked) -> Placed:
    """Return a neighbour of a placed candidate as a placed candidate, whose step time is the estimate on its network."""
    rows = candidate_of(near.decision, problem.job.global_batch_sequences)
    balance = balance_of(problem, near.decision, rows)
    placement = replace(placed.placement, balance=balance)
    bounded = placed.placer.bounder.coarse(rows)
    return Placed(near.cost.cost.step_s, rows, bounded, placement, placed.placer)


def _changes(problem: Problem, decision: Decision) -> Iterator[dict[str, Any]]:
    """Yield the fields of every neighbour that differ from those of the decision."""
    job, pipeline = problem.job, decision.pipeline
    for degrees in _degrees(problem, decision.degrees):
        kept = (decision.shard,) if decision.shard != "none" else job.shard
        shards = kept if _is_sharded(degrees) else ("none",)
        yield from ({"degrees": degrees, "shard": shard} for shard in shards)
    for size in job.micro_batch_sequences:
        if size != pipeline.micro_batch_sequences and pipeline.order is None:
            yield {"pipeline": PipelineChoice.model_validate({**dict(pipeline), "micro_batch_sequences": size})}
    fields = {"recompute": True, "context_exchange": decision.degrees.cp > 1, "shard": _is_sharded(decision.degrees)}
    for field in (field for field, matters in fields.items() if matters):
        present = getattr(decision, field)
        yield from ({field: value} for value in getattr(job, field) if value != present)


def _is_sharded(degrees: Degrees) -> bool:
    """Return whether there is more than one rank to shard states over."""
    return degrees.dp_shard * degrees.cp > 1


def _degrees(problem: Problem, degrees: Degrees) -> Iterator[Degrees]:
    """Yield the degrees of as many accelerators that the job allows."""
    if degrees.expert_lanes > 1 or degrees.cp_inner > 1:
        return
    present: dict[str, int] = degrees.model_dump()
    moves = [(one, other, factor) for one, other in permutations(SHARED, 2) for factor in FACTORS]
    changed = [
        {**present, one: present[one] // factor, other: present[other] * factor}
        for one, other, factor in moves
        if present[one] % factor == 0
    ]
    if problem.profile.num_experts:
        changed += [{**present, "ep": present["ep"] * factor} for factor in FACTORS]
        changed += [{**present, "ep": present["ep"] // factor} for factor in FACTORS if present["ep"] % factor == 0]
    for one in changed:
        allowed = all(problem.job.degrees.allows(axis, number) for axis, number in one.items())
        if allowed and one["dp_shard"] % one["ep"] == 0:
            yield Degrees.model_validate(one)
