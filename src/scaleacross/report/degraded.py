"""The plan after a failure."""

from __future__ import annotations

from rich.console import RenderableType

from scaleacross.report.format import add, columns, count, section
from scaleacross.spec.plan import Plan
from scaleacross.units import human_seconds


def degraded(plan: Plan) -> RenderableType:
    """One row per state: what is lost, replicas left, step time and how much longer that is."""
    table = columns(("lost", "replicas left", "step", "longer by"), right=("replicas left", "step", "longer by"))
    for state in plan.degraded:
        left = plan.degrees.dp - state.replicas_lost
        if state.step_s is None:
            add(table, state.what, "none", "stops", "–")
            continue
        step = human_seconds(state.step_s) + ("" if state.fits else " (does not fit in memory)")
        add(table, state.what, count(left), step, f"{state.step_s / plan.cost.step_s - 1:.1%}")
    return section("After a failure: what is left of the plan", table)
