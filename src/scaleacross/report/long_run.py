"""Weeks of training: useful share, losses by cause, and their course over time."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, grid, large, percent, section
from scaleacross.report.goodput import CAUSE_WORDS, duration
from scaleacross.spec.goodput import LongRun

BLOCKS = " ▁▂▃▄▅▆▇█"


def long_run_report(run: LongRun) -> RenderableType:
    """Percentiles over draws, time lost by cause, and the first draw as a line of blocks."""
    order = ("p5", "p50", "p95", "mean")
    table = columns(("", *order), right=order)
    add(table, "goodput", *(percent(run.goodput_fraction[name]) for name in order))  # type: ignore[index]
    if run.tokens is not None:
        add(table, "useful tokens", *(large(run.tokens[name]) for name in order))  # type: ignore[index]
    between = f"p5 to p95 {run.interruptions_range['p5']:,.0f} to {run.interruptions_range['p95']:,.0f}"
    causes = ", ".join(f"{name} {number:,.1f}" for name, number in run.interruptions_by_cause.items() if number)
    rows: list[tuple[str, str | Text]] = [
        ("failures", f"{run.interruptions:,.1f} ({between}; {causes})" if causes else "none")
    ]
    if run.closed_form_fraction is not None:
        off = (run.goodput_fraction["mean"] - run.closed_form_fraction) * 100
        rows.append(
            ("closed form", f"{percent(run.closed_form_fraction)}; the simulated mean is {off:+.2f} points off")
        )
    rows += [(f"lost: {CAUSE_WORDS[cause]}", percent(share)) for cause, share in run.lost.items() if share >= 5e-5]
    rows += [
        (
            f"slower: {one.cause}",
            f"every {duration(1 / one.rate_per_s)} for {duration(one.lasts_s)}, at {percent(one.speed)} of the speed",
        )
        for one in run.slow_spells
    ]
    rows.append(("first draw", f"{timeline(run.timeline)} ({run.days / len(run.timeline):.2g} d a block)"))
    title = f"{run.days:g} days, {run.draws:,} draws of the failures (seed {run.seed})"
    assumed = [Text(f"• assumed: {name} {origin}", style="dim") for name, origin in run.assumed.items()]
    return section(title, table, Text(), grid(rows), *assumed)


def timeline(parts: tuple[float, ...]) -> str:
    """Return one block per part of the time, as high as its useful share, scaled from the least to the greatest share."""
    least, most = min(parts), max(parts)
    if most - least < 1e-9:
        return BLOCKS[-1] * len(parts)
    return "".join(BLOCKS[1 + round((part - least) / (most - least) * 7)] for part in parts) + (
        f" {percent(least)} to {percent(most)}"
    )
