"""The verb refine_schedule: search a better order of actions for a plan's pipeline step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from scaleacross.api.arguments import search_arguments
from scaleacross.api.assemble import cost_of
from scaleacross.api.evaluation import evaluate
from scaleacross.api.problems import problem_of
from scaleacross.api.stated import noted
from scaleacross.catalogue import load_plan
from scaleacross.cost_models.pipeline.timeline import PlannedPipeline, planned_pipeline
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.schedules.pipeline import Kind
from scaleacross.schedules.pipeline.cells import to_rows
from scaleacross.solvers.order_pipeline import order_pipeline
from scaleacross.solvers.pipeline_order.of_plan import problem_of_plan
from scaleacross.solvers.place_parallelism import never
from scaleacross.spec.parallelism import PipelineChoice, ScheduleName
from scaleacross.spec.plan import Decision, Plan, StageMemory
from scaleacross.spec.progress import ORDERS_STOPPED, Progress
from scaleacross.workloads.problem import Problem

FINALIST_RATIO: Final = 1.25
"""Largest step time of an alternative relative to the plan's at which its own order may still overtake the plan."""
MAX_FINALISTS: Final = 4

_SPLIT_FAMILIES: Final[dict[tuple[str, bool], ScheduleName]] = {
    ("loop", False): "ZBH1",
    ("loop", True): "InterleavedZeroBubble",
    ("v", True): "ZBVZeroBubble",
}
"""(placement, several chunks) -> the schedule family with a split backward pass and the same stages."""


def refine_schedule(
    source: Plan | str | Path,
    time_limit_s: float = 60.0,
    *,
    seed: int = 0,
    progress: Callable[[Progress], None] = lambda _: None,
    stopped: Callable[[], bool] = never,
) -> Plan:
    """Return the plan with the best order found for its pipeline, or the same plan where none is faster by estimate.

    Degrees, stages, links and memory stay as they are. The backward pass is split where the job allows a schedule that
    splits it (ZBH1; with chunks InterleavedZeroBubble or ZBVZeroBubble). A note states the order's bound and gap. The
    step time is that of ``evaluate``.

    Args:
        source: a Plan or the path of one.
        time_limit_s: seconds of search.
        seed: seed of the search.
        progress: called during the search.
        stopped: polled as often as the clock; once true, the search ends with the best order so far.

    Raises:
        InputError: the plan cannot be read, has no pipeline, does not fit in memory, or holds two copies of the model
            (DualPipe); or its replicas run different numbers of micro-batches.
    """
    search_arguments(time_limit_s, seed=seed)
    plan = source if isinstance(source, Plan) else load_plan(source)
    problem, decision = problem_of(plan.job, ()), plan.decision
    if decision.batch_shares is not None:
        each = ", ".join(str(share.num_micro_batches) for share in decision.batch_shares)
        raise InputError(f"replicas run different numbers of micro-batches ({each}); an order is of one number")
    pipe = planned_pipeline(problem, decision)
    if pipe.schedule.num_copies > 1:
        raise InputError(f"{pipe.schedule.name} holds two copies of the model; orders are searched for one copy only")
    split_family = _SPLIT_FAMILIES[pipe.schedule.placement, pipe.schedule.num_chunks > 1]
    family = split_family if split_family in plan.job.schedules else decision.pipeline.schedule
    split = family == split_family or any(action.kind is Kind.I for action in pipe.schedule.actions[0])
    try:
        open_order = problem_of_plan(pipe, _memory_of_order(problem, decision, pipe), split=split)
    except InfeasibleError as error:
        raise InputError(f"the plan does not fit in memory, so no order of it does: {error}") from error
    order = order_pipeline(open_order, time_limit_s, seed=seed, report=progress, stopped=stopped)
    choice = PipelineChoice(
        schedule=family,
        num_chunks=decision.pipeline.num_chunks,
        micro_batch_sequences=decision.pipeline.micro_batch_sequences,
        order=to_rows(order.schedule),
    )
    refined = evaluate((plan.job, decision.model_copy(update={"pipeline": choice})))
    if refined.estimated.step_s >= plan.estimated.step_s or not all(stage.fits for stage in refined.memory):
        return plan
    note = (
        f"order of the pipeline step: {order.status}, {order.objective_s:.4g} s, no order of these stages takes less than "
        f"{order.bound_s:.4g} s (gap {order.gap:.2%})"
    )
    return noted(refined, f"{note}; {ORDERS_STOPPED}" if stopped() else note)


def refine_finalists(
    plan: Plan,
    time_limit_s: float = 60.0,
    *,
    seed: int = 0,
    progress: Callable[[Progress], None] = lambda _: None,
    stopped: Callable[[], bool] = never,
) -> Plan:
    """Return the best result of ``refine_schedule`` over a plan and its close alternatives.

    A search ranks families of schedules. Its own order gains more where messages are slow, so the runner-up may
    overtake. Finalists are the plan and its fastest alternatives with a pipeline, within ``FINALIST_RATIO`` of its step
    time. The plan itself is returned when no order is faster. A refined plan keeps the search's result on named
    schedules as a note, because its own order is outside that space.

    Args:
        plan: the plan, with its alternatives.
        time_limit_s: seconds for all finalists together; each gets an equal share.
        seed: seed of the search.
        progress: called during the search.
        stopped: polled as often as the clock; once true, the search ends with the best plan so far, and a note says so.
    """
    near = [
        one.decision
        for one in sorted(plan.report.alternatives, key=lambda one: one.step_s or float("inf"))
        if one.step_s is not None
        and one.step_s <= FINALIST_RATIO * plan.estimated.step_s
        and one.decision.degrees.pp > 1
    ]
    others = [evaluate((plan.job, decision)) for decision in near[: MAX_FINALISTS - 1]]
    finalists = [one for one in (plan, *others) if one.degrees.pp > 1 and all(stage.fits for stage in one.memory)]
    best, given = plan, 0
    for finalist in finalists:
        if stopped():
            break
        given += 1
        refined = refine_schedule(
            finalist, time_limit_s / len(finalists), seed=seed, progress=progress, stopped=stopped
        )
        if refined.estimated.step_s < best.estimated.step_s:
            best = refined
    if best is plan:
        return noted(plan, ORDERS_STOPPED) if finalists and stopped() else plan
    note = (
        f"among named schedules the search found {plan.report.objective_s:.4g} s ({plan.report.status}, gap "
        f"{plan.report.gap:.2%}); {given} finalists were given orders of their own"
    )
    told = any(ORDERS_STOPPED in own for own in best.report.notes)
    return noted(best, f"{note}; {ORDERS_STOPPED}" if stopped() and not told else note)


def _memory_of_order(problem: Problem, decision: Decision, pipe: PlannedPipeline) -> tuple[StageMemory, ...]:
    """Return stage memories with the plan's order counted action by action, not by the formula of its family."""
    kept = decision.pipeline.model_copy(update={"order": to_rows(pipe.schedule)})
    return cost_of(problem, decision.model_copy(update={"pipeline": kept})).memory
