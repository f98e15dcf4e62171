"""Charts of many plans (a comparison, a Pareto front, a study), and of a simulation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scaleacross.report.format import large, percent, rate
from scaleacross.report.page.chart import INK, PALETTE, Chart, bars, field, height_of, tips, values
from scaleacross.report.page.step import PART_NAMES, lost_time
from scaleacross.spec.comparison import Comparison
from scaleacross.spec.goodput import LongRun
from scaleacross.spec.simulation import SimulatedStep
from scaleacross.spec.study import SPEEDS, speed_of
from scaleacross.units import human_seconds

if TYPE_CHECKING:
    from scaleacross.api.frontier import Pareto
    from scaleacross.api.sweeping import SweepResult

MAX_MAPS = 6
MAX_LINKS = 24
OBJECTIVES = {"step_time": "step time, s"}


def baselines(comparison: Comparison) -> Chart:
    """Return the step times of our plan and of every baseline that has a plan."""
    rows: list[dict[str, Any]] = [{"plan": "scaleacross", "seconds": comparison.plan.cost.step_s, "why": ""}]
    for result in comparison.rivals:
        if result.step_s is not None:
            cut = "" if result.complete else " (cut short by the limit)"
            rows.append({"plan": result.name, "seconds": result.step_s, "why": f"{result.title}{cut}"})
    for row in rows:
        row["said"] = f"{human_seconds(row['seconds'])}, {row['seconds'] / comparison.plan.cost.step_s:.2f}x"
    without = [result.name for result in comparison.rivals if result.step_s is None]
    note = "Step time of every plan under one cost model." + (f" No plan: {', '.join(without)}." if without else "")
    table = [*rows, *({"plan": one.name, "why": one.reason} for one in comparison.rivals if one.step_s is None)]
    return Chart(
        "baselines", "Our plan and the baselines", note, bars(rows, "plan", "seconds", "step time, s", "said"), table
    )


def front_chart(front: Pareto) -> Chart:
    """Return both objectives of every point, with the bound of the objective that was optimised."""
    first, second = front.objectives
    rows = []
    for index, point in enumerate(front.points):
        report = point.plan.report
        bound = report.bound_s if report.objective is None else report.objective.bound
        optimised = point.plan.job.objective
        rows.append(
            {
                "point": str(index),
                first: point.values[0],
                second: point.values[1],
                "optimised": optimised,
                "bound x": bound if optimised == first else point.values[0],
                "bound y": bound if optimised == second else point.values[1],
                "gap": percent(report.gap),
                "degrees": str(point.plan.degrees),
            }
        )
    x, y = (
        field(first, "q", _title(first), scale={"zero": False}, axis={"format": "~s"}),
        field(second, "q", _title(second), scale={"zero": False}, axis={"format": "~s"}),
    )
    spec = {
        "height": 340,
        "data": values(rows),
        "layer": [
            {"mark": {"type": "line", "color": PALETTE[6], "interpolate": "step-after"}, "encoding": {"x": x, "y": y}},
            {
                "mark": {"type": "rule", "color": PALETTE[1], "strokeWidth": 3},
                "encoding": {
                    "x": {**x, "field": "bound x"}, "y": {**y, "field": "bound y"},
                    "x2": {"field": first}, "y2": {"field": second},
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1, "color": PALETTE[0]},
                "encoding": {"x": x, "y": y, "tooltip": tips(Point="point", Gap="gap", Degrees="degrees")},
            },
            {
                "mark": {"type": "text", "dx": 10, "dy": -8, "color": INK},
                "encoding": {"x": x, "y": y, "text": {"field": "point"}},
            },
        ],
    }  # fmt: skip
    note = "No point is better than another in both. A yellow line runs from a point to the bound of what was optimised there."
    return Chart("front", "Plans between two objectives", note, spec, rows)


def _title(objective: str) -> str:
    return OBJECTIVES.get(objective, objective.replace("_", " "))


def sweep_charts(result: SweepResult) -> Iterator[Chart]:
    """Yield tokens or samples per second by the varied paths: bars for one path, a map for two, several for more."""
    varied = [path for path in result.study.paths if len({_key(row[path]) for row in result.rows}) > 1]
    if len({row["base"] for row in result.rows}) > 1:
        varied.insert(0, "base")
    varied.sort(key=lambda path: -len({_key(row[path]) for row in result.rows}))
    yield from _money(result, varied)
    speed = speed_of(result.rows)
    unit = SPEEDS[speed]
    rows = [{path: _key(row[path]) for path in varied} | _outcome(row, speed) for row in result.rows]
    if len(varied) < 2:
        shown = [{**row, "label": row[varied[0]] if varied else result.study.name} for row in rows]
        spec = bars(shown, "label", unit, unit, "said")
        title = unit.capitalize() + (f" by {varied[0]}" if varied else "")
        yield Chart("sweep", title, "A bar per point; a point without a plan has none.", spec, rows)
        return
    across, down, *rest = varied
    groups = list(dict.fromkeys(tuple(row[path] for path in rest) for row in rows))
    for index, group in enumerate(groups[:MAX_MAPS]):
        own = [row for row in rows if tuple(row[path] for path in rest) == group]
        kept = ", ".join(f"{path} {value}" for path, value in zip(rest, group, strict=True))
        more = f" {len(groups) - MAX_MAPS} more maps are in points.csv." if len(groups) > MAX_MAPS and not index else ""
        note = (
            f"{unit.capitalize()} of the plan of every point{f' with {kept}' if kept else ''}; a dash: no plan.{more}"
        )
        name = "sweep" if index == 0 else f"sweep-{index + 1}"
        yield Chart(
            name, f"{across} against {down}" + (f": {kept}" if kept else ""), note, _map(own, across, down, unit), own
        )


def _money(result: SweepResult, varied: Sequence[str]) -> Iterator[Chart]:
    """Yield speed against the cost of tokens as owned, where the topologies state prices."""
    rows = [
        {
            "point": ", ".join(_key(row[path]) for path in varied) or result.study.name,
            "tokens/s": float(row["tokens_per_s"]),
            "cost": float(row["owned_cost_per_million_tokens"]),
            "said": f"{row['owned_cost_per_million_tokens']:,.4g} {row['currency']}, used {row['cost_per_million_tokens']:,.4g}",
        }
        for row in result.rows
        if row.get("owned_cost_per_million_tokens") is not None
    ]
    if not rows:
        return
    x, y = (
        field("tokens/s", "q", "tokens/s", scale={"zero": False}, axis={"format": "~s"}),
        field("cost", "q", "cost of a million tokens, as owned", scale={"zero": False}),
    )
    marks = [
        {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 1, "color": PALETTE[0]},
         "encoding": {"x": x, "y": y, "tooltip": tips(Point="point", Cost="said")}},
        {"mark": {"type": "text", "dy": -12, "color": INK}, "encoding": {"x": x, "y": y, "text": {"field": "point"}}},
    ]  # fmt: skip
    spec = {"height": 300, "data": values(rows), "layer": marks}
    note = "Down and to the right is better. As owned, idle accelerators, buildings and links are paid too."
    yield Chart("money", "Speed against the cost of tokens", note, spec, rows)


def _map(rows: Sequence[dict[str, Any]], across: str, down: str, unit: str) -> dict[str, Any]:
    plain = [
        {"x": row[across], "y": row[down], **{name: row[name] for name in (unit, "said", "status")}} for row in rows
    ]
    xs, ys = (list(dict.fromkeys(row[name] for row in plain)) for name in ("x", "y"))
    known = [row[unit] for row in plain if row[unit]]
    middle = (min(known) + max(known)) / 2 if known else 0.0
    return {
        "height": height_of(len(ys), 38),
        "data": values(plain),
        "encoding": {
            "x": field("x", "o", across, sort=xs, axis={"labelAngle": 0}),
            "y": field("y", "o", down, sort=ys),
        },
        "layer": [
            {
                "mark": {"type": "rect", "stroke": "white"},
                "encoding": {
                    "color": field(unit, "q", unit, scale={"scheme": "blues", "zero": False}, legend=None),
                    "tooltip": tips(**{across: "x", down: "y", unit.capitalize(): "said", "Status": "status"}),
                },
            },
            {
                "mark": {"type": "text"},
                "encoding": {
                    "text": {"field": "said"},
                    "color": {"condition": {"test": f"datum['{unit}'] > {middle!r}", "value": "white"}, "value": INK},
                },
            },
        ],
    }


def _outcome(row: dict[str, Any], speed: str) -> dict[str, Any]:
    value = float(row[speed]) if "step_s" in row else None
    return {SPEEDS[speed]: value, "said": "–" if value is None else large(value), "status": str(row["status"])}


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def simulated_parts(step: SimulatedStep) -> Chart:
    """Parts of the step, as planned and as simulated."""
    rows = [
        {"part": PART_NAMES[one.component], "from": who, "seconds": seconds, "said": human_seconds(seconds)}
        for one in step.differences
        for who, seconds in (("plan", one.predicted_s), ("simulation", one.simulated_s))
        if one.predicted_s or one.simulated_s
    ]
    order = list(dict.fromkeys(row["part"] for row in rows))
    spec = {
        "height": height_of(len(rows), 17),
        "data": values(rows),
        "mark": {"type": "bar", "stroke": INK, "strokeWidth": 0.5},
        "encoding": {
            "y": field("part", "n", None, sort=order),
            "yOffset": {"field": "from"},
            "x": field("seconds", "q", "seconds"),
            "color": field("from", "n", None, scale={"range": [PALETTE[0], PALETTE[1]]}),
            "tooltip": tips(Part="part", From="from", Time="said"),
        },
    }
    note = (
        f"The plan's estimate is {human_seconds(step.predicted_step_s)}, the simulation {human_seconds(step.step_s)}."
    )
    return Chart("parts", "Parts of the step, planned and simulated", note, spec, rows)


def simulated_links(step: SimulatedStep) -> Chart:
    """The links that are used most."""
    rows = [
        {
            "link": one.name,
            "used": one.mean_utilisation,
            "said": f"{percent(one.mean_utilisation)} of {rate(one.capacity_bytes_per_s)}",
        }
        for one in sorted(step.links, key=lambda one: -one.mean_utilisation)[:MAX_LINKS]
    ]
    spec = bars(rows, "link", "used", "share of the capacity over the step", "said")
    return Chart(
        "links", "Load of inter-building links and uplinks", "Mean over the step; the fullest links first.", spec, rows
    )


def weeks_charts(run: LongRun) -> Iterator[Chart]:
    """Time by cause and over the days."""
    yield lost_time(run.lost, run.goodput_fraction["mean"])
    parts = len(run.timeline)
    rows = [{"day": run.days * (index + 0.5) / parts, "useful": share} for index, share in enumerate(run.timeline)]
    if rows:
        spec = {
            "height": 180,
            "data": values(rows),
            "mark": {"type": "line", "interpolate": "step", "color": PALETTE[0]},
            "encoding": {
                "x": field("day", "q", "day"),
                "y": field("useful", "q", "useful share", scale={"domain": [0, 1]}),
            },
        }
        yield Chart("days", "Useful share over the days", "One draw of the failures.", spec, rows)
