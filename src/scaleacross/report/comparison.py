"""Our plan and the baselines in one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.cost import between, chance, expectation, status
from scaleacross.report.format import add, cell, columns, count, grid, large, percent, section
from scaleacross.spec.comparison import BaselineResult, Comparison
from scaleacross.spec.plan import Decision
from scaleacross.units import human_seconds

HEADS = (
    "plan",
    "objective",
    "step",
    "80 % within",
    "TFLOP/s",
    "GPUs",
    "crosses buildings",
    "ours is",
    "chance",
    "degrees or reason",
)
OF_STEP_TIMES = {"80 % within", "chance"}
"""Columns that say nothing where another objective counts."""
OURS = "scaleacross"


def comparison_report(comparison: Comparison) -> RenderableType:
    """Return step times, rates, axes across buildings, and our speed-ups; ties and missing plans are named.

    Where the objective is not step time, a column states what each plan reaches, in place of step times' intervals.
    """
    ours, cost = comparison.plan, comparison.plan.cost
    aimed = ours.report.objective
    hidden = OF_STEP_TIMES if aimed else {"objective"}
    table = columns(
        [head for head in HEADS if head not in hidden],
        right=("objective", "step", "80 % within", "TFLOP/s", "GPUs", "ours is", "chance"),
        flexible=("degrees or reason",),
    )

    def line(values: Sequence[str | Text], style: str) -> None:
        pairs = zip(HEADS, values, strict=True)
        add(table, *(value for head, value in pairs if head not in hidden), style=style)

    used = count(ours.placement.num_accelerators)
    within = between(ours.interval) if ours.interval else ""
    first = (OURS, large(aimed.value) if aimed else "", human_seconds(cost.step_s), within)
    rate = f"{cost.model_flop_per_s / 1e12:.0f}"
    line((*first, rate, used, _names(comparison.across), "", "", _choice(ours.decision)), "bold")
    for result in comparison.rivals:
        line(_row(result), "dim" if result.step_s is None else "")
    facts = grid([("proof", status(ours.report)), ("gap", percent(ours.report.gap)), *_remarks(comparison)])
    return Group(
        section(f"{ours.job.name}: one cost model for all plans", table),
        Text(),
        facts,
    )


def comparison_line(comparison: Comparison) -> str:
    """The comparison in one line, for ``--quiet``."""
    step = f"{comparison.plan.job.name}: {human_seconds(comparison.plan.cost.step_s)}"
    known = [result for result in comparison.rivals if result.speed_up is not None]
    if not known:
        return cell(f"{step}; none of {len(comparison.rivals)} baselines has a plan").plain
    ahead = _ahead(comparison)
    if ahead:
        return cell(f"{step}; {ahead}").plain
    best = min(known, key=lambda result: result.speed_up or 0.0)
    return cell(f"{step}; {best.speed_up:.3f}x as fast as the best of {len(known)} baselines, {best.name}").plain


def _ahead(comparison: Comparison) -> str:
    """Return how much more of the objective our plan reaches than the best baseline; empty for step time."""
    aimed = comparison.plan.report.objective
    known = [result for result in comparison.rivals if result.objective_value]
    if aimed is None or not known:
        return ""
    best = max(known, key=lambda result: result.objective_value or 0.0)
    most = best.objective_value or 0.0
    return f"{large(aimed.value)} {aimed.name}, {aimed.value / most:.3f}x the most of a baseline ({best.name})"


def _row(result: BaselineResult) -> tuple[str | Text, ...]:
    if result.step_s is None or result.model_flop_per_s is None or result.speed_up is None:
        return result.name, "–", "–", "–", "–", "–", "–", "no plan", "", result.reason
    faster = "a tie" if result.is_tie else f"{result.speed_up:.2f}x faster" if result.speed_up > 1 else "slower"
    sure = "" if result.probability_ours_faster is None else chance(result.probability_ours_faster)
    within = between(result.interval) if result.interval else ""
    figures = (
        human_seconds(result.step_s),
        within,
        f"{result.model_flop_per_s / 1e12:.0f}",
        count(result.num_accelerators or 0),
    )
    reached = "–" if result.objective_value is None else large(result.objective_value)
    return result.name, reached, *figures, _names(result.across), faster, sure, _choice(result.decision)


def _choice(decision: Decision | None) -> str:
    if decision is None:
        return ""
    pipeline, degrees = decision.pipeline, decision.degrees.model_dump()
    split = " ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1) or "one accelerator"
    chunks = f" × {pipeline.num_chunks}" if pipeline.num_chunks > 1 else ""
    return f"{split}; {pipeline.schedule}{chunks}, recompute {decision.recompute}, shard {decision.shard}"


def _names(axes: Sequence[str]) -> str:
    return ", ".join(axes) or "nothing"


def _remarks(comparison: Comparison) -> Iterator[tuple[str, str | Text]]:
    ahead = _ahead(comparison)
    if ahead:
        yield "objective", cell(f"{ahead}; the plan was not chosen for step time, which 'ours is' compares")
    speed_ups = [result.speed_up for result in comparison.rivals if result.speed_up is not None]
    if speed_ups:
        yield "speed-up", f"{min(speed_ups):.3f}x over the best baseline, {median(speed_ups):.2f}x over the median one"
    if comparison.plan.interval is not None:
        yield "measured", cell(f"{expectation(comparison.plan.interval)}, ours")
    if comparison.plan.interval is not None and not ahead:
        yield "chance", "that ours is measured faster: what the model gets wrong, it gets wrong in both plans"
    if comparison.matched:
        yield (
            "same plan",
            cell(f"ours is {comparison.matched}'s but for the network's settings: the search found no better one"),
        )
    late = [result.name for result in comparison.rivals if not result.complete]
    if late:
        way_out = "more (--time-limit, --cpu-limit, --work-limit) may find a faster plan"
        yield "cut short", cell(f"{', '.join(late)}: the limit ended its rule; {way_out}")
    yield "tie", f"step times within {percent(comparison.tie_tolerance)}"
