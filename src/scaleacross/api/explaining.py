"""The verb explain: why a plan was chosen, and what would change it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from scaleacross import catalogue
from scaleacross import verification as checks
from scaleacross.api.arguments import search_arguments
from scaleacross.api.assemble import interval_of, probability_of_lead
from scaleacross.api.evaluation import evaluate
from scaleacross.api.planning import DEFAULT_TIME_LIMIT_S
from scaleacross.api.problems import problem_of
from scaleacross.cost_models.goodput.what_if import paying_rate_factor, spare_break_even, units_break_even
from scaleacross.cost_models.sensitivity import Estimator, sensitivities
from scaleacross.solvers.network_of_plan import with_library_network
from scaleacross.solvers.runner_up import runner_ups
from scaleacross.solvers.work_limit import WorkClock
from scaleacross.spec.explanation import Explanation, FailureWhatIf, RunnerUp
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision, Plan
from scaleacross.spec.progress import Progress
from scaleacross.workloads.problem import Problem


def explain(
    source: Plan | str | Path | tuple[Job, Decision],
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    clock: Callable[[], float] = time.perf_counter,
    work_limit: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Explanation:
    """Return the runner-up of every decision, the binding resource of every phase, and all sensitivities.

    Args:
        source: a plan, a path, a catalogue name, or a job with a decision (which is evaluated first).
        time_limit_s: seconds for all runner-ups together, trials of placements included; what it cuts short says so.
        clock: clock of the limit; ``time.process_time`` counts CPU seconds.
        work_limit: step times to compute for all runner-ups together, in place of any limit in seconds.
        progress: called before every search.

    Returns:
        An Explanation. Times are in seconds and refer to the plan's estimate. Elasticities are per cent of step time
        per per cent of the figure.

    Raises:
        InputError: the file or the settings are wrong.
        VerificationError: a plan read from a file does not recompute.
    """
    search_arguments(time_limit_s, work_limit=work_limit)
    began = time.perf_counter()
    loaded = source if isinstance(source, Plan | tuple) else catalogue.load_plan_or_decision(source)
    if isinstance(source, str | Path) and isinstance(loaded, Plan):
        checks.verify(loaded, catalogue.step_errors())
    plan = loaded if isinstance(loaded, Plan) else evaluate(loaded)
    problem = problem_of(plan.job, ())
    if plan.decision.network is None:  # runner-ups then run the library's defaults too
        problem = with_library_network(problem)
    estimator = Estimator.of(problem.job, problem.profile, problem.topology, plan.decision)
    rows, phases = sensitivities(estimator)
    limit_s, clock = (time_limit_s, clock) if work_limit is None else (work_limit, WorkClock())
    told = progress or (lambda _: None)
    found = runner_ups(problem, plan.decision, time_limit_s=limit_s, seed=plan.report.seed, report=told, clock=clock)
    step_s = estimator.cost().cost.step_s
    return Explanation(
        name=plan.job.name,
        step_s=step_s,
        simulated_s=plan.simulated_s,
        interval=plan.interval or interval_of(problem, plan.placement, step_s),
        runner_ups=tuple(_with_lead(problem, step_s, one) for one in found),
        phases=phases,
        sensitivities=rows,
        network=plan.network.terms if plan.network else (),
        failures=_failures(problem, plan),
        seconds=time.perf_counter() - began,
    )


def _with_lead(problem: Problem, step_s: float, one: RunnerUp) -> RunnerUp:
    """Return the runner-up with the probability that the plan is faster in measurement."""
    if one.step_s is None or one.status == "best_found":
        return one
    return one.model_copy(update={"probability_plan_faster": probability_of_lead(problem, step_s, one.step_s)})


def _failures(problem: Problem, plan: Plan) -> FailureWhatIf | None:
    """Return break-even figures of fault units and spare hosts; None where the plan states no goodput."""
    if plan.goodput is None:
        return None
    model = plan.goodput.model
    hosts = sum(
        -(-share.num_accelerators // problem.topology.building(share.building).accelerators_per_host)
        for share in plan.placement.fill
    )
    return FailureWhatIf(
        units=units_break_even(model),
        paying_rate_factor=paying_rate_factor(model),
        spares=spare_break_even(model, hosts),
    )
