"""Where the time of a class of ranks went, from the story of its step and a timeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from scaleacross.simulation.tasks import Timeline
from scaleacross.spec.simulation import Span
from scaleacross.step.graph import Course, Entry, Ints, Side

COMPUTING = ("compute", "optimizer")
IDLE = "idle"


Window = tuple[float, float]
"""From one moment of a step to another, s."""


def components(course: Course, timeline: Timeline, window: Window = (0.0, math.inf)) -> dict[str, float]:
    """Seconds by component of what passes in ``window`` up to the end of the step, ``idle`` among them; they add up to it.

    Time before a computation belongs to the gate that opened last; a collective takes what it adds after everything before it.
    """
    names = list(dict.fromkeys([*course.names, IDLE]))
    idle = names.index(IDLE)
    computing = np.array([name in COMPUTING for name in names])[course.component]
    over = np.where(computing, timeline.end_s[course.node], timeline.arrival_s[course.node])
    reached = np.maximum.accumulate(np.concatenate([[0.0], over]))
    before, after = reached[:-1], reached[1:]
    begun = np.where(computing, np.maximum(before, timeline.start_s[course.node]), before)
    component = np.concatenate([_waited_for(course, timeline, idle), course.component, [idle]])
    start, end = np.concatenate([before, begun, reached[-1:]]), np.concatenate([begun, after, [timeline.total_s]])
    seconds = np.maximum(0.0, np.minimum(end, window[1]) - np.maximum(start, window[0]))
    return dict(zip(names, np.bincount(component, seconds, len(names)).tolist(), strict=True))


def _waited_for(course: Course, timeline: Timeline, idle: int) -> Ints:
    """(entries,) component of the gate of each that opened last, of equal ones the first; ``idle`` of what has none."""
    order = np.lexsort((-np.arange(len(course.gate)), timeline.arrival_s[course.gate], course.gated))
    gated = course.gated[order]
    last = order[np.append(gated[1:] != gated[:-1], True)] if len(order) else order
    found = np.full(len(course.node), idle)
    found[course.gated[last]] = course.waited[last]
    return found


def _inside(start: float, end: float, window: Window) -> float:
    """Seconds from ``start`` to ``end`` that lie in ``window``."""
    return max(0.0, min(end, window[1]) - max(start, window[0]))


def seconds_of(nodes: Collection[int], timeline: Timeline, window: Window = (0.0, math.inf)) -> float:
    """Seconds that pass in ``nodes``, from start to arrival, and in ``window``."""
    return sum(_inside(float(timeline.start_s[node]), float(timeline.arrival_s[node]), window) for node in nodes)


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
