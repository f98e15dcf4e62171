"""Where the time of a class of ranks went, from the story of its step and a timeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from scaleacross.simulation.tasks import Timeline
from scaleacross.spec.simulation import Span
from scaleacross.step.graph import Entry, Side

COMPUTING = ("compute", "optimizer")
IDLE = "idle"


Window = tuple[float, float]
"""From one moment of a step to another, s."""


def components(story: Sequence[Entry], timeline: Timeline, window: Window = (0.0, math.inf)) -> dict[str, float]:
    """Seconds by component of what passes in ``window`` up to the end of the step, ``idle`` among them; they add up to it."""
    spent: dict[str, float] = {IDLE: 0.0}
    for component, start, end in _passed(story, timeline):
        spent[component] = spent.get(component, 0.0) + _inside(start, end, window)
    return spent


def _passed(story: Sequence[Entry], timeline: Timeline) -> Iterator[tuple[str, float, float]]:
    """Component, start and end of all that a class of ranks goes through, one after the other.

    Time before a computation belongs to the gate that opened last; a collective takes what it adds after everything before it.
    """
    now = 0.0
    for entry in story:
        if entry.component in COMPUTING:
            start, end = float(timeline.start_s[entry.node]), float(timeline.end_s[entry.node])
            if start > now:
                last = max(entry.gates, key=lambda gate: float(timeline.arrival_s[gate[0]]), default=(0, IDLE))
                yield last[1], now, start
            yield entry.component, max(start, now), end
            now = max(now, end)
        else:
            over = max(now, float(timeline.arrival_s[entry.node]))
            yield entry.component, now, over
            now = over
    yield IDLE, now, timeline.total_s


def _inside(start: float, end: float, window: Window) -> float:
    """Seconds from ``start`` to ``end`` that lie in ``window``."""
    return max(0.0, min(end, window[1]) - max(start, window[0]))


def on_critical_path(
    nodes: Collection[int],
    timeline: Timeline,
    waits_of: Callable[[int], Sequence[int]],
    window: Window = (0.0, math.inf),
) -> float:
    """Seconds of the critical path that pass in ``nodes`` and in ``window``; ``waits_of`` as for ``critical_path``."""
    path = [node for node in critical_path(timeline, waits_of) if node in nodes]
    return sum(_inside(float(timeline.start_s[node]), float(timeline.arrival_s[node]), window) for node in path)


def critical_path(timeline: Timeline, waits_of: Callable[[int], Sequence[int]]) -> list[int]:
    """The longest chain of waiting: nodes from the one that ends last back to one that waits for nothing.

    ``waits_of``: what a node waits for, as in a step graph.
    """

    def over(one: int) -> float:
        return float(timeline.arrival_s[one] if one >= 0 else timeline.end_s[~one])

    path = [int(np.argmax(timeline.arrival_s))]
    while waits := waits_of(path[-1]):
        last = max(waits, key=over)
        path.append(last if last >= 0 else ~last)
    return path


def spans(
    story: Sequence[Entry],
    concurrent: Sequence[Side],
    timeline: Timeline,
    critical: Collection[int] = (),
    messages: Mapping[int, int] | None = None,
) -> list[Span]:
    """What happened when, in the order of the story, then what ran concurrently.

    Args:
        story: what a class of ranks does in order.
        concurrent: its transfers that run meanwhile.
        timeline: when every node happened.
        critical: nodes of the critical path.
        messages: node of a pipeline message -> its number in the step's messages.
    """
    numbers = messages or {}
    out = []
    for entry in story:
        computing = entry.component in COMPUTING
        end = timeline.end_s[entry.node] if computing else timeline.arrival_s[entry.node]
        out.append((entry.component, entry.label, entry.node, float(end), False))
    asides = {side.node: side for side in concurrent}
    shown = {entry.node for entry in story}
    for node, side in asides.items():
        if node not in shown:
            out.append((side.component, side.label, node, float(timeline.arrival_s[node]), True))
    return [
        Span(
            kind=kind,
            label=label,
            start_s=float(timeline.start_s[node]),
            end_s=end,
            beside=aside,
            critical=node in critical,
            message=numbers.get(node),
        )
        for kind, label, node, end, aside in out
        if end > timeline.start_s[node]
    ]
