"""The runner-up of every decision of a plan: the best plan that decides one thing otherwise.

Everything else is free again:

degrees, schedule, chunks, micro-batch, recompute, shard level
    The joint search on the job without the chosen value. Its bound says that no such plan is faster than stated.
axis order, allocation, and the outermost level of each axis
    Exact step times of every order on every allocation with the plan's own settings, layers per stage and batch shares
    (``EveryPlacement.every_of``). Where the limit lets all be tried, the best one is proved.

``alternatives`` tries fewer of these, with less proof, whenever a plan is made; this is the full account on demand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.solvers.alternatives import why_slower
from scaleacross.solvers.every_placement import EveryPlacement
from scaleacross.solvers.joint import search
from scaleacross.solvers.mixed_pools import bounder_on
from scaleacross.solvers.network_of_plan import Networked, with_network
from scaleacross.solvers.place_parallelism import PlacementDecision
from scaleacross.solvers.pools import AcceleratorPool, pools, shares
from scaleacross.solvers.search_space import Refusals, SearchSpace, divisors
from scaleacross.solvers.search_state import decision_of
from scaleacross.solvers.work_limit import count_one
from scaleacross.spec.explanation import RunnerUp
from scaleacross.spec.job import DegreeRequest, Job
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.offloading import OFFLOADS
from scaleacross.spec.parallelism import GRID_AXES
from scaleacross.spec.placement import BuildingShare, Placement, strides
from scaleacross.spec.plan import Decision
from scaleacross.spec.progress import Progress
from scaleacross.workloads.problem import Problem

SEARCH_GAP: Final = 1e-3
"""Relative gap at which the search of a runner-up stops; its bound is reported."""
LEAST_LIMIT_S: Final = 0.5
"""No search begins with less time than this."""


CHOICES: Final[Mapping[str, tuple[str, Callable[[Decision], Any]]]] = {
    "schedule": ("schedules", lambda decision: decision.pipeline.schedule),
    "chunks": ("num_chunks", lambda decision: decision.pipeline.num_chunks),
    "micro-batch": ("micro_batch_sequences", lambda decision: decision.pipeline.micro_batch_sequences),
    "recompute": ("recompute", lambda decision: decision.recompute),
    "shard level": ("shard", lambda decision: decision.shard),
    "context exchange": ("context_exchange", lambda decision: decision.context_exchange),
    "expert folding": ("expert_folding", lambda decision: decision.degrees.expert_folding),
    "activation offload": ("activation_offload", lambda decision: decision.activation_offload),
    "optimizer offload": ("optimizer_offload", lambda decision: decision.optimizer_offload),
}
"""Decision -> the job's field with its allowed values, and a function that reads the plan's value."""


@dataclass(frozen=True)
class Without:
    """A decision, the value chosen, and the job without that value; ``job`` is None if nothing else is allowed."""

    decision: str
    chosen: str
    job: Job | None
    read: Callable[[Decision], str]


def runner_ups(
    problem: Problem,
    decision: Decision,
    *,
    time_limit_s: float,
    seed: int = 0,
    report: Callable[[Progress], None] = lambda progress: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[RunnerUp]:
    """Yield the runner-up of every decision of a placed plan.

    The trial of all placements and the searches share ``time_limit_s`` of ``clock``; each gets an equal part of what is
    left. Placements are tried first, as a search may overrun its part.
    """
    won = plan_cost(problem.job, problem.profile, problem.topology, decision)
    forbidden = list(without(problem, decision))
    began = clock()
    report(Progress("placements", 0, 1, won.cost.step_s, None, 0.0))
    placed = list(_placed_otherwise(problem, decision, won, began + time_limit_s / (1 + len(forbidden)), clock))
    for index, one in enumerate(forbidden):
        elapsed = clock() - began
        report(Progress("runner-ups", index, len(forbidden), won.cost.step_s, None, elapsed))
        yield _searched(problem, one, won, (time_limit_s - elapsed) / (len(forbidden) - index), seed, clock)
    yield from placed


def without(problem: Problem, decision: Decision) -> Iterator[Without]:
    """Yield every decision that a search can change, each with the job that forbids the chosen value."""
    job = problem.job
    for axis in (name for name in DegreeRequest.model_fields if name not in ("expert_lanes", "cp_inner")):
        value = int(getattr(decision.degrees, axis))
        left = tuple(other for other in _values(problem, axis) if other != value and job.degrees.allows(axis, other))
        degrees = job.degrees.model_copy(update={axis: left})
        restricted = job.model_copy(update={"degrees": degrees}) if left else None
        yield Without(axis, str(value), restricted, lambda d, axis=axis: str(getattr(d.degrees, axis)))  # type: ignore[misc]
    for name, (field, read) in CHOICES.items():
        if field == "context_exchange" and decision.degrees.cp == 1:
            continue
        if field == "expert_folding" and decision.degrees.tp * decision.degrees.cp == 1:
            continue
        if field in (*OFFLOADS, "expert_folding") and len(getattr(job, field)) == 1:
            continue
        value = read(decision)
        yield Without(name, str(value), _lacking(job, field, value), lambda d, read=read: str(read(d)))  # type: ignore[misc]


def _lacking(job: Job, field: str, value: Any) -> Job | None:
    left = tuple(other for other in getattr(job, field) if other != value)
    return job.model_copy(update={field: left}) if left else None


def _values(problem: Problem, axis: str) -> Sequence[int]:
    """Values of an axis in the search space on all accelerators."""
    whole = max(pools(problem.topology), key=lambda pool: pool.num_accelerators)
    free = problem.job.model_copy(update={"degrees": DegreeRequest()})
    space = SearchSpace(free, problem.profile, whole.num_accelerators, whole.unit)
    if axis in ("tp", "cp", "pp"):
        listed: list[int] = getattr(space, f"{axis}_values")(Refusals())
        return listed
    return divisors((problem.profile.num_experts or 1) if axis == "ep" else problem.job.global_batch_sequences)


def _searched(
    problem: Problem, one: Without, won: PlanCost, limit_s: float, seed: int, clock: Callable[[], float]
) -> RunnerUp:
    if one.job is None:
        return RunnerUp(
            decision=one.decision, chosen=one.chosen, status="none", reason="the job and the model allow nothing else"
        )
    if limit_s < LEAST_LIMIT_S:
        return RunnerUp(decision=one.decision, chosen=one.chosen, status="not_tried", reason="the limit came first")
    restricted = Problem(one.job, problem.workload, problem.topology, problem.profile)
    state = search(restricted, time_limit_s=limit_s, seed=seed, gap_tolerance=SEARCH_GAP, clock=clock)
    if state.best is None:
        late = state.out_of_time
        reason = "none found within the limit" if late else "nothing else is legal and fits in memory"
        return RunnerUp(decision=one.decision, chosen=one.chosen, status="not_tried" if late else "none", reason=reason)
    found = decision_of(state.best)
    status = "best_found" if state.out_of_time else "proved"
    return _against(won, one.decision, one.chosen, one.read(found), with_network(problem, found), status, state.bound_s)


def _against(
    won: PlanCost,
    decision: str,
    chosen: str,
    instead: str,
    networked: Networked,
    status: Any,
    bound_s: float | None = None,
) -> RunnerUp:
    """The runner-up and its difference from the plan; ``bound_s`` None: nothing is faster than what was found."""
    found, lost = networked.decision, networked.cost
    step_s, own_s = lost.cost.step_s, won.cost.step_s
    return RunnerUp(
        decision=decision,
        chosen=chosen,
        runner_up=instead,
        step_s=step_s,
        difference_s=step_s - own_s,
        difference_fraction=(step_s - own_s) / own_s,
        bound_s=step_s if bound_s is None else bound_s,
        status=status,
        reason=why_slower(won, lost),
        alternative=found.model_copy(update={"placement": lost.placement}),
    )


def _placed_otherwise(
    problem: Problem, decision: Decision, won: PlanCost, ends: float, clock: Callable[[], float]
) -> Iterator[RunnerUp]:
    """Yield runner-ups for axis order, allocation and the outermost level of every axis, with the plan's settings.

    No placement is tried after ``clock`` reaches ``ends``.
    """
    placement = decision.placed
    pool = _pool_of(problem, placement)
    placer = EveryPlacement(pool, bounder_on(pool, problem.job, problem.profile))
    every, all_tried = _tried(placer, decision, ends, clock)
    active = [axis for axis in GRID_AXES if decision.degrees.of(axis) > 1]
    order, allocation = _order(placement.axis_order, decision), placement.fill

    def runner_up(name: str, chosen: str, differs: Callable[[PlacementDecision], bool], read: Any) -> RunnerUp:
        found = next((placed for placed in every if differs(placed)), None)
        if found is None and not all_tried:
            return RunnerUp(decision=name, chosen=chosen, status="not_tried", reason="the limit came first")
        if found is None:
            return RunnerUp(decision=name, chosen=chosen, status="none", reason="there is no other placement")
        other = Placement(axis_order=found.axis_order, fill=shares(found.fill))
        placed = decision.model_copy(update={"placement": other})
        status, bound_s = ("proved", None) if all_tried else ("best_found", 0.0)
        return _against(won, name, chosen, read(found), with_network(problem, placed), status, bound_s)

    yield runner_up(
        "axis order", order, lambda p: _order(p.axis_order, decision) != order, lambda p: _order(p.axis_order, decision)
    )
    yield runner_up(
        "allocation", _filled(allocation), lambda p: shares(p.fill) != allocation, lambda p: _filled(shares(p.fill))
    )
    for axis in active:

        def reach(placed: PlacementDecision, axis: Any = axis) -> str:
            stride = strides(decision.degrees, placed.axis_order)[axis]
            return LINK_LEVELS[int(placer.on(placed.fill).shape(decision.degrees.of(axis), stride).span)]

        level, name = str(won.placement.spans.get(axis, "–")), f"outermost level of {axis}"
        yield runner_up(name, level, lambda p, level=level, reach=reach: reach(p) != level, reach)  # type: ignore[misc]


def _tried(
    placer: EveryPlacement, decision: Decision, ends: float, clock: Callable[[], float]
) -> tuple[list[PlacementDecision], bool]:
    """Return the placements that ``clock`` allows, fastest first, and whether these are all."""
    found: list[tuple[float, PlacementDecision]] = []
    all_tried = clock() < ends
    for entry in placer.every_of(decision) if all_tried else ():
        if clock() >= ends:
            all_tried = False
            break
        found.append(entry)
        count_one(clock)
    return [placed for _, placed in sorted(found, key=lambda entry: entry[0])], all_tried


def _pool_of(problem: Problem, placement: Placement) -> AcceleratorPool:
    """The accelerator pool with the types of the placement."""
    used = {problem.topology.building(share.building).accelerator.name for share in placement.fill}
    return next(pool for pool in pools(problem.topology) if {a.name for a in pool.accelerators} == used)


def _order(axis_order: Sequence[str], decision: Decision) -> str:
    return " ".join(axis for axis in axis_order if getattr(decision.degrees, axis) > 1) or "–"


def _filled(allocation: Sequence[BuildingShare]) -> str:
    return ", ".join(f"{share.building} {share.num_accelerators:,}" for share in allocation)
