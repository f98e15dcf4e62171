"""A run of replicas: committed work, the cost of membership changes, and the plan's prediction."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, grid, percent, plural, section
from scaleacross.spec.replica_run import ReplicaRun

MAX_STALLS = 8


def replica_run_report(run: ReplicaRun) -> RenderableType:
    """Return shares of the time, then the longest stalls and what happened before each."""
    work = f"{run.steps:,} steps, {run.samples:,} samples"
    rows: list[tuple[str, str | Text]] = [
        (
            "committed",
            work + (f", {run.tokens:,} tokens" if run.tokens is not None else "") + f" in {run.seconds:,.1f} s",
        )
    ]
    lost = ", ".join(f"{count} {word}" for word, count in run.lost.items()) or "none"
    rows.append(("replicas", f"{run.most_members} at most; lost: {lost}; joined later: {run.joined}"))
    rows.append(("epochs", f"{run.epochs:,}"))
    beside = f"; the plan predicts {percent(run.predicted_fraction)}" if run.predicted_fraction is not None else ""
    rows.append(("goodput", f"{percent(run.useful_fraction)} of what {plural(run.most_members, 'replica')} do{beside}"))
    rows.append(
        ("simulated", f"{percent(run.simulated_fraction)} with the same losses, the mean time out, stall and pace")
    )
    rows.append(("lost: stalls", percent(run.stall_fraction)))
    rows.append(("lost: replicas out", percent(run.missing_fraction)))
    rows.append(("pace meanwhile", f"{percent(run.short_pace)} of that of all"))
    if run.predicted_stall_s is not None and run.stalls:
        longest = max(stall.seconds for stall in run.stalls)
        rows.append(("stall", f"{longest:.2f} s at most; the plan predicts {run.predicted_stall_s:,.0f} s per loss"))
    rows += [("failed", Text(why)) for why in run.failures[:MAX_STALLS]]
    table = columns(("step", "late by", "after"), right=("step", "late by"), flexible=("after",))
    for stall in sorted(run.stalls, key=lambda one: -one.seconds)[:MAX_STALLS]:
        add(table, f"{stall.step:,}", f"{stall.seconds:.2f} s", stall.why)
    parts = (Text(), table) if run.stalls else ()
    return section(f"Goodput of {run.log} (median step {run.median_step_s:.3g} s)", grid(rows), *parts)
