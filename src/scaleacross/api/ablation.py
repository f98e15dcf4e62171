"""Ablations: plans that differ from a starting plan in one dimension only, to show what that dimension is worth.

placement             axis order and building shares (with the layers per stage and batch shares that unequal buildings
                      require); degrees, micro-batch, schedule, recompute and shard level as in the starting plan
schedule              any schedule and chunk count that the job allows; the rest as in the starting plan
network               settings of every communicator; the rest as in the starting plan
placement_and_degrees everything but schedules and network, which are those that frameworks run by default

The first three are never slower than the starting plan. The last is never slower than any known plan with a default
schedule. Only ``network`` chooses communicator settings; the others run the library's defaults, as the starting plan
does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

from scaleacross import verification as checks
from scaleacross.api.assemble import cost_of
from scaleacross.api.planning import plan
from scaleacross.solvers.baselines.rules import FRAMEWORK_SCHEDULES, allowed_schedules
from scaleacross.solvers.network_of_plan import with_library_network, with_network
from scaleacross.spec.design_space import START
from scaleacross.spec.job import DegreeRequest, Job
from scaleacross.spec.parallelism import has_chunks
from scaleacross.spec.plan import Decision
from scaleacross.workloads.problem import Problem

Known = Mapping[str, Decision]


class SearchLimit(NamedTuple):
    """Limit of each search: CPU seconds, or a number of computed step times in their place."""

    seconds: float
    work: int | None = None


def ablate(problem: Problem, known: Known, limit: SearchLimit, gap_tolerance: float) -> dict[str, Decision]:
    """Return every ablation of the known plan ``START``, by name; empty without such a plan.

    ``limit`` holds for each search.
    """
    if START not in known:
        return {}
    return {name: improve(problem, known, limit, gap_tolerance) for name, improve in ABLATIONS.items()}


def better_placement(problem: Problem, known: Known, limit: SearchLimit, gap_tolerance: float) -> Decision:
    """Return the starting plan with its best placement."""
    start = known[START]
    pipeline, degrees = start.pipeline, start.degrees
    pinned = {
        "degrees": DegreeRequest.model_validate(degrees.model_dump()),
        "num_accelerators": degrees.world_size,
        "micro_batch_sequences": (pipeline.micro_batch_sequences,),
        "schedules": (pipeline.schedule,),
        "num_chunks": (pipeline.num_chunks,),
        "recompute": (start.recompute,),
        "shard": (start.shard,),
        "context_exchange": (start.context_exchange,),
        "expert_folding": (start.degrees.expert_folding,),
        "activation_offload": (start.activation_offload,),
        "optimizer_offload": (start.optimizer_offload,),
    }
    job = with_library_network(problem).job.model_copy(update=pinned)
    return _searched(job, [start], limit, gap_tolerance)


def better_schedule(
    problem: Problem, known: Known, limit: SearchLimit | None = None, gap_tolerance: float = 0
) -> Decision:
    """Return the starting plan with its best schedule.

    Every legal schedule that fits is evaluated, so no limit applies.
    """
    start = known[START]
    best, best_s = start, cost_of(problem, start).cost.step_s
    if start.degrees.pp == 1:
        return start
    for name, chunks in product(problem.job.schedules, problem.job.num_chunks):
        if not has_chunks(name, chunks):
            continue
        pipeline = start.pipeline.model_copy(update={"schedule": name, "num_chunks": chunks, "order": None})
        other = start.model_copy(update={"pipeline": pipeline})
        if any(checks.illegal(problem, other)):
            continue
        cost = cost_of(problem, other)
        if cost.cost.step_s < best_s and all(stage.fits for stage in cost.memory):
            best, best_s = other, cost.cost.step_s
    return best


def better_network(
    problem: Problem, known: Known, limit: SearchLimit | None = None, gap_tolerance: float = 0
) -> Decision:
    """Return the starting plan with its best network, proved by ``choose_network``."""
    return with_network(problem, known[START]).decision


def better_placement_and_degrees(problem: Problem, known: Known, limit: SearchLimit, gap_tolerance: float) -> Decision:
    """Return the best plan whose schedule is one that frameworks run by default."""
    schedules = allowed_schedules(problem.job, FRAMEWORK_SCHEDULES)
    alike = [decision for decision in known.values() if decision.pipeline.schedule in schedules]
    job = with_library_network(problem).job.model_copy(update={"schedules": schedules})
    return _searched(job, alike, limit, gap_tolerance)


Ablation = Callable[[Problem, Known, SearchLimit, float], Decision]
ABLATIONS: Final[Mapping[str, Ablation]] = {
    "placement": better_placement,
    "schedule": better_schedule,
    "network": better_network,
    "placement_and_degrees": better_placement_and_degrees,
}


def _searched(job: Job, known: Sequence[Decision], limit: SearchLimit, gap_tolerance: float) -> Decision:
    """Return the best decision of a restricted job; the search starts from the known decisions."""
    found = plan(
        job,
        time_limit_s=limit.seconds,
        gap_tolerance=gap_tolerance,
        incumbents=known,
        alternatives=False,
        clock=time.process_time,
        work_limit=limit.work,
        simulated=False,
    )
    bare = found.placement.model_copy(update={"spans": {}})
    return found.decision.model_copy(update={"placement": bare})
