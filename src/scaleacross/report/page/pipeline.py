"""Charts of the pipeline of a step over time: computations of every rank, waits, and the critical path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final

from scaleacross.report.page.chart import ACCENT, PALETTE, Chart, field, tips, values
from scaleacross.report.simulation import busiest_kinds
from scaleacross.spec.simulation import SimulatedStep
from scaleacross.spec.timeline import PipelineTimeline, TimelineMessage
from scaleacross.units import human_seconds

CELL: Final = re.compile(r"(\d+)([FBIW])(\d+)")
WORDS: Final = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
MAX_SPANS: Final = 8500
MAX_CLASSES: Final = 24
NUM_PARTS: Final = 400
"""Number of equal parts into which a simulated step is divided."""
SAME: Final = 1e-9
"""Relative difference up to which two times are equal."""
SHADES: Final = {
    "forward": PALETTE[2],
    "backward": PALETTE[0],
    "input gradient": PALETTE[5],
    "weight gradient": PALETTE[4],
    "waits for a message": PALETTE[1],
}


@dataclass(frozen=True)
class Action:
    """One computation with its rank, index in the rank's order, virtual stage, pass, micro-batch and times."""

    rank: int
    index: int
    stage: int
    kind: str
    micro_batch: int
    start_s: float
    end_s: float


def actions_of(timeline: PipelineTimeline) -> list[list[Action]]:
    """Return the computations of every rank, in order."""
    out = []
    for rank, row in enumerate(timeline.rows):
        own = []
        for index, cell in enumerate(row.actions):
            found = CELL.fullmatch(cell)
            if found is not None:
                stage, kind, micro = found.groups()
                own.append(Action(rank, index, int(stage), kind, int(micro), row.start_s[index], row.end_s[index]))
        out.append(own)
    return out


def critical_path(timeline: PipelineTimeline) -> list[Action]:
    """Return the chain of computations that ends last, first to last.

    Each one began when its predecessor on the rank ended, or when the message that it needs arrived, whichever was
    later.
    """
    rows = actions_of(timeline)
    known = {(one.stage, one.kind, one.micro_batch): one for row in rows for one in row}
    sent = _messages(timeline)
    every = [one for row in rows for one in row]
    if not every:
        return []
    path = [max(every, key=lambda one: one.end_s)]
    tolerance = SAME * timeline.step_s
    while True:
        here = path[-1]
        before = [(one.end_s, one) for one in _previous(rows[here.rank], here)]
        for source in _sources(here, known):
            message = sent.get((source.stage, source.kind, source.micro_batch))
            before.append((message.arrival_s if message else source.end_s, source))
        # an earlier start is required, so that the walk ends even where computations take no time
        before = [(at, one) for at, one in before if one.start_s < here.start_s and at <= here.start_s + tolerance]
        if not before:
            return path[::-1]
        path.append(max(before, key=lambda one: one[0])[1])


def _previous(row: Sequence[Action], here: Action) -> list[Action]:
    earlier = [one for one in row if one.index < here.index]
    return [max(earlier, key=lambda one: one.index)] if earlier else []


def _sources(here: Action, known: Mapping[tuple[int, str, int], Action]) -> Iterator[Action]:
    """Yield what ``here`` needs from other stages: the previous stage's forward, or the next stage's gradient."""
    wanted = [(here.stage - 1, "F")] if here.kind == "F" else [(here.stage + 1, "B"), (here.stage + 1, "I")]
    for stage, kind in wanted if here.kind != "W" else []:
        found = known.get((stage, kind, here.micro_batch))
        if found is not None:
            yield found


def _messages(timeline: PipelineTimeline) -> dict[tuple[int, str, int], TimelineMessage]:
    """Return messages by stage, kind and micro-batch of the computation that sends them."""
    found = ((CELL.fullmatch(message.action), message) for message in timeline.messages)
    return {(int(cell[1]), cell[2], int(cell[3])): message for cell, message in found if cell is not None}


def waits(timeline: PipelineTimeline) -> list[tuple[int, float, float]]:
    """Return (rank, from, to) of the times, in seconds, in which a rank waits while its message is under way."""
    rows = actions_of(timeline)
    known = {(one.stage, one.kind, one.micro_batch): one for row in rows for one in row}
    sent, out = _messages(timeline), []
    for row in rows:
        for before, here in pairwise(row):
            for source in _sources(here, known):
                message = sent.get((source.stage, source.kind, source.micro_batch))
                if message is not None:
                    # the time in which the rank is idle and the message under way
                    start, end = max(before.end_s, message.sent_s), min(here.start_s, message.arrival_s)
                    if end > start + SAME * timeline.step_s:
                        out.append((here.rank, start, end))
    return out


