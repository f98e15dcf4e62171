"""Build the search part of a plan's report: objective, bounds, gap, alternatives, and how the search ended."""

from __future__ import annotations

import math
from typing import Any

from scaleacross.api.assemble import cost_of, versions
from scaleacross.api.objectives import Limits, gap_of, objective_value, value_of
from scaleacross.cost_models.levels import collective_libraries
from scaleacross.solvers.bounds import arithmetic_bounds, search_bounds
from scaleacross.solvers.network_of_plan import Networked
from scaleacross.solvers.objectives import Goal
from scaleacross.solvers.search_state import Search
from scaleacross.spec.plan import Alternative, Finalist, Headroom, ObjectiveValue, SolveReport
from scaleacross.spec.progress import STOPPED_BY_HAND
from scaleacross.verification.figures import TOLERANCE
from scaleacross.workloads.problem import Problem
from scaleacross.workloads.space import EQUAL_CHUNKS, left_out, within


def _chunks(state: Search, step_s: float, timed: bool) -> tuple[str, ...]:
    """Return notes on what no bound covers where ranks may hold several chunks."""
    if not state.several_chunks or state.problem.job.stages == "equal":
        return ()
    if timed and state.bound_s > step_s * (1 + TOLERANCE):
        moved = "layers moved from the busiest rank make the step shorter than these"
        return (f"{EQUAL_CHUNKS}, {state.bound_s:.4g} s; {moved}",)
    return (EQUAL_CHUNKS,)


def search_report(
    state: Search,
    networked: Networked,
    others: tuple[Alternative, ...] = (),
    finalists: tuple[Finalist, ...] = (),
) -> SolveReport:
    """Return the report of a search for the least step time.

    No bound exceeds a known estimate, for two reasons. Moved layers can make a step shorter than the bound for equal
    stages. The simulation may also choose another finalist than the one with the least estimate.
    """
    step_s = networked.cost.cost.step_s
    known_s = min([step_s, *(one.price_s for one in finalists)])
    bounds = search_bounds(state, known_s)
    bound_s = min(known_s, max(bound.step_s for bound in bounds))
    gap = (step_s - bound_s) / step_s
    return SolveReport(
        objective_s=step_s,
        bound_s=bound_s,
        gap=gap,
        bounds=bounds,
        alternatives=others,
        finalists=finalists,
        **_found(state, gap, known_s, timed=True),
    )


def goal_report(
    state: Search, goal: Goal, networked: Networked, limits: Limits, others: tuple[Alternative, ...]
) -> SolveReport:
    """Return the report of a search for another objective.

    The search bounds spending; the bounds on step time are arithmetic.
    """
    problem, cost, decision = state.problem, networked.cost, networked.decision
    step_s = cost.cost.step_s
    value = objective_value(problem, cost, decision, goal.measure.spent(state.bound_s))
    bounds = arithmetic_bounds(problem)
    bound_s = max(bound.step_s for bound in bounds)
    if value is None:  # the step time within limits: the score is the step time
        bound_s = min(step_s, max(bound_s, state.bound_s))
    gap = gap_of(value, step_s, bound_s)
    return SolveReport(
        objective_s=step_s,
        bound_s=bound_s,
        gap=gap,
        objective=value,
        limits=dict(limits),
        bounds=bounds,
        alternatives=tuple(_with_value(problem, value, one) for one in others),
        **_found(state, gap, step_s, timed=value is None),
    )


def _with_value(problem: Problem, won: ObjectiveValue | None, other: Alternative) -> Alternative:
    """Return the alternative with a reason that begins with its loss in the objective."""
    if won is None or other.step_s is None:
        return other
    lost = value_of(problem, won.name, cost_of(problem, other.decision), other.decision)
    return other.model_copy(update={"reason": f"{1 - lost / won.value:.1%} less {won.name}; {other.reason}"})


def _headroom(state: Search, timed: bool) -> Headroom | None:
    """Return what the search knows of candidates that only the job's memory headroom rules out."""
    fraction = state.problem.job.memory_headroom_fraction
    if not fraction:
        return None
    bound_s = state.headroom_bound_s if timed and state.headroom_bound_s < math.inf else None
    return Headroom(fraction=fraction, num_candidates=state.num_headroom, bound_s=bound_s)


def _found(state: Search, gap: float, step_s: float, timed: bool) -> dict[str, Any]:
    """Return the fields of a report that describe the search itself."""
    problem = state.problem
    narrow = left_out(problem.job, problem.profile, problem.topology)
    told = [*_chunks(state, step_s, timed), *state.left_out, *([narrow] if narrow else [])]
    if len(several := collective_libraries(problem.topology.buildings)) > 1:
        told.append(
            f"a plan uses accelerators with one collective library: {' and '.join(several)} cannot join each other"
        )
    if state.work_limit is not None and state.out_of_time:
        told.append(f"the work limit of {state.work_limit:,} computed step times ended the search")
    elif state.past_limit and not state.stopped():
        told.append("the limit came before every alternative had been tried: the next best may be others")
    if state.stopped():
        told.append(STOPPED_BY_HAND)
    if state.bound_violation_s > 1e-9:
        told.append(
            f"a relaxed bound exceeded an exact cost by {state.bound_violation_s:.3g} s: the gap is not a proof here"
        )
    return {
        "status": "time_limit" if state.out_of_time else "optimal" if gap <= TOLERANCE else "gap_tolerance",
        "within": within(told),
        "num_candidates": state.num_candidates,
        "num_infeasible": dict(state.refused),
        "headroom": _headroom(state, timed),
        "num_pruned": state.num_pruned,
        "num_placed": len(state.remembered),
        "seconds": state.seconds,
        "seed": state.seed,
        "versions": versions(),
        "notes": tuple(told),
    }
