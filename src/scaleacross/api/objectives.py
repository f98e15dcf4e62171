"""Objectives in the verbs: the goal of a job, and the value that a plan reports."""

from __future__ import annotations

from collections.abc import Mapping

from scaleacross.cost_models.egress import axis_patterns
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.cost_models.spending import spending_of, spent_parts
from scaleacross.solvers.bounds import spending_bound
from scaleacross.solvers.objectives import Goal, Measure
from scaleacross.spec.job import ObjectiveName
from scaleacross.spec.plan import Decision, ObjectiveValue
from scaleacross.workloads.problem import Problem

Limits = Mapping[ObjectiveName, float]
"""Step time in seconds at most; tokens/s per megawatt, or per currency unit and second, at least."""


def goal_of(problem: Problem, limits: Limits) -> Goal | None:
    """What the search minimises; None where that is the step time and nothing else counts.

    Raises:
        InputError: the topology lacks a figure of an objective.
    """
    if problem.job.objective == "step_time" and not limits:
        return None
    bounds = []
    for name, value in limits.items():
        measure = Measure.of(problem.topology, name)
        spending = measure.spending
        most = value if spending is None else problem.job.tokens_per_step * spending.scale / value / measure.reference
        bounds.append((measure, most))
    return Goal(Measure.of(problem.topology, problem.job.objective), tuple(bounds))


def value_of(problem: Problem, name: ObjectiveName, cost: PlanCost, decision: Decision) -> float:
    """An objective's value of a plan: seconds, or tokens per spending."""
    if name == "step_time":
        return cost.cost.step_s
    spending = spending_of(problem.topology, name)
    return spending.value(problem.job.tokens_per_step, sum(_parts(problem, name, cost, decision).values()))


def objective_value(
    problem: Problem, cost: PlanCost, decision: Decision, spent_bound: float = 0.0
) -> ObjectiveValue | None:
    """What the report says about the job's objective, with the better of ``spent_bound`` and the arithmetic bound."""
    name = problem.job.objective
    if name == "step_time":
        return None
    spending, parts = spending_of(problem.topology, name), _parts(problem, name, cost, decision)
    spent, tokens = sum(parts.values()), problem.job.tokens_per_step
    bound = min(spent, max(spent_bound, spending_bound(problem, spending)))
    return ObjectiveValue(
        name=name,
        value=spending.value(tokens, spent),
        bound=spending.value(tokens, bound),
        unit=spending.unit,
        spent_per_step=spent,
        spent_bound_per_step=bound,
        parts=parts,
    )


def _parts(problem: Problem, name: ObjectiveName, cost: PlanCost, decision: Decision) -> dict[str, float]:
    patterns = axis_patterns(decision.degrees, cost.placement.axis_order, cost.placement.fill)
    return spent_parts(problem.topology, spending_of(problem.topology, name), decision, cost, patterns)
