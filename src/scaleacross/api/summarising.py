"""The verb summarise: bottlenecks and token costs, shown in the first lines of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from scaleacross.api.arguments import instance
from scaleacross.api.assemble import cost_of
from scaleacross.api.objectives import spent_on
from scaleacross.api.problems import problem_of
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.cost_models.sensitivity import Estimator, sensitivities
from scaleacross.cost_models.spending import spending_of
from scaleacross.errors import InputError
from scaleacross.spec.explanation import by_what_more_brings
from scaleacross.spec.job import ObjectiveName
from scaleacross.spec.plan import Plan
from scaleacross.spec.summary import PlanSummary, TokenCost
from scaleacross.spec.topology import Topology
from scaleacross.workloads.problem import Problem

MILLION = 1e6
JOULES_PER_KWH = 3.6e6
USEFUL: Final[Mapping[ObjectiveName, ObjectiveName]] = {
    "tokens_per_s_per_megawatt": "useful_tokens_per_s_per_megawatt",
    "tokens_per_s_per_currency_unit": "useful_tokens_per_s_per_currency_unit",
}
"""Objective -> the same objective with failures counted."""


def summarise(plan: Plan) -> PlanSummary:
    """Return the bottlenecks of ``plan``, the largest change first, and the money and energy of a million tokens.

    The decision is kept, and its step time is computed again with every figure of the topology 10 % lower and higher,
    as ``explain`` does. With failures, lost time spends as much as waiting does (``cost_models.spending``).

    Args:
        plan: a Plan.

    Returns:
        A PlanSummary. ``bottlenecks`` hold changes of the step in seconds. ``money`` is in the topology's currency and
        ``energy`` in kWh, per million tokens; None where the topology states no prices, or no powers.

    Raises:
        InputError: ``plan`` is not a Plan, or its job cannot be resolved.
    """
    problem = problem_of(instance("plan", plan, Plan, "a Plan (of plan, evaluate or load_plan)").job, ())
    rows, _ = sensitivities(Estimator.of(problem.job, problem.profile, problem.topology, plan.decision))
    return PlanSummary(
        bottlenecks=by_what_more_brings(rows), money=_money(problem, plan), energy=_energy(problem, plan)
    )


def token_costs(plan: Plan) -> tuple[TokenCost | None, TokenCost | None]:
    """Return money and energy per million tokens; None where the topology states no prices, or no powers."""
    problem = problem_of(plan.job, ())
    return _money(problem, plan), _energy(problem, plan)


def _money(problem: Problem, plan: Plan) -> TokenCost | None:
    """Return the cost of a million tokens for what the plan uses, and for everything that is owned.

    ``used`` counts the plan's accelerators, links and egress. ``owned`` counts every accelerator, building and link of
    the topology and the same egress. Hosts that the job holds back (``spare_hosts``) are owned, too.
    """
    parts = _parts(problem, plan, "tokens_per_s_per_currency_unit")
    if parts is None:
        return None
    topology = Topology.model_validate(plan.job.topology)
    spending = spending_of(topology, "tokens_per_s_per_currency_unit")
    whole = sum(one.num_accelerators * spending.rates[one.name].step_per_s for one in topology.buildings)
    whole += spending.sites.owned_per_s if spending.sites else 0.0
    tokens = plan.job.tokens_per_step / MILLION
    wall_s = plan.cost.step_s / (plan.goodput.goodput_fraction if plan.goodput else 1.0)
    return TokenCost(
        unit=problem.topology.currency or "",
        used=sum(parts.values()) / tokens,
        owned=(whole * wall_s + parts["egress"]) / tokens,
        useful=plan.goodput is not None,
    )


def _energy(problem: Problem, plan: Plan) -> TokenCost | None:
    parts = _parts(problem, plan, "tokens_per_s_per_megawatt")
    if parts is None:
        return None
    spent = sum(parts.values()) / JOULES_PER_KWH / plan.job.tokens_per_step * MILLION
    return TokenCost(unit="kWh", used=spent, useful=plan.goodput is not None)


def _parts(problem: Problem, plan: Plan, name: ObjectiveName) -> dict[str, float] | None:
    """Return the parts of a step's spending, per useful tokens with failures; None where the topology lacks a figure."""
    try:
        spending_of(Topology.model_validate(plan.job.topology), name)
    except InputError:
        return None
    cost: PlanCost = replace(cost_of(problem, plan.decision), cost=plan.cost)  # the step that the plan states
    return spent_on(problem, USEFUL[name] if plan.goodput else name, cost, plan.decision)
