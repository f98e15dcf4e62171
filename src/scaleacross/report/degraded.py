"""Section on the plan after a failure."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, count, percent, section
from scaleacross.spec.plan import DegradedState, Plan
from scaleacross.units import human_seconds

MEANING = (
    "A fault unit is one dp_replicate group; only whole ones hold a complete state. Those that are left keep the batch "
    "(longer step) or shrink it (fewer tokens, same step)."
)


def degraded(plan: Plan) -> RenderableType:
    """Return one row per state: the loss, fault units left, both batch policies, shards only in a checkpoint."""
    right = ("fault units left", "keep: step", "longer by", "shrink: tokens")
    table = columns(("lost", *right, "only copies in it"), right=(*right, "only copies in it"))
    units = plan.degrees.dp_replicate
    for state in plan.degraded:
        left = f"{units - state.units_lost:,} of {units:,}"
        copies = f"{count(state.only_copies)} shards" if state.only_copies else "–"
        add(table, state.what, left, *_policies(state, plan.estimated.step_s), copies)
    return section("After a failure: what is left of the plan", table, Text(MEANING))


def _policies(state: DegradedState, step_s: float) -> tuple[str, str, str]:
    if state.step_s is None:
        return "stops", "–", "stops"
    step = human_seconds(state.step_s) + ("" if state.fits else " (does not fit in memory)")
    return step, f"{state.step_s / step_s - 1:.1%}", percent(state.tokens_fraction)
