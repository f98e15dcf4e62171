"""Where the time of a class of ranks went, from the story of its step and a timeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from scaleacross.simulation.tasks import Timeline
from scaleacross.spec.simulation import Span
from scaleacross.step.graph import Entry, Side

COMPUTING = ("compute", "optimizer")
IDLE = "idle"


def components(story: Sequence[Entry], timeline: Timeline) -> dict[str, float]:
    """Seconds by component up to the end of the step, ``idle`` among them; they add up to it.

    Time before a computation belongs to the gate that opened last; a collective takes what it adds after everything before it.
    """
    spent: dict[str, float] = {IDLE: 0.0}
    now = 0.0
    for entry in story:
        if entry.component in COMPUTING:
            start, end = float(timeline.start_s[entry.node]), float(timeline.end_s[entry.node])
            if start > now:
                last = max(entry.gates, key=lambda gate: float(timeline.arrival_s[gate[0]]), default=(0, IDLE))
                spent[last[1]] = spent.get(last[1], 0.0) + start - now
            spent[entry.component] = spent.get(entry.component, 0.0) + end - max(start, now)
            now = max(now, end)
        else:
            over = max(now, float(timeline.arrival_s[entry.node]))
            spent[entry.component] = spent.get(entry.component, 0.0) + over - now
            now = over
    spent[IDLE] += timeline.total_s - now
    return spent


def on_critical_path(nodes: Collection[int], timeline: Timeline, waits_of: Callable[[int], Sequence[int]]) -> float:
    """Seconds of the longest chain of waiting, from the end of the step backwards, that pass in ``nodes``.

    ``waits_of``: what a node waits for, as in a step graph.
    """
    node = int(np.argmax(timeline.arrival_s))
    passed = 0.0

    def over(one: int) -> float:
        return float(timeline.arrival_s[one] if one >= 0 else timeline.end_s[~one])

    while True:
        if node in nodes:
            passed += float(timeline.arrival_s[node] - timeline.start_s[node])
        waits = waits_of(node)
        if not waits:
            return passed
        last = max(waits, key=over)
        node = last if last >= 0 else ~last


def spans(story: Sequence[Entry], concurrent: Sequence[Side], timeline: Timeline) -> list[Span]:
    """What happened when, in the order of the story, then what ran concurrently."""
    out = []
    for entry in story:
        computing = entry.component in COMPUTING
        end = timeline.end_s[entry.node] if computing else timeline.arrival_s[entry.node]
        out.append((entry.component, entry.label, float(timeline.start_s[entry.node]), float(end), False))
    asides = {side.node: side for side in concurrent}
    shown = {entry.node for entry in story}
    for node, side in asides.items():
        if node not in shown:
            out.append(
                (side.component, side.label, float(timeline.start_s[node]), float(timeline.arrival_s[node]), True)
            )
    return [
        Span(kind=kind, label=label, start_s=start, end_s=end, beside=aside)
        for kind, label, start, end, aside in out
        if end > start
    ]
