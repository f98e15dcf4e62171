"""V5 and V6: a plan's figures against those recomputed from its decision, and its proof against its own bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.cost_models.step_interval import interval_of
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import CostBreakdown, DegradedState, Plan
from scaleacross.spec.step_errors import StepErrors
from scaleacross.spec.step_work import PipelineWork
from scaleacross.workloads.problem import Problem

TOLERANCE: Final = 1e-6
"""Relative tolerance: far above floating-point noise, far below the accuracy of any model."""


def v5_figures(
    plan: Plan, cost: PlanCost, degraded: Sequence[DegradedState], work: Mapping[str, PipelineWork]
) -> Iterator[str]:
    """Yield every figure of the plan that does not recompute, and components that do not add up to the step time."""
    stated = _figures(plan, plan.estimated, plan.placement, plan.degraded)
    computed = _figures(cost, cost.cost, cost.placement, degraded)
    if plan.work is not None:  # a plan of an older version states less
        stated["work"], computed["work"] = ({k: v.model_dump() for k, v in each.items()} for each in (plan.work, work))
    for where, left, right in _unequal("", stated, computed):
        yield f"V5: {where} is stated as {left}, recomputes as {right}"
    parts = plan.cost.compute_s + plan.cost.bubble_s + plan.cost.optimizer_s + sum(plan.cost.exposed_s.values())
    if not math.isclose(parts, plan.cost.step_s, rel_tol=TOLERANCE):
        yield f"V5: the components add up to {parts} s, the step is stated as {plan.cost.step_s} s"
    if plan.estimate is not None:
        yield from _v5_simulated(plan, plan.estimate)


def v5_interval(plan: Plan, problem: Problem, errors: StepErrors) -> Iterator[str]:
    """Yield wrong figures of the interval in which measured step times are expected, given the stated step time."""
    if plan.interval is None:  # a plan of an older version
        return
    follows = interval_of(errors, problem, plan.placement, plan.cost.step_s)
    way_out = "'scaleacross evaluate PLAN -o DIR' states it by the constants at hand"
    for where, left, right in _unequal("interval", plan.interval.model_dump(), follows.model_dump()):
        yield f"V5: {where} is stated as {left}, follows as {right} from the step; {way_out}"


def _v5_simulated(plan: Plan, estimate: CostBreakdown) -> Iterator[str]:
    """Yield contradictions of the simulated step time and its rates with the estimate, without a new simulation."""
    if plan.simulated_s is None or not math.isclose(plan.simulated_s, plan.cost.step_s, rel_tol=TOLERANCE):
        yield f"V5: the step is stated as {plan.cost.step_s} s, its simulation as {plan.simulated_s} s"
    for name in ("tokens_per_s", "model_flop_per_s", "mfu"):
        stated, follows = getattr(plan.cost, name), getattr(estimate, name) * estimate.step_s / plan.cost.step_s
        if not math.isclose(stated, follows, rel_tol=TOLERANCE):
            yield f"V5: {name} is stated as {stated}, follows as {follows} from the step"


def _figures(
    source: Plan | PlanCost, step: CostBreakdown, placement: Placement, degraded: Sequence[DegradedState]
) -> dict[str, object]:
    """Return the figures that a plan and its recomputed cost have in common, as plain data."""
    return {
        "step": step.model_dump(),
        "traffic": [level.model_dump() for level in source.traffic],
        "collectives": [collective.model_dump() for collective in source.collectives],
        "layers_per_stage": source.layers_per_stage,
        "num_micro_batches": source.num_micro_batches,
        "spans": placement.spans,
        "degraded": [state.model_dump() for state in degraded],
    }


def _unequal(where: str, left: object, right: object) -> Iterator[tuple[str, object, object]]:
    """Yield (path, left, right) of every difference between nested values; floats are compared with ``TOLERANCE``."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in {**left, **right}:
            yield from _unequal(f"{where}.{key}".lstrip("."), left.get(key), right.get(key))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            yield from _unequal(f"{where}[{index}]", a, b)
    elif isinstance(left, float) and isinstance(right, float | int):
        if not math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=1e-12):
            yield where, left, right
    elif left != right:
        yield where, left, right


def v6_proof(plan: Plan) -> Iterator[str]:
    """Yield contradictions between objective, bounds, gap and status."""
    report = plan.report
    step_s = (plan.cost if report.status == "evaluated" else plan.estimated).step_s
    if not math.isclose(report.objective_s, step_s, rel_tol=TOLERANCE):
        yield f"V6: the objective is {report.objective_s} s, the step {step_s} s"
    for bound in (report.bound_s, *(bound.step_s for bound in report.bounds)):
        if bound > report.objective_s * (1 + TOLERANCE):
            yield f"V6: a lower bound of {bound} s exceeds the objective of {report.objective_s} s"
    least_s = min((one.price_s for one in report.finalists), default=math.inf)
    if report.bound_s > least_s * (1 + TOLERANCE):
        yield f"V6: a lower bound of {report.bound_s} s exceeds the estimate of a finalist, {least_s} s"
    least, spent = report.bound_s, report.objective_s
    if report.objective is not None:
        least, spent = report.objective.spent_bound_per_step, report.objective.spent_per_step
    if least > spent * (1 + TOLERANCE):
        yield f"V6: a lower bound of {least} exceeds the objective of {spent}"
    gap = (spent - least) / spent
    if not math.isclose(gap, report.gap, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
        yield f"V6: the gap is stated as {report.gap}, objective and bound give {gap}"
    if report.status == "optimal" and gap > TOLERANCE:
        yield f"V6: called optimal with a gap of {gap}"
