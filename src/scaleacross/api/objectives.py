"""The goal of a job's search, and the value of the objective that a plan reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from scaleacross.cost_models.egress import axis_patterns
from scaleacross.cost_models.goodput import useful_parts
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.cost_models.spending import objective_spending, spending_of, spent_parts
from scaleacross.errors import InputError
from scaleacross.solvers.bounds import arithmetic_bounds, spending_bound
from scaleacross.solvers.objectives import Goal, Measure
from scaleacross.spec.job import OBJECTIVE_NAMES, ObjectiveName, counts_failures
from scaleacross.spec.plan import Decision, ObjectiveValue
from scaleacross.workloads.problem import Problem

Limits = Mapping[ObjectiveName, float]
"""Limits by objective: step time in seconds at most; tokens/s per megawatt, or per currency unit and second, at least.
"""
NO_LIMITS: Final[Limits] = MappingProxyType({})


def goal_of(problem: Problem, limits: Limits) -> Goal | None:
    """Return what the search minimises; None where that is the step time without further limits.

    Raises:
        InputError: the topology lacks a figure of an objective, or a limit has an unknown objective or is not a finite
            positive number.
    """
    for name, value in limits.items():
        if name not in OBJECTIVE_NAMES:
            raise InputError(f"limits: no objective '{name}'; there are {', '.join(OBJECTIVE_NAMES)}")
        if not 0 < value < math.inf:
            raise InputError(f"limits: {name} {value:g}: a finite number above 0 is expected")
    if problem.job.objective == "step_time" and not limits:
        return None
    bounds = []
    for name, value in limits.items():
        measure = Measure.of(problem.topology, name, problem)
        spending, tokens = measure.spending, problem.job.tokens_per_step
        if spending is not None:
            # at least ``value`` tokens per unit spent is at most this much spending per step
            most = tokens * spending.scale / value / measure.reference
        else:
            most = tokens / value if measure.useful else value
        bounds.append((measure, most))
    return Goal(Measure.of(problem.topology, problem.job.objective, problem), tuple(bounds))


def value_of(problem: Problem, name: ObjectiveName, cost: PlanCost, decision: Decision) -> float:
    """Return an objective's value for a plan: seconds for step_time, tokens per unit spent (or per second) otherwise."""
    if name == "step_time":
        return cost.cost.step_s
    if name == "useful_tokens_per_s":
        return problem.job.tokens_per_step / sum(useful_parts(problem, decision, cost.cost.step_s).values())
    spending = spending_of(problem.topology, name)
    return spending.value(problem.job.tokens_per_step, sum(spent_on(problem, name, cost, decision).values()))


def objective_value(
    problem: Problem, cost: PlanCost, decision: Decision, spent_bound: float = 0.0
) -> ObjectiveValue | None:
    """Return the report on the job's objective, with the larger of both bounds on spending; None for step_time."""
    name = problem.job.objective
    if name == "step_time":
        return None
    if name == "useful_tokens_per_s":
        return _useful_value(problem, cost, decision, spent_bound)
    spending, parts = objective_spending(problem.topology, name), spent_on(problem, name, cost, decision)
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


def gap_of(value: ObjectiveValue | None, step_s: float, bound_s: float) -> float:
    """Return the gap of a plan: of its spending per step, or of its step time where ``value`` is None."""
    spent, least = (step_s, bound_s) if value is None else (value.spent_per_step, value.spent_bound_per_step)
    return (spent - least) / spent


def _useful_value(problem: Problem, cost: PlanCost, decision: Decision, spent_bound: float) -> ObjectiveValue:
    """Return wall seconds per step of useful tokens: the step itself and the loss by failures."""
    parts = useful_parts(problem, decision.model_copy(update={"placement": cost.placement}), cost.cost.step_s)
    spent, tokens = sum(parts.values()), problem.job.tokens_per_step
    bound = min(spent, max(spent_bound, *(one.step_s for one in arithmetic_bounds(problem))))
    return ObjectiveValue(
        name="useful_tokens_per_s",
        value=tokens / spent,
        bound=tokens / bound,
        unit="s",
        spent_per_step=spent,
        spent_bound_per_step=bound,
        parts=parts,
    )


def spent_on(problem: Problem, name: ObjectiveName, cost: PlanCost, decision: Decision) -> dict[str, float]:
    """Return the parts of a step's spending under a money or energy objective.

    Raises InputError where the topology lacks a figure.
    """
    patterns = axis_patterns(decision.degrees, cost.placement.axis_order, cost.placement.fill)
    spending = spending_of(problem.topology, name)
    return spent_parts(problem.topology, spending, decision, cost, patterns, wall_of(problem, name, cost, decision))


def wall_of(problem: Problem, name: ObjectiveName, cost: PlanCost, decision: Decision) -> float | None:
    """Return wall seconds per step of useful tokens; None where the objective does not count failures."""
    if not counts_failures(name):
        return None
    placed = decision.model_copy(update={"placement": cost.placement})
    return sum(useful_parts(problem, placed, cost.cost.step_s).values())
