"""V7: the spending of a step recomputes, with groups across buildings counted rank by rank, and limits are met."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from scaleacross.cost_models.goodput import useful_parts
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.cost_models.spending import spending_of, spent_parts
from scaleacross.spec.job import ObjectiveName, counts_failures
from scaleacross.spec.plan import Decision, ObjectiveValue, Plan
from scaleacross.spec.topology import Topology
from scaleacross.verification.groups import counted_groups
from scaleacross.workloads.problem import problem_of


def v7_spending(plan: Plan, topology: Topology, cost: PlanCost, tolerance: float) -> Iterator[str]:
    """Yield what is wrong with the objective's value or a limit, with the numbers; ``tolerance`` is relative."""
    stated, wanted = plan.report.objective, plan.job.objective
    if wanted != (stated.name if stated else "step_time"):
        yield f"V7: the job asks for {wanted}, the report is about {stated.name if stated else 'step_time'}"
        return
    if plan.report.status == "evaluated":  # it spends its simulated step; a search compares estimates
        cost = replace(cost, cost=plan.cost)
    names: set[ObjectiveName] = {wanted, *plan.report.limits}
    spent: dict[ObjectiveName, float] = {}
    for name in names - {"step_time"}:
        spent[name] = _spent(plan, topology, cost, name)
    tokens = plan.job.tokens_per_step
    if stated is not None:
        yield from _value(stated, partial(_per_spending, topology, wanted, tokens), spent[wanted], tolerance)
    for name, limit in plan.report.limits.items():
        if name == "step_time":
            within, value = cost.cost.step_s <= limit * (1 + tolerance), cost.cost.step_s
        else:
            value = _per_spending(topology, name, tokens, spent[name])
            within = value * (1 + tolerance) >= limit
        if not within:
            yield f"V7: {name} is {value}, the limit {limit}"


def _per_spending(topology: Topology, name: ObjectiveName, tokens: int, spent: float) -> float:
    return tokens / spent if name == "useful_tokens_per_s" else spending_of(topology, name).value(tokens, spent)


def _spent(plan: Plan, topology: Topology, cost: PlanCost, name: ObjectiveName) -> float:
    wall_s = None
    if counts_failures(name):
        wall_s = sum(useful_parts(problem_of(plan.job), plan.decision, cost.cost.step_s).values())
        if name == "useful_tokens_per_s":
            return wall_s
    patterns = counted_patterns(plan.decision)
    return sum(spent_parts(topology, spending_of(topology, name), plan.decision, cost, patterns, wall_s).values())


def _value(stated: ObjectiveValue, value_of: Callable[[float], float], spent: float, tolerance: float) -> Iterator[str]:
    pairs = {
        "value": (stated.value, value_of(spent)),
        "bound": (stated.bound, value_of(stated.spent_bound_per_step)),
        "spent_per_step": (stated.spent_per_step, spent),
        "sum of the parts": (sum(stated.parts.values()), spent),
    }
    for where, (left, right) in pairs.items():
        if not math.isclose(left, right, rel_tol=tolerance):
            yield f"V7: {stated.name}: {where} is stated as {left}, recomputes as {right}"


def counted_patterns(decision: Decision) -> Mapping[str, Mapping[tuple[int, ...], int]]:
    """Return name -> (members per building) -> number of groups, for every axis, ``ep`` and ``expert``, counted rank by
    rank.

    Raises:
        ValueError: the decision has no placement.
    """
    allocation = decision.placed.fill
    owners = [index for index, share in enumerate(allocation) for _ in range(share.num_accelerators)]
    out = {}
    for name, (degree, step) in counted_groups(decision.degrees, decision.placed).items():
        found: Counter[tuple[int, ...]] = Counter()
        for start in range(len(owners)):
            if start // step % degree == 0:
                inside = Counter(owners[start + rank * step] for rank in range(degree))
                found[tuple(inside[index] for index in range(len(allocation)))] += 1
        out[name] = found
    return out
