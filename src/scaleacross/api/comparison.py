"""The verb compare: our plan and every baseline under one cost model, each simulated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scaleacross import verification as checks
from scaleacross.api.arguments import between, numbers, search_arguments
from scaleacross.api.assemble import cost_of, interval_of, probability_of_lead
from scaleacross.api.evaluation import evaluated
from scaleacross.api.planning import DEFAULT_TIME_LIMIT_S, plan
from scaleacross.api.problems import problem_of
from scaleacross.api.stated import stated
from scaleacross.errors import PluginError
from scaleacross.solvers.baselines import BASELINES, Clock
from scaleacross.solvers.work_limit import WorkClock
from scaleacross.spec.comparison import BaselineResult, Comparison
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Axis
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import CostBreakdown, Decision, Plan
from scaleacross.spec.progress import Progress, telling
from scaleacross.workloads.problem import Problem

DEFAULT_TIE_TOLERANCE = 0.005
DEFAULT_GAP_TOLERANCE = 0.005


def compare(
    job: Job | str | Path,
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    seed: int = 0,
    gap_tolerance: float = DEFAULT_GAP_TOLERANCE,
    tie_tolerance: float = DEFAULT_TIE_TOLERANCE,
    overrides: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    work_limit: int | None = None,
) -> Comparison:
    """Return our plan and all baselines, with their simulated step times.

    Our search starts from the baselines' decisions. A baseline whose estimate is below the simulation of our plan is
    simulated too, and the faster one becomes our plan (``refereeing``). So our plan is never slower than a baseline where
    the objective is step time. With another one it can be; ``objective_value`` then says what each plan reaches.

    Args:
        job: a Job, a path, or the name of a job of the catalogue.
        time_limit_s: seconds for our search, and for each baseline; a baseline that has found no plan by then gets
            twice that.
        seed: seed of the solver.
        gap_tolerance: relative gap at which our search stops.
        tie_tolerance: relative difference of step times that counts as a tie.
        overrides: ``a.b.c=value`` on any field of the job.
        progress: called now and then.
        clock: clock of ``time_limit_s``; ``time.process_time`` counts CPU seconds.
        work_limit: step times that our search, and each baseline, may compute, in place of ``time_limit_s``.

    Returns:
        A Comparison: our plan, and every baseline with its decision, step time in seconds, speed-up of ours, and the
        probability that ours is faster. A baseline without a plan has a reason instead.

    Raises:
        InputError: the job is wrong.
        InfeasibleError: no plan fits; then no baseline has one either.
        TimeLimitError: the time limit ended before the first plan.
    """
    search_arguments(time_limit_s, gap_tolerance=gap_tolerance, seed=seed, work_limit=work_limit)
    numbers(tie_tolerance=tie_tolerance)
    between(0, 1, tie_tolerance=tie_tolerance)
    problem = problem_of(job, overrides)
    limit = (time_limit_s, clock) if work_limit is None else (float(work_limit), WorkClock())
    report = progress or (lambda _: None)
    found = baseline_results(problem, limit[0], report, limit[1])
    ours = plan(
        problem.job,
        time_limit_s=time_limit_s,
        seed=seed,
        gap_tolerance=gap_tolerance,
        progress=progress,
        clock=clock,
        work_limit=work_limit,
        incumbents=[result.decision for result in found if result.decision is not None],
    )
    return comparison_of(problem, ours, _simulated(problem, found, report), tie_tolerance)


def _simulated(
    problem: Problem, results: Sequence[BaselineResult], report: Callable[[Progress], None]
) -> list[BaselineResult]:
    """Return the baselines with their simulated step times in place of estimates."""
    tell, out = telling(report), []
    for index, result in enumerate(results):
        tell(f"simulating {result.name}", index, len(results))
        if result.decision is not None:
            found = stated(evaluated(problem, result.decision, degraded=False), problem)
            result = _timed(problem, result, found.cost, found.placement)
            if found.report.objective is not None:
                result = result.model_copy(update={"objective_value": found.report.objective.value})
        out.append(result)
    return out


def baseline_results(
    problem: Problem,
    time_limit_s: float,
    report: Callable[[Progress], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[BaselineResult]:
    """Run every baseline; return its decision with its estimated step time, not yet compared with our plan.

    ``time_limit_s`` holds for each, in seconds of ``clock``.
    """
    tell, found = telling(report), []
    for index, name in enumerate(BASELINES):
        tell(f"baseline {name}", index, len(BASELINES))
        found.append(_result(problem, name, Clock(time_limit_s, clock)))
    return found


def comparison_of(problem: Problem, ours: Plan, found: Sequence[BaselineResult], tie_tolerance: float) -> Comparison:
    """Return our plan and the baselines, fastest first, with speed-ups, ties and the probability that ours is faster."""
    against = (_against(problem, result, ours, tie_tolerance) for result in found)
    results = sorted(against, key=lambda result: result.step_s or float("inf"))
    return Comparison(
        plan=ours,
        across=_across(ours.placement),
        tie_tolerance=tie_tolerance,
        rivals=tuple(results),
        matched=next((result.name for result in results if result.decision and same_plan(result.decision, ours)), None),
    )


def _result(problem: Problem, name: str, clock: Clock) -> BaselineResult:
    """Run a baseline, check its decision, and estimate its step time.

    An illegal decision is dropped, with the reason. So is a baseline of a broken package: the others are compared.
    """
    try:
        baseline = BASELINES[name]
        outcome = baseline.decide(problem, clock)
    except PluginError as error:
        return BaselineResult(name=name, title=name, source="an installed package", decision=None, reason=str(error))
    decision, reason, cost = outcome.decision, outcome.reason, None
    if decision is not None:
        wrong = list(checks.illegal(problem, decision))
        cost = None if wrong else cost_of(problem, decision)
        wrong += [*checks.does_not_fit(cost.memory), *checks.takes_headroom(cost.memory)] if cost else []
        if wrong:
            decision, cost, reason = None, None, "; ".join(wrong)
    result = BaselineResult(
        name=name,
        title=baseline.title,
        source=baseline.source,
        decision=decision,
        reason=reason,
        complete=outcome.complete,
    )
    return result if cost is None else _timed(problem, result, cost.cost, cost.placement)


def _timed(problem: Problem, result: BaselineResult, cost: CostBreakdown, placement: Placement) -> BaselineResult:
    figures = {
        "step_s": cost.step_s,
        "interval": interval_of(problem, placement, cost.step_s),
        "model_flop_per_s": cost.model_flop_per_s,
        "num_accelerators": placement.num_accelerators,
        "across": _across(placement),
    }
    return result.model_copy(update=figures)


def _against(problem: Problem, result: BaselineResult, ours: Plan, tie_tolerance: float) -> BaselineResult:
    if result.step_s is None:
        return result
    speed_up = result.step_s / ours.cost.step_s
    sure = probability_of_lead(problem, ours.cost.step_s, result.step_s)
    figures = {
        "speed_up": speed_up,
        "is_tie": abs(speed_up - 1) <= tie_tolerance,
        "probability_ours_faster": sure,
    }
    return result.model_copy(update=figures)


def _across(placement: Placement) -> tuple[Axis, ...]:
    return tuple(axis for axis, level in placement.spans.items() if level in ("campus", "region"))


def same_plan(decision: Decision, ours: Plan) -> bool:
    """Return whether two decisions are equal apart from the network and the spans.

    Only an evaluated placement states spans.
    """
    bare = ours.placement.model_copy(update={"spans": {}})
    named = decision.model_copy(update={"network": None})
    return named == ours.decision.model_copy(update={"placement": bare, "network": None})
