"""Section on step time, goodput and their product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, grid, large, percent, plural, section
from scaleacross.spec.goodput import FaultModel, Goodput, LossCause
from scaleacross.spec.plan import Plan
from scaleacross.units import human_seconds

SHOWN: Final = 5e-4
"""Fraction of the time below which a cause is not shown by itself, because it would read 0.0 %."""
CAUSE_WORDS = {
    "stall": "everybody stalls",
    "units_out": "fault units out",
    "restart": "everybody restarts",
    "lost_work": "work since the last checkpoint",
    "checkpoint": "blocking checkpoints",
    "waiting_for_host": "waiting for a host",
    "slow_steps": "slower steps",
}


def goodput(plan: Plan, found: Goodput) -> RenderableType:
    """Return the losses by cause, and the goodput of the plan at every published failure rate."""
    model = found.model
    between = "never" if found.mtbf_s is None else f"every {duration(found.mtbf_s)}"
    interval = model.checkpoint_interval_s
    product = (
        f"{large(plan.cost.tokens_per_s)} tokens/s · {percent(found.goodput_fraction)} = "
        f"{large(found.useful_tokens_per_s)} useful tokens/s"
    )
    recovery = f"a unit in {duration(model.recover_s)}, everybody in {duration(model.restart_s)}, stall {duration(model.stall_s)}"
    facts = grid(
        [
            ("step time", human_seconds(plan.cost.step_s)),
            ("goodput", percent(found.goodput_fraction)),
            ("useful tokens", product),
            ("lost", _lost(found.lost)),
            ("a failure", f"{between}; {plural(model.num_units, 'fault unit')}, policy {found.policy}"),
            ("recovery", recovery),
            ("checkpoint", "none needed" if interval is None else f"every {duration(interval)} of training"),
            (
                "spare hosts",
                f"{_spares(model)}; {found.hosts_in_repair:,.1f} in repair in the mean; {found.spares_advised:,} cover 99.9 % of "
                f"the time{_lacking(found)}",
            ),
        ]
    )
    numbers = ("failures per 1,000 node-days", "goodput", "useful tokens/s")
    table = columns(("published rate", *numbers), right=numbers)
    for one in found.at_published_rates:
        share, tokens = percent(one.goodput_fraction), large(one.useful_tokens_per_s)
        add(table, one.name, f"{one.failures_per_1000_node_days:g}", share, tokens)
    assumed = [Text(f"• assumed: {name} {origin}", style="dim") for name, origin in found.assumed.items()]
    return section("Goodput: useful tokens under failures", facts, Text(), table, *assumed)


def _lost(lost: Mapping[LossCause, float]) -> str:
    """Return fractions by cause, small ones combined, so that the shown parts add up to 1 − goodput."""
    large = {cause: share for cause, share in lost.items() if share >= SHOWN}
    small = {cause: share for cause, share in lost.items() if 0 < share < SHOWN}
    parts = [f"{CAUSE_WORDS[cause]} {percent(share)}" for cause, share in large.items()]
    together = sum(small.values())
    if small and (together >= SHOWN or not large):
        most = [cause for cause in sorted(small, key=lambda one: -small[one]) if small[cause] > together / 10]
        named = ", ".join(CAUSE_WORDS[cause] for cause in most)
        share = "less than 0.1 %" if together < SHOWN else percent(together)
        parts.append(f"{named} {share}{' together' if len(most) > 1 else ''}")
    return ", ".join(parts) or "nothing"


def _lacking(found: Goodput) -> str:
    return f"; the plan leaves {found.hosts_free:,} free" if found.spares_lacking else ""


def _spares(model: FaultModel) -> str:
    """Return the spare hosts assumed in the goodput, and what waits when they run out."""
    if model.spares is None:
        return "none is ever waited for"
    return f"{model.spares:,}, then {'units wait' if model.num_units > 1 else 'all wait'} for a repair"


def duration(seconds: float) -> str:
    """Return seconds in a suitable unit: 20 s, 6.7 min, 3.1 h, 12.0 d."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.3g} s"
