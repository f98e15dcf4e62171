"""The verbs behind the public door: plan, evaluate, verify, emit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from scaleacross import catalogue
from scaleacross import verification as checks
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.cost_models.settings import settings_of
from scaleacross.cost_models.work import work_of
from scaleacross.emitters import emit as write_target
from scaleacross.errors import InfeasibleError, InputError, TimeLimitError
from scaleacross.solvers.alternatives import alternatives, decision_of
from scaleacross.solvers.bounds import compute_bound, search_bounds
from scaleacross.solvers.candidates import Pricing
from scaleacross.solvers.fleets import fleets, shares
from scaleacross.solvers.infeasible import explain
from scaleacross.solvers.joint import PLACE_LIMIT_S, Search, search
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.spec.job import Job
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision, Plan, SolveReport
from scaleacross.spec.progress import Progress
from scaleacross.validation.crosscheck import CrossCheck
from scaleacross.validation.crosscheck import cross_check as validation_cross_check
from scaleacross.validation.runs import Run, read_runs
from scaleacross.validation.score import Validation, validate_runs
from scaleacross.workloads.problem import Problem

REPORTED_VERSIONS = ("scaleacross", "ortools", "numpy", "pydantic")
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
    problem = _problem(job, overrides)
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
    found = _assemble(problem, decision, _cost(problem, decision), _search_report(state, best.step_s))
    state.tell("verifying", state.num_candidates)
    checks.verify(found)
    return found


def evaluate(source: Plan | str | Path | tuple[Job, Decision], *, overrides: Sequence[str] = ()) -> Plan:
    """Price settings that the user brings; ``report.status`` is ``evaluated`` and the only bound is arithmetic.

    A decision without placement gets the best one (a note says so). A plan that does not fit in memory is priced all the same and
    carries a note; it will not verify.

    Raises:
        InputError: the file, the job or the decision is wrong, or breaks a rule; every broken rule is listed.
        InfeasibleError: no fill of the topology holds the degrees.
    """
    job, decision = _job_and_decision(source)
    problem = _problem(job, overrides)
    notes: list[str] = []
    broken = checks.refused_rules(problem, decision)
    if broken:
        raise InputError(f"'{job.name}' cannot run like this:\n" + "\n".join(f"- {line}" for line in broken))
    if decision.placement is None:
        decision = _place(problem, decision)
        notes.append("the settings name no placement: the best one was chosen")
    broken = list(checks.illegal(problem, decision))
    if broken:
        raise InputError(f"'{job.name}' cannot be placed like this:\n" + "\n".join(f"- {line}" for line in broken))
    cost = _cost(problem, decision)
    notes += [f"does not fit: {line}" for line in checks.does_not_fit(cost.memory)]
    return _assemble(problem, decision, cost, _evaluation_report(problem, cost, notes))


def verify(plan: Plan) -> None:
    """Recompute everything a plan states, without the solver. Raises VerificationError listing what is wrong."""
    checks.verify(plan)


def emit(plan: Plan | str | Path, target: str, directory: str | Path) -> list[Path]:
    """Verify a plan and write the files of one target into ``directory``.

    Raises:
        EmitError: the target cannot express the plan; the message names what.
        InputError: unknown target, or not a plan.
        VerificationError: the plan does not verify.
    """
    loaded = plan if isinstance(plan, Plan) else catalogue.load_plan(plan)
    checks.verify(loaded)
    return write_target(loaded, target, directory)


def validate(runs: str | Path | Sequence[Run]) -> Validation:
    """Predict measured training runs without looking at what was measured, then compare.

    Args:
        runs: a CSV file (columns as in ``validation.runs.Run``), or its rows.

    Raises:
        InputError: the file cannot be read, or none of its rows can be expressed.
    """
    return validate_runs(read_runs(runs) if isinstance(runs, str | Path) else runs)


def cross_check(validation: Validation) -> CrossCheck:
    """Errors with parameters refitted without each row's model, and without its source (about a minute per 400 rows)."""
    return validation_cross_check(validation)


def _problem(job: Job | str | Path, overrides: Sequence[str]) -> Problem:
    problem = catalogue.resolve(catalogue.load_job(job, overrides))
    for building in problem.topology.buildings:
        if problem.job.precision not in building.accelerator.peak_flop_per_s:
            known = ", ".join(building.accelerator.peak_flop_per_s)
            raise InputError(
                f"job '{problem.job.name}': precision {problem.job.precision} is not stated for {building.accelerator.name} "
                f"in building '{building.name}'; it has {known}"
            )
    return problem


def _job_and_decision(source: Plan | str | Path | tuple[Job, Decision]) -> tuple[Job, Decision]:
    loaded = catalogue.load_plan_or_decision(source) if isinstance(source, str | Path) else source
    return (loaded.job, loaded.decision) if isinstance(loaded, Plan) else loaded


def _place(problem: Problem, decision: Decision) -> Decision:
    """The decision with the best placement that any fleet offers."""
    settings = settings_of(decision, problem.job.global_batch_sequences)
    best: tuple[float, Placement] | None = None
    for fleet in fleets(problem.topology):
        pricing = Pricing.on(fleet, problem.job, problem.profile)
        work = work_of(problem.profile, problem.job, pricing.accelerators, settings)
        placed = Placer(fleet, pricing).place(settings, work, PLACE_LIMIT_S)
        if placed is None:
            continue
        placement = Placement(axis_order=placed.axis_order, fill=shares(placed.fill))
        step_s = _cost(problem, decision.model_copy(update={"placement": placement})).cost.step_s
        if best is None or step_s < best[0]:
            best = (step_s, placement)
    if best is None:
        raise InfeasibleError(
            f"{decision.degrees} does not fit into {problem.topology.num_accelerators:,} accelerators in whole hosts: "
            "lower a degree or add accelerators"
        )
    return decision.model_copy(update={"placement": best[1]})


def _cost(problem: Problem, decision: Decision) -> PlanCost:
    return plan_cost(problem.job, problem.profile, problem.topology, decision)


def _assemble(problem: Problem, decision: Decision, cost: PlanCost, report: SolveReport) -> Plan:
    return Plan(
        job=problem.job,
        decision=decision.model_copy(update={"placement": cost.placement}),
        layers_per_stage=cost.layers_per_stage,
        num_micro_batches=cost.num_micro_batches,
        cost=cost.cost,
        memory=cost.memory,
        traffic=cost.traffic,
        collectives=cost.collectives,
        report=report,
    )


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
        versions=_versions(),
        alternatives=alternatives(state, best) if best else (),
        notes=tuple(notes),
    )


def _evaluation_report(problem: Problem, cost: PlanCost, notes: Sequence[str]) -> SolveReport:
    bound = compute_bound(problem)
    step_s = cost.cost.step_s
    return SolveReport(
        status="evaluated",
        objective_s=step_s,
        bound_s=bound.step_s,
        gap=(step_s - bound.step_s) / step_s,
        bounds=(bound,),
        num_candidates=1,
        num_pruned=0,
        num_placed=1,
        seconds=0.0,
        seed=0,
        versions=_versions(),
        notes=tuple(notes),
    )


def _versions() -> dict[str, str]:
    out = {}
    for package in REPORTED_VERSIONS:
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            out[package] = "not installed"
    return out
