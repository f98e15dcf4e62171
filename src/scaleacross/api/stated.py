"""The step time that a plan states: its estimate, held against a simulation of the plan.

The formulas behind an estimate were fitted to measured runs, take milliseconds and have lower bounds, so a search compares
estimates. They share links in the mean, and are far off where thousands of groups gather over inter-building links with every
micro-batch. So a finished plan is simulated. An estimate within ``AGREEMENT`` of the simulation stands. Any other is overruled:
the plan states step time and components of the simulation and keeps the estimate beside them (``Plan.estimate``), to which
bounds, alternatives and the gap of a search refer.
"""

from __future__ import annotations

from typing import Final

from scaleacross.api.assemble import interval_of
from scaleacross.api.simulating import replayed_step_s, simulate
from scaleacross.cost_models.goodput import goodput_of
from scaleacross.errors import InputError
from scaleacross.spec.plan import CostBreakdown, Plan, SolveReport
from scaleacross.spec.simulation import SimulatedStep
from scaleacross.workloads.problem import Problem

AGREEMENT: Final = 0.05
"""|estimate − simulation| / simulation up to which an estimate stands: a choice, the bar of ``benchmarks/agreement.py``."""


def stated(plan: Plan, problem: Problem) -> Plan:
    """``plan`` with the step time of its simulation, which overrules an estimate that is farther away than ``AGREEMENT``.

    A plan that the simulation refuses keeps its estimate, and a note says why.
    """
    try:
        simulated_s = replayed_step_s(plan)
        apart = plan.cost.step_s / simulated_s - 1
        if abs(apart) <= AGREEMENT:
            return plan.model_copy(update={"simulated_s": simulated_s})
        simulated = simulate(plan)
    except InputError as error:
        return _noted(plan, f"the step time is an estimate that no simulation confirms: {error}")
    cost = _breakdown(plan.cost, simulated)
    goodput = None if plan.goodput is None else goodput_of(problem, plan.decision, cost.step_s)
    overruled = plan.model_copy(
        update={
            "cost": cost,
            "estimate": plan.cost,
            "simulated_s": cost.step_s,
            "interval": interval_of(problem, plan.placement, cost.step_s),
            "goodput": goodput,
            "report": _restated(plan.report, cost.step_s),
        }
    )
    refers = "" if plan.report.status == "evaluated" else "; bounds, gap and alternatives refer to the estimate"
    return _noted(
        overruled,
        f"the step time is that of the simulation: the estimate of {plan.cost.step_s:.4g} s is {apart:+.1%} off{refers}",
    )


def _breakdown(estimate: CostBreakdown, simulated: SimulatedStep) -> CostBreakdown:
    """The simulated step, with the rates that follow from it."""
    faster = estimate.step_s / simulated.step_s
    parts = dict(simulated.components_s)
    compute, bubble, optimizer = (parts.pop(name) for name in ("compute", "bubble", "optimizer"))
    return CostBreakdown(
        step_s=simulated.step_s,
        compute_s=compute,
        bubble_s=bubble,
        exposed_s={name: parts.get(str(name), 0.0) for name in estimate.exposed_s},
        optimizer_s=optimizer,
        tokens_per_s=estimate.tokens_per_s * faster,
        model_flop_per_s=estimate.model_flop_per_s * faster,
        mfu=estimate.mfu * faster,
    )


def _restated(report: SolveReport, step_s: float) -> SolveReport:
    """The report of settings that nobody searched, whose bound is arithmetic, about the simulated step."""
    if report.status != "evaluated":
        return report
    gap = report.gap if report.objective is not None else (step_s - report.bound_s) / step_s
    return report.model_copy(update={"objective_s": step_s, "gap": gap})


def _noted(plan: Plan, note: str) -> Plan:
    report = plan.report.model_copy(update={"notes": (*plan.report.notes, note)})
    return plan.model_copy(update={"report": report})
