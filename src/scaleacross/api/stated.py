"""The step time that a plan states: that of its step graph, simulated on the links of its placement.

A search compares estimates, which are formulas that take milliseconds, average link sharing and have lower bounds. A
finished plan states the simulated step time and components instead. It keeps the estimate (``Plan.estimate``), to which
bounds, alternatives and the gap of a search refer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from scaleacross.api.assemble import cost_of, interval_of
from scaleacross.api.objectives import gap_of, objective_value
from scaleacross.api.simulating import stepped
from scaleacross.cost_models.goodput import goodput_of
from scaleacross.errors import InputError
from scaleacross.simulation.steady import SteadyStep
from scaleacross.spec.plan import CostBreakdown, Plan, SolveReport
from scaleacross.workloads.problem import Problem

AGREEMENT: Final = 0.05
"""Value of |estimate − simulation| / simulation above which a note is added: a choice, the bar of
``benchmarks/agreement.py``.
"""


def stated(plan: Plan, problem: Problem, simulated: SteadyStep | None = None) -> Plan:
    """Return ``plan`` with its simulated step time, ``simulated`` where it was simulated before.

    Where the simulator refuses the plan, its estimate stays and a note gives the reason.
    """
    try:
        simulated = simulated or stepped(plan, problem)
    except InputError as error:
        return noted(plan, f"the step time is an estimate that no simulation confirms: {error}")
    cost = simulated_cost(plan.cost, simulated.step_s, simulated.components_s)
    goodput = None if plan.goodput is None else goodput_of(problem, plan.decision, cost.step_s)
    found = plan.model_copy(
        update={
            "cost": cost,
            "estimate": plan.cost,
            "simulated_s": cost.step_s,
            "interval": interval_of(problem, plan.placement, cost.step_s),
            "goodput": goodput,
            "report": _restated(problem, plan, cost),
        }
    )
    apart = plan.cost.step_s / cost.step_s - 1
    if abs(apart) <= AGREEMENT:
        return found
    note = f"the estimate of {plan.cost.step_s:.4g} s is {apart:+.1%} off the simulation"
    if plan.report.status != "evaluated":
        note += "; bounds, gap and alternatives refer to the estimate"
    return noted(found, note)


def simulated_cost(estimate: CostBreakdown, step_s: float, components_s: Mapping[str, float]) -> CostBreakdown:
    """Return the cost breakdown of the simulated step in seconds, with the rates that follow from it."""
    faster = estimate.step_s / step_s
    parts = dict(components_s)
    compute, bubble, optimizer = (parts.pop(name) for name in ("compute", "bubble", "optimizer"))
    return CostBreakdown(
        step_s=step_s,
        compute_s=compute,
        bubble_s=bubble,
        exposed_s={name: parts.get(str(name), 0.0) for name in estimate.exposed_s},
        optimizer_s=optimizer,
        tokens_per_s=estimate.tokens_per_s * faster,
        model_flop_per_s=estimate.model_flop_per_s * faster,
        mfu=estimate.mfu * faster,
    )


def _restated(problem: Problem, plan: Plan, cost: CostBreakdown) -> SolveReport:
    """Return an unsearched report for the simulated step; its arithmetic bounds stay valid."""
    report, value = plan.report, plan.report.objective
    if report.status != "evaluated":
        return report
    if value is not None:
        value = objective_value(problem, replace(cost_of(problem, plan.decision), cost=cost), plan.decision)
    gap = gap_of(value, cost.step_s, report.bound_s)
    return report.model_copy(update={"objective_s": cost.step_s, "gap": gap, "objective": value})


def noted(plan: Plan, note: str) -> Plan:
    """Return ``plan`` with one more note in its report."""
    report = plan.report.model_copy(update={"notes": (*plan.report.notes, note)})
    return plan.model_copy(update={"report": report})
