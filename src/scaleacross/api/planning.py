"""The verb plan: search, assemble, verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from scaleacross import verification as checks
from scaleacross.api.assemble import assemble, cost_of, problem_of, versions
from scaleacross.errors import TimeLimitError
from scaleacross.solvers.alternatives import alternatives
from scaleacross.solvers.bounds import search_bounds
from scaleacross.solvers.infeasible import explain
from scaleacross.solvers.joint import Search, decision_of, search
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan, SolveReport
from scaleacross.spec.progress import Progress

DEFAULT_TIME_LIMIT_S = 60.0


def plan(
    job: Job | str | Path,
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    seed: int = 0,
    gap_tolerance: float = 0.0,
    overrides: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
) -> Plan:
    """The fastest plan for a job, verified, with its bound and the alternatives that lost.

    Args:
        job: a Job, a path, or the name of a job of the catalogue.
        time_limit_s: seconds of search; the best plan so far is returned with its gap when it ends.
        seed: of the solver; equal seeds give equal plans.
        gap_tolerance: relative gap at which the search stops; what remains is reported.
        overrides: ``a.b.c=value`` on any field of the job.
        progress: called now and then during the search.

    Raises:
        InputError: the job is wrong.
        InfeasibleError: no plan fits; the message says what would help.
        TimeLimitError: the time limit ended before the first plan.
        VerificationError: the plan does not recompute (a bug: please report it).
    """
    problem = problem_of(job, overrides)
    report = progress or (lambda _: None)
    state = search(problem, time_limit_s=time_limit_s, seed=seed, gap_tolerance=gap_tolerance, report=report)
    best = state.best
    if best is None and state.out_of_time:
        raise TimeLimitError(
            f"No plan within {time_limit_s:g} s: {state.num_candidates:,} candidates seen. Raise the time limit."
        )
    if best is None:
        raise explain(state)
    decision = decision_of(best)
    found = assemble(problem, decision, cost_of(problem, decision), _search_report(state, best.step_s))
    state.tell("verifying", state.num_candidates)
    checks.verify(found)
    return found


def _search_report(state: Search, step_s: float) -> SolveReport:
    seconds, bound_s, out_of_time = state.elapsed_s, state.bound_s, state.out_of_time
    bounds = search_bounds(state)
    gap = (step_s - bound_s) / step_s
    best = state.best
    notes = []
    if state.bound_violation_s > 1e-9:
        notes.append(
            f"a relaxed bound exceeded an exact cost by {state.bound_violation_s:.3g} s: the gap is not a proof here"
        )
    return SolveReport(
        status="time_limit" if out_of_time else "optimal" if gap <= checks.TOLERANCE else "gap_tolerance",
        objective_s=step_s,
        bound_s=bound_s,
        gap=gap,
        bounds=bounds,
        num_candidates=state.num_candidates,
        num_infeasible=dict(state.refused),
        num_pruned=state.num_pruned,
        num_placed=len(state.pool),
        seconds=seconds,
        seed=state.seed,
        versions=versions(),
        alternatives=alternatives(state, best) if best else (),
        notes=tuple(notes),
    )
