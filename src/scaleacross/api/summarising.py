"""The verb summarise: what the first lines of a report say beyond the plan itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from scaleacross.api.arguments import instance
from scaleacross.api.assemble import cost_of
from scaleacross.api.objectives import spent_on
from scaleacross.api.problems import problem_of
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.cost_models.sensitivity import Repricer, sensitivities
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
"""The same objective under failures."""


def summarise(plan: Plan) -> PlanSummary:
    """What the step of ``plan`` answers to, the largest change first, and what a million tokens cost in money and energy.

    The decision is kept and priced again with every figure of the topology 10 % lower and higher, as ``explain`` does.
    Under failures, time that is lost spends as waiting does (``cost_models.spending``).
    """
    problem = problem_of(instance("plan", plan, Plan, "a Plan (of plan, evaluate or load_plan)").job, ())
    rows, _ = sensitivities(Repricer.of(problem.job, problem.profile, problem.topology, plan.decision))
    return PlanSummary(
        bottlenecks=by_what_more_brings(rows), money=_money(problem, plan), energy=_energy(problem, plan)
    )


def token_costs(plan: Plan) -> tuple[TokenCost | None, TokenCost | None]:
    """Money and energy of a million tokens; None where the topology states no prices, or no powers."""
    problem = problem_of(plan.job, ())
    return _money(problem, plan), _energy(problem, plan)


def _money(problem: Problem, plan: Plan) -> TokenCost | None:
    """What the plan uses, and egress; as owned, every accelerator, building and link of the topology and the same egress.

    Hosts that the job holds back (``spare_hosts``) are owned, too.
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
    """Parts of what a step spends, of useful tokens under failures; None where the topology lacks a figure."""
    try:
        spending_of(Topology.model_validate(plan.job.topology), name)
    except InputError:
        return None
    cost: PlanCost = replace(cost_of(problem, plan.decision), cost=plan.cost)  # the step that the plan states
    return spent_on(problem, USEFUL[name] if plan.goodput else name, cost, plan.decision)
