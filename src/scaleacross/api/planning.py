"""The verb plan: search, assemble, verify."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from scaleacross import verification as checks
from scaleacross.api.assemble import assemble, cost_of, versions
from scaleacross.api.objectives import Limits, goal_of, objective_value, value_of
from scaleacross.api.problems import problem_of
from scaleacross.api.refereeing import refereed
from scaleacross.api.stated import stated
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.errors import InfeasibleError, InputError, TimeLimitError
from scaleacross.simulation.steady import SteadyStep
from scaleacross.solvers.alternatives import alternatives as alternatives_to
from scaleacross.solvers.bounds import arithmetic_bounds, search_bounds
from scaleacross.solvers.infeasible import closest_candidate, explain
from scaleacross.solvers.joint import search
from scaleacross.solvers.move_layers import best_with_moved_layers
from scaleacross.solvers.network_of_plan import Networked
from scaleacross.solvers.network_report import network_report
from scaleacross.solvers.objectives import Goal, goal_placer
from scaleacross.solvers.one_building import InOneBuilding
from scaleacross.solvers.place_parallelism import never
from scaleacross.solvers.placed_networks import PlacedNetworks
from scaleacross.solvers.search_state import Placed, Search
from scaleacross.solvers.work_limit import WorkClock
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Alternative, Decision, Finalist, Headroom, ObjectiveValue, Plan, SolveReport
from scaleacross.spec.progress import Progress
from scaleacross.verification.figures import TOLERANCE
from scaleacross.workloads.problem import Problem
from scaleacross.workloads.space import left_out

DEFAULT_TIME_LIMIT_S = 60.0
SEARCH_SHARE: Final = 0.8
"""Of a limit in seconds the part of the search, where alternatives are to be found within it, too."""
MAX_CLIMBS: Final = 4
"""Times that a faster alternative takes the place of the plan."""


def plan(
    job: Job | str | Path,
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    seed: int = 0,
    gap_tolerance: float = 0.0,
    overrides: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    incumbents: Sequence[Decision] = (),
    alternatives: bool = True,
    referee: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    stopped: Callable[[], bool] = never,
    work_limit: int | None = None,
    simulated: bool = True,
) -> Plan:
    """The best plan for a job by its objective (least step time by default), verified, with its bound and what lost.

    Args:
        job: a Job, a path, or the name of a job of the catalogue.
        time_limit_s: seconds of search; the best plan so far is returned with its gap when it ends.
        seed: of the solver; equal seeds give equal plans.
        gap_tolerance: relative gap at which the search stops; what remains is reported.
        overrides: ``a.b.c=value`` on any field of the job.
        progress: called now and then during the search.
        incumbents: placed, legal decisions that fit; the plan is never slower than any of them (objective step_time only).
        alternatives: look for what lost, and by how much; False saves that time and leaves ``report.alternatives`` empty.
        referee: simulate so many of the best decisions, beyond the limit, and every incumbent whose estimate is below the
            fastest simulation; the fastest simulation becomes the plan (objective step_time only), bound and gap stay those of
            estimates. None: one, or four where the simulation of the best takes more than 5 % longer than its estimate; no
            simulation without ``simulated``.
        clock: what the limit is measured with; ``time.process_time`` makes the plan independent of what else the machine does.
        stopped: asked as the clock is; once true, the search ends with the best plan so far and its gap.
        work_limit: step times that are computed, in place of any limit in seconds: the plan is the same on every
            machine, whatever else it does. It is exceeded only until there is a first plan.
        simulated: move layers between chunks (``move_layers``), simulate the plan, beyond the limit, and state the simulated
            step (``stated``); bounds and gap are those of its estimate. False: what the search found, by its estimate.

    Raises:
        InputError: the job is wrong.
        InfeasibleError: no plan fits; the message says what would help.
        TimeLimitError: the time limit ended before a plan within limits on other objectives (``plan_problem``).
        VerificationError: the plan does not recompute (a bug: please report it).
    """
    problem = problem_of(job, overrides)
    time_limit_s, clock = (time_limit_s, clock) if work_limit is None else (work_limit, WorkClock())
    return plan_problem(
        problem,
        {},
        time_limit_s=time_limit_s,
        seed=seed,
        gap_tolerance=gap_tolerance,
        progress=progress,
        incumbents=incumbents,
        alternatives=alternatives,
        referee=referee,
        clock=clock,
        stopped=stopped,
        simulated=simulated,
    )


def plan_problem(
    problem: Problem,
    limits: Limits,
    *,
    time_limit_s: float,
    seed: int,
    gap_tolerance: float,
    progress: Callable[[Progress], None] | None,
    incumbents: Sequence[Decision] = (),
    alternatives: bool = True,
    referee: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    stopped: Callable[[], bool] = never,
    simulated: bool = False,
) -> Plan:
    """The best plan by the job's objective, with other objectives kept to ``limits``. Raises as ``plan`` does."""
    report, goal = progress or (lambda _: None), goal_of(problem, limits)
    _require_referee(referee, goal)
    placer_on = partial(goal_placer, goal) if goal else None
    one_building = InOneBuilding(placer_on)
    state = search(
        problem,
        time_limit_s=time_limit_s,
        seed=seed,
        gap_tolerance=gap_tolerance,
        report=report,
        placer_on=placer_on and partial(placer_on, problem),
        probed=one_building.probe,
        incumbents=() if goal else incumbents,
        clock=clock,
        stopped=stopped,
        share=SEARCH_SHARE if alternatives and not limits else 1.0,
    )
    best = state.best
    if best is None and state.out_of_time:
        raise TimeLimitError(
            f"No plan within {min(time_limit_s, state.seconds):g} s: {state.num_candidates:,} candidates seen. "
            "Raise the time limit."
        )
    if best is None and limits and closest_candidate(problem) is not None:
        kept = ", ".join(f"{name} {value:g}" for name, value in limits.items())
        raise InfeasibleError(f"No plan of '{problem.job.name}' keeps to {kept}: loosen the limit.")
    if best is None:
        raise explain(state)
    networks = PlacedNetworks(state)
    named = alternatives and not limits
    others_of = partial(alternatives_to, networks=networks, alone_of=one_building.of) if named else _none
    moves = simulated and not goal and not gap_tolerance  # who leaves a gap does not ask for the last percent
    placed, networked, others = _settled(state, best, networks, others_of, alone=goal is not None, moves=moves)
    played: SteadyStep | None = None
    finalists: tuple[Finalist, ...] = ()
    if referee or (simulated and not goal):
        with state.beyond_limit():
            (chosen, networked), played, finalists = refereed(
                state, (placed, networked), referee, partial(_plan_of, state)
            )
        others = others if chosen is placed else others_of(state, chosen, networked.cost)
        finalists = finalists if referee or len(finalists) > 1 else ()
    solved = (
        _goal_report(state, goal, networked, limits, others)
        if goal
        else _search_report(state, networked.decision, networked.cost, others, finalists)
    )
    found = assemble(problem, networked.decision, networked.cost, solved, network_report(problem, networked))
    state.tell("verifying", state.num_candidates)
    checks.verify(found)
    return stated(found, problem, played) if simulated else found


