"""Accounts a rank class's time by component, from its part of the step graph and a timeline; used by ``simulate_step``."""

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
"""(start, end) within a step, s."""


def components(course: Course, timeline: Timeline, window: Window = (0.0, math.inf)) -> dict[str, float]:
    """Return component -> seconds within ``window``, ``idle`` included; they add up to the window, cut at the end of
    the step.

    Waiting before a computation belongs to the component of the gate that opened last. A collective counts the time
    from the end of everything before it to its own arrival.
    """
    names = list(dict.fromkeys([*course.names, IDLE]))
    idle = names.index(IDLE)
    computing = np.array([name in COMPUTING for name in names])[course.component]
    over = np.where(computing, timeline.end_s[course.node], timeline.arrival_s[course.node])
    # reached[i]: when everything before entry i is over
    reached = np.maximum.accumulate(np.concatenate([[0.0], over]))
    before, after = reached[:-1], reached[1:]
    begun = np.where(computing, np.maximum(before, timeline.start_s[course.node]), before)
    component = np.concatenate([_waited_for(course, timeline, idle), course.component, [idle]])
    start, end = np.concatenate([before, begun, reached[-1:]]), np.concatenate([begun, after, [timeline.total_s]])
    seconds = np.maximum(0.0, np.minimum(end, window[1]) - np.maximum(start, window[0]))
    return dict(zip(names, np.bincount(component, seconds, len(names)).tolist(), strict=True))


def _waited_for(course: Course, timeline: Timeline, idle: int) -> Ints:
    """Return (entries,) component of each entry's last gate to open (on a tie the first); ``idle`` without gates."""
    # by entry, then arrival, then reversed index: the last row of an entry is its gate
    order = np.lexsort((-np.arange(len(course.gate)), timeline.arrival_s[course.gate], course.gated))
    gated = course.gated[order]
    last = order[np.append(gated[1:] != gated[:-1], True)] if len(order) else order
    found = np.full(len(course.node), idle)
    found[course.gated[last]] = course.waited[last]
    return found


def _inside(start: float, end: float, window: Window) -> float:
    """Return the seconds from ``start`` to ``end`` that lie in ``window``."""
    return max(0.0, min(end, window[1]) - max(start, window[0]))


def seconds_of(nodes: Collection[int], timeline: Timeline, window: Window = (0.0, math.inf)) -> float:
    """Return the summed seconds of ``nodes``, each from start to arrival, within ``window``."""
    return sum(_inside(float(timeline.start_s[node]), float(timeline.arrival_s[node]), window) for node in nodes)


def critical_path(timeline: Timeline, waits_of: Callable[[int], Sequence[int]]) -> list[int]:
    """Return the critical path: nodes from the last arrival back to one that waits for nothing.

    ``waits_of``: waits of a node, as in ``StepGraph.waits_of``.
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
    """Return the spans of a rank class: its story in order, then its concurrent transfers.

    Args:
        story: what a rank class does, in order.
        concurrent: its transfers that run concurrently.
        timeline: times of every node.
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
