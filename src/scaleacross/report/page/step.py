"""Charts of a plan's step: its parts, memory, links, goodput, sensitivities and alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaleacross.report.format import GIB, percent, rate
from scaleacross.report.goodput import CAUSE_WORDS
from scaleacross.report.memory import PARTS
from scaleacross.report.page.chart import (
    ACCENT,
    INK,
    PALETTE,
    TEXT_ROOM,
    Chart,
    bars,
    field,
    height_of,
    room_for,
    tips,
    values,
)
from scaleacross.spec.explanation import Sensitivity
from scaleacross.spec.goodput import LossCause
from scaleacross.spec.plan import COMPONENTS, Decision, Plan
from scaleacross.units import human_bytes, human_seconds

PART_NAMES = {
    "compute": "computation",
    "bubble": "pipeline bubble",
    "tp": "tensor-parallel",
    "cp": "context-parallel",
    "ep": "expert-parallel",
    "pp": "pipeline messages",
    "dp": "data-parallel",
    "optimizer": "optimizer and host",
}
"""Names of parts of a step, short enough for a phone."""
MAX_STAGES = 64
SHOWN_FIGURES = 10


def waterfall(plan: Plan) -> Chart:
    """Return the parts of the step one after the other."""
    rows, at = [], 0.0
    for name in COMPONENTS:
        seconds = plan.cost.component(name)
        if seconds:
            said = f"{human_seconds(seconds)} ({percent(seconds / plan.cost.step_s)})"
            rows.append({"part": PART_NAMES[name], "from": at, "to": at + seconds, "seconds": seconds, "said": said})
            at += seconds
    order = [row["part"] for row in rows]
    scale = room_for(TEXT_ROOM) | {"domain": [0, plan.cost.step_s]}
    layers = [
        {
            "mark": {"type": "bar", "height": {"band": 0.7}},
            "encoding": {
                "x2": {"field": "to"},
                "color": {
                    "condition": {"test": "datum.part == '" + PART_NAMES["compute"] + "'", "value": PALETTE[0]},
                    "value": PALETTE[1],
                },
                "tooltip": tips(Part="part", Time="said"),
            },
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 4, "color": INK},
            "encoding": {"x": field("to", "q", "seconds", scale=scale), "text": {"field": "said"}},
        },
    ]
    spec = {
        "height": height_of(len(rows)),
        "data": values(rows),
        "encoding": {
            "y": field("part", "n", None, sort=order, axis={"ticks": False, "domain": False}),
            "x": field("from", "q", "seconds", scale=scale),
        },
        "layer": layers,
    }
    note = "Every part begins where the one above it ends. Only exposed communication is counted."
    return Chart("step", f"Where the {human_seconds(plan.cost.step_s)} of a step go", note, spec, rows)


def memory(plan: Plan) -> Chart:
    """Return the memory of every pipeline stage, stacked by part, against capacity."""
    stages = plan.memory if len(plan.memory) <= MAX_STAGES else plan.memory[:: -(-len(plan.memory) // MAX_STAGES)]
    rows = [
        {"stage": stage.stage, "part": part, "GiB": round(getattr(stage, f"{part}_bytes") / GIB, 3), "order": order}
        for stage in stages
        for order, part in enumerate(PARTS)
    ]
    room = [{"stage": stage.stage, "capacity": round(stage.capacity_bytes / GIB, 2)} for stage in stages]
    colour = field("part", "n", None, sort=list(PARTS), scale={"domain": list(PARTS)})
    spec = {
        "height": height_of(len(stages), 18),
        "layer": [
            {
                "data": values(rows),
                "mark": {"type": "bar", "stroke": "white", "strokeWidth": 0.5},
                "encoding": {
                    "y": field("stage", "o", "pipeline stage"),
                    "x": field("GiB", "q", "GiB per accelerator", stack="zero"),
                    "color": colour,
                    "order": field("order", "q"),
                    "tooltip": tips(Stage="stage", Part="part", GiB="GiB"),
                },
            },
            {
                "data": values(room),
                "mark": {"type": "tick", "color": ACCENT, "thickness": 2, "size": 16},
                "encoding": {
                    "y": field("stage", "o"),
                    "x": field("capacity", "q"),
                    "tooltip": tips(Capacity="capacity"),
                },
            },
        ],
    }
    note = "Peak memory of an accelerator of each stage. The red tick is what the accelerator has."
    return Chart("memory", "Memory of every stage", note, spec, rows)


def links(plan: Plan) -> Chart:
    """Return the used share of every level's capacity at its busiest unit."""
    rows = [
        {
            "level": one.level,
            "used": one.utilisation,
            "bytes": human_bytes(sum(one.bytes_per_step.values())),
            "capacity": rate(one.capacity_bytes_per_s),
            "free": percent(1 - one.utilisation),
            "said": f"{percent(one.utilisation)} of {rate(one.capacity_bytes_per_s)}",
        }
        for one in plan.traffic
    ]
    spec = bars(rows, "level", "used", "share of the capacity over the step", "said")
    note = "Bytes that leave the busiest unit of each level in a step and direction, over what its links could carry meanwhile."
    return Chart("links", "Load of the links, level by level", note, spec, rows)