def pipeline_chart(timeline: PipelineTimeline) -> Chart:
    """Return a line per rank; of very long steps only some ranks are drawn."""
    rows = actions_of(timeline)
    most = max(1, MAX_SPANS // max(1, max(map(len, rows))))
    shown = _spread(len(rows), most)
    critical = {(one.rank, one.index) for one in critical_path(timeline)}
    spans = [
        _span(rank, WORDS[one.kind], one.start_s, one.end_s, f"{one.micro_batch}", (rank, one.index) in critical)
        for rank in shown
        for one in rows[rank]
    ]
    spans += [
        _span(rank, "waits for a message", at, to, "", False) for rank, at, to in waits(timeline) if rank in shown
    ]
    left = "" if len(shown) == len(rows) else f" {len(shown)} of {len(rows)} ranks are drawn."
    note = (
        "A line per pipeline rank. Red underline: the critical path, which ends last. White: the rank is idle; yellow: idle "
        f"while its message is on the way.{left}"
    )
    order = [name for name in SHADES if any(span["k"] == name for span in spans)]
    facts = [
        {"fact": "pipeline, s", "value": timeline.step_s},
        {"fact": "idle share of all ranks' time", "value": timeline.bubble_fraction},
        {"fact": "computations on the critical path", "value": len(critical)},
        {
            "fact": "waits for messages, s, mean over ranks",
            "value": sum(to - at for _, at, to in waits(timeline)) / len(rows),
        },
    ]
    return Chart(
        "pipeline", f"The pipeline of a step: {timeline.schedule}", note, _gantt(spans, order, "pipeline rank"), facts
    )


def simulated_chart(step: SimulatedStep) -> Chart:
    """Return a line per class of ranks of a simulated step: the activity that took most of each small part of it."""
    rows = sorted(step.rows, key=lambda row: (row.stage, row.name))
    shown = [rows[index] for index in _spread(len(rows), MAX_CLASSES)]
    part_s = step.step_s / NUM_PARTS
    spans = []
    for row in shown:
        at = 0
        for kind, run in groupby(busiest_kinds(row, step.step_s, NUM_PARTS)):
            end = at + len(list(run))
            if kind is not None:
                times = {"s": _ms(at * part_s), "e": _ms(end * part_s)}
                spans.append({"r": row.name, "k": kind, **times, "m": f"{row.num_ranks} ranks", "c": 0})
            at = end
    order = [
        kind
        for kind in ("compute", "optimizer", "tp", "cp", "ep", "pp", "dp")
        if any(one["k"] == kind for one in spans)
    ]
    left = "" if len(shown) == len(rows) else f" {len(shown)} of {len(rows)} classes are drawn."
    note = (
        f"A line per class of ranks that do the same: what took most of each {human_seconds(part_s)}. Only exposed "
        f"communication is drawn. White: waiting.{left}"
    )
    facts = [{"class": row.name, "ranks": row.num_ranks, "stage": row.stage} for row in rows]
    names = [row.name for row in shown]
    return Chart("timeline", "The simulated step", note, _gantt(spans, order, None, names=names), facts)


def _gantt(
    spans: Sequence[Mapping[str, Any]], order: Sequence[str], title: str | None, names: Sequence[str] | None = None
) -> dict[str, Any]:
    lines = len({span["r"] for span in spans})
    shades = [SHADES.get(name, PALETTE[index % len(PALETTE)]) for index, name in enumerate(order)]
    y = field("r", "o", title, sort=list(names) if names else "ascending")
    encoding = {
        "y": y,
        "x": field("s", "q", "milliseconds", scale={"nice": False}),
        "x2": {"field": "e"},
        "tooltip": tips(Line="r", What="k", **{"Micro-batch or size": "m", "From, ms": "s", "To, ms": "e"}),
    }
    colour = field("k", "n", None, scale={"domain": list(order), "range": shades})
    blocks = {
        "mark": {"type": "bar", "height": {"band": 0.8}, "stroke": "white", "strokeWidth": 0.3},
        "encoding": {"color": colour},
    }
    underline = {
        "transform": [{"filter": "datum.c == 1"}],
        "mark": {"type": "bar", "height": 4, "yOffset": 8, "color": ACCENT},
    }
    return {
        "height": max(80, lines * 20),
        "data": values(spans),
        "encoding": encoding,
        "layer": [blocks, underline] if any(span["c"] for span in spans) else [blocks],
    }


def _span(rank: int, kind: str, start_s: float, end_s: float, micro: str, critical: bool) -> dict[str, Any]:
    return {"r": rank, "k": kind, "s": _ms(start_s), "e": _ms(end_s), "m": micro, "c": int(critical)}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _spread(number: int, most: int) -> list[int]:
    """Return at most ``most`` of ``number`` indices, evenly spread, including both ends."""
    if number <= most:
        return list(range(number))
    return sorted({round(index * (number - 1) / max(1, most - 1)) for index in range(most)})
