"""The verb plan: search, simulate finalists, assemble, verify."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from scaleacross import verification as checks
from scaleacross.api.arguments import instances, search_arguments, whole_numbers
from scaleacross.api.assemble import assemble
from scaleacross.api.loosening import how_far
from scaleacross.api.objectives import NO_LIMITS, Limits, goal_of
from scaleacross.api.problems import problem_of
from scaleacross.api.refereeing import Refereed, refereed
from scaleacross.api.solve_report import goal_report, search_report
from scaleacross.api.stated import noted, stated
from scaleacross.errors import InfeasibleError, InputError, TimeLimitError
from scaleacross.solvers import quick_space
from scaleacross.solvers.alternatives import alternatives as alternatives_to
from scaleacross.solvers.infeasible import closest_candidate, explain
from scaleacross.solvers.joint import search
from scaleacross.solvers.network_of_plan import Networked
from scaleacross.solvers.network_report import network_report
from scaleacross.solvers.objectives import Goal, goal_placer
from scaleacross.solvers.one_building import InOneBuilding
from scaleacross.solvers.one_thread import one_thread
from scaleacross.solvers.place_parallelism import never
from scaleacross.solvers.placed_networks import PlacedNetworks
from scaleacross.solvers.search_state import Placed, Search
from scaleacross.solvers.settle import settled
from scaleacross.solvers.work_limit import WorkClock
from scaleacross.spec.job import Job
from scaleacross.spec.plan import OF_FINALISTS, Alternative, Decision, Plan
from scaleacross.spec.progress import Progress
from scaleacross.workloads.problem import Problem

DEFAULT_TIME_LIMIT_S = 60.0
SEARCH_SHARE: Final = 0.8
"""Fraction of a limit in seconds that the search gets where alternatives must be found within the same limit."""


@one_thread
def plan(
    job: Job | str | Path | Problem,
    *,
    limits: Limits = NO_LIMITS,
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
    """Return the best plan found for a job by its objective (least step time by default), verified, with its bound.

    Args:
        job: a Job, a path, a catalogue name, or a resolved Problem, to which ``overrides`` do not apply.
        limits: limits on other objectives: step time in seconds at most, tokens per unit spent at least.
        time_limit_s: seconds of search; when it ends, the best plan so far is returned with its gap.
        seed: seed of the solver; equal seeds give equal plans.
        gap_tolerance: relative gap at which the search stops; the remaining gap is reported.
        overrides: ``a.b.c=value`` on any field of the job.
        progress: called now and then during the search.
        incumbents: placed, legal decisions that fit; with objective step_time the plan is never slower than they are.
        alternatives: find the runner-up of every decision and its loss; False leaves ``report.alternatives`` empty.
        referee: number of best decisions to simulate beyond the limit (objective step_time only), with incumbents of
            lower estimates. The fastest simulation becomes the plan. None: up to four near the best (``refereeing``).
        clock: clock of the limit; with ``time.process_time`` other load on the machine does not change the plan.
        stopped: polled as often as the clock; once true, the search ends with the best plan so far and its gap.
        work_limit: step times to compute instead of seconds, so equal on every machine; a first plan may exceed it.
        simulated: move layers between chunks, simulate the plan beyond the limit, and state that step; False: by estimate.

    Returns:
        A Plan; ``cost.step_s`` in seconds. Bound, gap and alternatives of ``report`` refer to ``estimated.step_s``.

    Raises:
        InputError: the job is wrong, or an argument is of a wrong type or size.
        InfeasibleError: no plan fits; the message says what would help.
        TimeLimitError: the time limit ended before a plan within ``limits``.
        VerificationError: the plan does not recompute (a bug: please report it).
    """
    search_arguments(time_limit_s, gap_tolerance=gap_tolerance, seed=seed, work_limit=work_limit)
    whole_numbers(referee=referee)
    instances("incumbents", incumbents, Decision, "Decision (plan.decision)")
    problem = job if isinstance(job, Problem) else problem_of(job, overrides)
    time_limit_s, clock = (time_limit_s, clock) if work_limit is None else (work_limit, WorkClock())
    goal, named = goal_of(problem, limits), alternatives and not limits
    _require_referee(referee, goal)
    placer_on = partial(goal_placer, goal) if goal else None
    one_building = InOneBuilding(placer_on)
    state = search(
        problem,
        time_limit_s=time_limit_s,
        seed=seed,
        gap_tolerance=gap_tolerance,
        report=progress or (lambda _: None),
        placer_on=placer_on and partial(placer_on, problem),
        probed=(partial(quick_space.probe, placer_on=placer_on), one_building.probe),
        incumbents=() if goal else incumbents,
        clock=clock,
        stopped=stopped,
        share=SEARCH_SHARE if named else 1.0,
    )
    networks = PlacedNetworks(state)
    others_of = partial(alternatives_to, networks=networks, alone_of=one_building.of) if named else lambda *_: ()
    moves = simulated and not gap_tolerance and (goal is None or goal.falls_with_step_time)  # the last percent
    best = _best_of(state, limits)
    placed, networked, others = settled(state, best, networks, others_of, alone=goal is not None, moves=moves)
    won = Refereed((placed, networked), None, ())
    if referee or (simulated and not goal):
        with state.beyond_limit():
            won = refereed(state, won.choice, referee, partial(_plan_of, state))
        # the alternatives are those to the winner, so they are searched again where the simulation changed it
        others = others if won.choice[0] is placed else others_of(state, won.choice[0], won.choice[1].cost)
    found = _verified(state, goal, limits, won, others, referee)
    return stated(found, problem, won.simulated) if simulated else found


def _best_of(state: Search, limits: Limits) -> Placed:
    """Return the best placed decision of a finished search. Raises as ``plan`` where there is none."""
    if state.best is not None:
        return state.best
    if state.out_of_time:
        raise TimeLimitError(
            f"No plan within {min(state.time_limit_s, state.seconds):g} s: {state.num_candidates:,} candidates seen. "
            "Raise the time limit."
        )
    if limits and closest_candidate(state.problem) is not None:
        kept = ", ".join(f"{name} {value:g}" for name, value in limits.items())
        raise InfeasibleError(f"No plan of '{state.problem.job.name}' keeps to {kept}. {how_far(state, limits)}.")
    raise explain(state)


def _require_referee(number: int | None, goal: Goal | None) -> None:
    if number is not None and number < 1:
        raise InputError(f"a referee of {number} finalists decides nothing: give 1 or more")
    if number is not None and goal is not None:
        raise InputError("the referee compares step times: it cannot decide on another objective or under limits")


def _verified(
    state: Search,
    goal: Goal | None,
    limits: Limits,
    won: Refereed,
    others: tuple[Alternative, ...],
    asked: int | None,
) -> Plan:
    """Assemble the plan with its reports, by its estimate, and verify it; ``asked`` is the number of finalists wanted."""
    networked, finalists = won.choice[1], won.finalists
    solved = (
        goal_report(state, goal, networked, limits, others)
        if goal
        else search_report(state, networked, others, finalists)
    )
    network = network_report(state.problem, networked)
    found = assemble(state.problem, networked.decision, networked.cost, solved, network)
    if asked and len(finalists) < asked:
        found = noted(found, f"{OF_FINALISTS}{asked} asked for, no more within reach of the best estimate")
    state.tell("verifying", state.num_candidates)
    checks.verify(found)
    return found


def _plan_of(state: Search, networked: Networked) -> Plan:
    """Assemble the plan of a finalist for its simulation."""
    return assemble(state.problem, networked.decision, networked.cost, search_report(state, networked), degraded=False)