def _settled(
    state: Search,
    best: Placed,
    networks: PlacedNetworks,
    others_of: Callable[[Search, Placed, PlanCost], tuple[Alternative, ...]],
    *,
    alone: bool,
    moves: bool = False,
) -> tuple[Placed, Networked, tuple[Alternative, ...]]:
    """The best by estimate with its network, and its alternatives. Where one of these is faster, that is the best: the time limit
    may have ended the search, and the best network that a plan can have may take longer than the ideal that the search compared.

    Args:
        others_of: the alternatives to a placed candidate with the cost of its plan.
        alone: only the incumbent gets a network, since its figure is a score (``_with_best_network``).
        moves: whether layers are moved (``move_layers``).
    """
    improved = partial(best_with_moved_layers, state, networks=networks) if moves else _as_it_is
    placed, networked = improved(_with_best_network(state, best, networks, alone=alone))
    others = others_of(state, placed, networked.cost)
    for _ in range(MAX_CLIMBS):
        step_s = networked.cost.cost.step_s * (1 - TOLERANCE)
        is_slower = not alone and any(one.step_s is not None and one.step_s < step_s for one in others)
        if state.best is None or (state.best is best and not is_slower):
            break
        best = state.best
        if not alone and not is_slower and best.step_s >= step_s:
            break  # it beats what the search found, but not that with layers moved
        found = improved(_with_best_network(state, best, networks, alone=alone))
        if found[0] is placed or (not alone and found[1].cost.cost.step_s >= step_s):
            break
        placed, networked = found
        others = others_of(state, placed, networked.cost)
    return placed, networked, others


def _as_it_is(found: tuple[Placed, Networked]) -> tuple[Placed, Networked]:
    """Where layers are not moved."""
    return found


def _none(*_: object) -> tuple[Alternative, ...]:
    """Where alternatives are not asked for."""
    return ()


def _with_best_network(
    state: Search, best: Placed, networks: PlacedNetworks, *, alone: bool
) -> tuple[Placed, Networked]:
    """The placed candidate whose step is shortest with its own network; the search priced ideal networks.

    No candidate is faster than its ideal, so they are tried in that order until the next ideal is not below the best; once the
    limit has passed, those alone whose networks are known.

    Args:
        alone: only the incumbent, whose figure is a score.
    """
    found: tuple[Placed, Networked] | None = None
    refused: InfeasibleError | None = None
    others = [] if alone else [one for one in sorted(state.pool, key=lambda one: one.step_s) if one is not best]
    for placed in (best, *others):
        if found is not None and placed.step_s >= found[1].cost.cost.step_s * (1 - TOLERANCE):
            break
        if found is not None and state.past_limit and not networks.knows(placed):
            continue
        try:
            other = placed, networks.of(placed)
        except InfeasibleError as error:
            refused = refused or error
            continue
        found = other if found is None else min(found, other, key=lambda one: one[1].cost.cost.step_s)
    if found is None:
        raise refused or InfeasibleError("nothing was placed")
    return found


