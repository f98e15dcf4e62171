"""Measurements in emulated buildings as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, grid, section
from scaleacross.spec.testbed import (
    Bar,
    CollectiveResults,
    CollectiveSetting,
    Conditions,
    Degraded,
    TrainingResults,
    TrainingSetting,
)
from scaleacross.units import human_bytes, human_seconds

TRAINED_HEADS = ("plan", "degrees", "across", "schedule", "measured", "predicted", "off", "ours is")
TIMED_HEADS = ("way", "measured", "fastest", "slowest", "predicted", "off")


def training_report(results: TrainingResults) -> RenderableType:
    """Return a table per setting, the degraded link, the bars, and the conditions."""
    parts: list[RenderableType] = [training_table(setting) for setting in results.settings]
    if results.degraded is not None:
        parts.append(degraded_report(results.degraded))
    if results.bars:
        parts.append(bars_table(results.bars))
    return Group(*parts, grid(conditions_rows(results.conditions)))


def training_table(setting: TrainingSetting) -> RenderableType:
    """Return the plans of one setting."""
    table = columns(TRAINED_HEADS, right=TRAINED_HEADS[4:], flexible=("schedule",))
    for plan in setting.plans:
        times = (plan.measured_s, plan.predicted_s)
        gain = "" if plan is setting.ours else f"{plan.measured_s / setting.ours.measured_s:.2f}x faster"
        own = (plan.label, plan.degrees, plan.across, plan.schedule)
        add(table, *own, *map(human_seconds, times), f"{plan.off_fraction:+.0%}", gain)
    title = f"{setting.topology}, trunks {'; '.join(dict.fromkeys(setting.trunks))}: median of {setting.ours.num_steps} steps"
    return section(title, table, *(Text(f"{name} is not trained: {why}") for name, why in setting.refused.items()))


def collectives_report(results: CollectiveResults) -> RenderableType:
    """Return a table per setting, the bars, and the conditions."""
    parts = [collective_table(setting) for setting in results.settings]
    return Group(*parts, bars_table(results.bars), grid(conditions_rows(results.conditions)))


def collective_table(setting: CollectiveSetting) -> RenderableType:
    """Return the algorithms of one setting; the planner's choice is marked."""
    table = columns(TIMED_HEADS, right=TIMED_HEADS[1:])
    for row in setting.rows:
        predicted = "–" if row.predicted_s is None else human_seconds(row.predicted_s)
        off = "–" if row.off_fraction is None else f"{row.off_fraction:+.0%}"
        mark = "* " if row.name == setting.chosen else "  "
        times = map(human_seconds, (row.measured_s, row.fastest_s, row.slowest_s))
        add(table, mark + row.name, *times, predicted, off)
    return section(f"all-reduce of {place_of(setting)} (* planner's choice)", table)


def place_of(setting: CollectiveSetting) -> str:
    """Describe size, rate and one-way latency."""
    rate, delay = setting.trunk_bytes_per_s * 8e-6, setting.one_way_latency_s * 1e3
    return f"{human_bytes(setting.size_bytes)}, {rate:g} Mbit/s, {delay:g} ms"


def bars_table(bars: Sequence[Bar]) -> RenderableType:
    """Return the requirements, and whether they are met."""
    table = columns(("bar", "wanted", "measured", ""), flexible=("bar", "measured"))
    for bar in bars:
        add(table, bar.what, bar.wanted, bar.measured, "met" if bar.is_met else "MISSED")
    return section("Bars", table)


def degraded_report(degraded: Degraded) -> RenderableType:
    """Return what happened to an inter-building link and its plan."""
    return section("A trunk halved in mid-run", grid(degraded_rows(degraded)))


def degraded_rows(degraded: Degraded) -> list[tuple[str, str]]:
    """Return the events in order."""
    rates = [f"{rate * 8e-6:.4g} Mbit/s" for rate in (degraded.before_bytes_per_s, degraded.after_bytes_per_s)]
    link = " → ".join(degraded.named) or "no link"
    return [
        (
            "trunk",
            f"{degraded.trunk}, from {rates[0]} to {rates[1]}; measured {degraded.measured_bytes_per_s * 8e-6:.4g} Mbit/s",
        ),
        ("trace", f"{degraded.verdict}: {link}" + ("" if degraded.is_right else ", which does not cross the trunk")),
        ("step before", human_seconds(degraded.step_before_s)),
        ("old plan", f"{degraded.old.degrees}: {human_seconds(degraded.old.measured_s)} now"),
        (
            "new plan",
            f"{degraded.new.degrees}: {human_seconds(degraded.new.measured_s)}, "
            f"{degraded.old.measured_s / degraded.new.measured_s:.2f}x faster",
        ),
    ]


def conditions_rows(found: Conditions) -> list[tuple[str, str]]:
    """Return machine, cores and load of the run."""
    shares = (
        "every host has its own share of a core" if found.fixed_shares else "hosts on one core share it as they come"
    )
    return [
        ("machine", f"{found.machine}, {found.num_cores} cores; {found.versions}"),
        ("cores", shares),
        ("load", f"{found.load_average[0]:g} before, {found.load_average[1]:g} after, {found.date}"),
    ]