def lost_time(lost: dict[LossCause, float], useful: float) -> Chart:
    """Return the shares of time under failures, by cause."""
    rows = [{"cause": "useful training", "share": useful, "said": percent(useful)}]
    rows += [
        {"cause": CAUSE_WORDS[cause], "share": share, "said": percent(share)} for cause, share in lost.items() if share
    ]
    spec = bars(rows, "cause", "share", "share of the time", "said")
    return Chart(
        "goodput", "Where the time goes under failures", "Shares of wall time, by cause of the loss.", spec, rows
    )


def answers(rows: Sequence[Sensitivity], step_s: float) -> Chart:
    """Return the change of the step time when a figure of the topology is lower or higher."""
    shown = []
    for row in rows[:SHOWN_FIGURES]:
        for kind, change in (("less", row.less_s), ("more", row.more_s)):
            if change is not None:
                label = f"{row.change_fraction:.0%} {kind}"
                shown.append({"figure": row.figure, "change": label, "per cent": 100 * change / step_s})
    order = [row.figure for row in rows[:SHOWN_FIGURES]]
    spec = {
        "height": height_of(len(order), 22),
        "data": values(shown),
        "mark": {"type": "bar", "stroke": INK, "strokeWidth": 0.5},
        "encoding": {
            "y": field("figure", "n", None, sort=order, axis={"ticks": False}),
            "x": field("per cent", "q", "change of the step time, %", stack=None),
            "color": field("change", "n", None, scale={"range": [PALETTE[1], PALETTE[0]]}),
            "tooltip": tips(Figure="figure", Change="change", Percent="per cent"),
        },
    }
    note = "The same decision with one figure of the topology lower or higher. A long bar is a bottleneck."
    return Chart("sensitivity", "Sensitivity of the step time", note, spec, shown)


def others(plan: Plan) -> Chart:
    """Return the plan and its best alternatives."""
    known = [one for one in plan.report.alternatives if one.step_s is not None]
    step_s = plan.estimated.step_s
    rows = [{"plan": "this plan", "seconds": step_s, "said": human_seconds(step_s), "why": ""}]
    for one in sorted(known, key=lambda one: one.step_s or 0.0):
        said = f"{human_seconds(one.step_s or 0.0)}"
        label = f"other degrees: {_short(one.decision)}" if one.label.startswith("other degrees") else one.label
        rows.append({"plan": label, "seconds": one.step_s or 0.0, "said": said, "why": one.reason})
    spec = bars(rows, "plan", "seconds", "step time, seconds", "said")
    note = "The best plan of every other kind: one choice made otherwise, the rest as good as it can be."
    return Chart("alternatives", "The best plans that lost", note, spec, rows)


def _short(decision: Decision) -> str:
    """Return the degrees above 1."""
    return " · ".join(f"{axis} {degree}" for axis, degree in decision.degrees.model_dump().items() if degree > 1)


def step_charts(plan: Plan, sensitivities: Sequence[Sensitivity] = ()) -> Iterator[Chart]:
    """Every chart of the step that the plan has figures for."""
    yield waterfall(plan)
    yield memory(plan)
    if plan.traffic:
        yield links(plan)
    if plan.goodput is not None:
        yield lost_time(plan.goodput.lost, plan.goodput.goodput_fraction)
    if sensitivities:
        yield answers(sensitivities, plan.cost.step_s)
    if any(one.step_s is not None for one in plan.report.alternatives):
        yield others(plan)