def _require_referee(number: int | None, goal: Goal | None) -> None:
    if number is not None and number < 1:
        raise InputError(f"a referee of {number} finalists decides nothing: give 1 or more")
    if number is not None and goal is not None:
        raise InputError("the referee compares step times: it cannot decide on another objective or under limits")


def _plan_of(state: Search, networked: Networked) -> Plan:
    """The plan of a finalist, for its simulation."""
    report = _search_report(state, networked.decision, networked.cost)
    return assemble(state.problem, networked.decision, networked.cost, report, degraded=False)


def _chunks(state: Search, decision: Decision, step_s: float) -> tuple[str, ...]:
    """What no bound covers where ranks hold several chunks."""
    if decision.pipeline.num_chunks == 1 or decision.degrees.pp == 1 or state.problem.job.stages == "equal":
        return ()
    note = "the bound is one on layouts whose chunks are as equal as possible"
    if state.bound_s > step_s * (1 + TOLERANCE):
        return (f"{note}, {state.bound_s:.4g} s; layers moved from the busiest rank make the step shorter than these",)
    return (note,)


def _search_report(
    state: Search,
    decision: Decision,
    cost: PlanCost,
    others: tuple[Alternative, ...] = (),
    finalists: tuple[Finalist, ...] = (),
) -> SolveReport:
    step_s = cost.cost.step_s
    bounds = search_bounds(state, step_s)
    bound_s = min(step_s, max(bound.step_s for bound in bounds))
    gap = (step_s - bound_s) / step_s
    return SolveReport(
        objective_s=step_s,
        bound_s=bound_s,
        gap=gap,
        bounds=bounds,
        alternatives=others,
        finalists=finalists,
        **_found(state, gap, timed=True, notes=_chunks(state, decision, step_s)),
    )


def _goal_report(
    state: Search, goal: Goal, networked: Networked, limits: Limits, others: tuple[Alternative, ...]
) -> SolveReport:
    """The report of a search whose times are scores: its bound is one on spending, those on time are arithmetic."""
    problem, cost, decision = state.problem, networked.cost, networked.decision
    step_s = cost.cost.step_s
    value = objective_value(problem, cost, decision, goal.measure.spent(state.bound_s))
    bounds = arithmetic_bounds(problem)
    bound_s = max(bound.step_s for bound in bounds)
    if value is None:  # the step time within limits: the score is the step time
        bound_s = state.bound_s
        gap = (step_s - bound_s) / step_s
    else:
        gap = (value.spent_per_step - value.spent_bound_per_step) / value.spent_per_step
    return SolveReport(
        objective_s=step_s,
        bound_s=bound_s,
        gap=gap,
        objective=value,
        limits=dict(limits),
        bounds=bounds,
        alternatives=tuple(_with_value(problem, value, one) for one in others),
        **_found(state, gap, timed=value is None),
    )


def _with_value(problem: Problem, won: ObjectiveValue | None, other: Alternative) -> Alternative:
    """An alternative whose reason begins with what it loses of the objective."""
    if won is None or other.step_s is None:
        return other
    lost = value_of(problem, won.name, cost_of(problem, other.decision), other.decision)
    return other.model_copy(update={"reason": f"{1 - lost / won.value:.1%} less {won.name}; {other.reason}"})


def _headroom(state: Search, timed: bool) -> Headroom | None:
    """What the search knows of candidates that only the job's headroom rules out."""
    fraction = state.problem.job.memory_headroom_fraction
    if not fraction:
        return None
    bound_s = state.headroom_bound_s if timed and state.headroom_bound_s < math.inf else None
    return Headroom(fraction=fraction, num_candidates=state.num_headroom, bound_s=bound_s)


def _found(state: Search, gap: float, timed: bool, notes: Sequence[str] = ()) -> dict[str, Any]:
    """What every report says about the search itself."""
    problem = state.problem
    narrow = left_out(problem.job, problem.profile, problem.topology)
    told = [*notes, *state.left_out, *([narrow] if narrow else [])]
    if state.work_limit is not None and state.out_of_time:
        told.append(f"the work limit of {state.work_limit:,} computed step times ended the search")
    elif state.past_limit and not state.stopped():
        told.append("the limit came before every alternative had been tried: the next best may be others")
    if state.stopped():
        told.append("the search was stopped by hand: what it had not placed by then is what the gap leaves open")
    if state.bound_violation_s > 1e-9:
        told.append(
            f"a relaxed bound exceeded an exact cost by {state.bound_violation_s:.3g} s: the gap is not a proof here"
        )
    return {
        "status": "time_limit" if state.out_of_time else "optimal" if gap <= TOLERANCE else "gap_tolerance",
        "num_candidates": state.num_candidates,
        "num_infeasible": dict(state.refused),
        "headroom": _headroom(state, timed),
        "num_pruned": state.num_pruned,
        "num_placed": len(state.pool),
        "seconds": state.seconds,
        "seed": state.seed,
        "versions": versions(),
        "notes": tuple(told),
    }
