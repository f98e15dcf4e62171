"""Where the time of a class of ranks went, from the story of its step and a timeline."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from scaleacross.simulation.engine import Simulation
from scaleacross.simulation.step import Entry, Side
from scaleacross.simulation.tasks import Timeline
from scaleacross.spec.simulation import Span

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
            start, end = float(timeline.start_s[entry.task]), float(timeline.end_s[entry.task])
            if start > now:
                last = max(entry.gates, key=lambda gate: float(timeline.arrival_s[gate[0]]), default=(0, IDLE))
                spent[last[1]] = spent.get(last[1], 0.0) + start - now
            spent[entry.component] = spent.get(entry.component, 0.0) + end - max(start, now)
            now = max(now, end)
        else:
            over = max(now, float(timeline.arrival_s[entry.task]))
            spent[entry.component] = spent.get(entry.component, 0.0) + over - now
            now = over
    spent[IDLE] += timeline.total_s - now
    return spent


def on_critical_path(tasks: Collection[int], timeline: Timeline, simulation: Simulation) -> float:
    """Seconds of the longest chain of waiting, from the end of the step backwards, that pass in ``tasks``."""
    task = int(np.argmax(timeline.arrival_s))
    passed = 0.0
    while True:
        before = simulation.waited_for(task)
        if task in tasks:
            passed += float(timeline.arrival_s[task] - timeline.start_s[task])
        if not before:
            return passed
        task = max(before, key=lambda one: float((timeline.arrival_s if one[1] else timeline.end_s)[one[0]]))[0]


def spans(story: Sequence[Entry], beside: Sequence[Side], timeline: Timeline) -> list[Span]:
    """What happened when, in the order of the story, then what ran beside it."""
    out = []
    for entry in story:
        computing = entry.component in COMPUTING
        end = timeline.end_s[entry.task] if computing else timeline.arrival_s[entry.task]
        out.append((entry.component, entry.label, float(timeline.start_s[entry.task]), float(end), False))
    asides = {side.task: side for side in beside}
    shown = {entry.task for entry in story}
    for task, side in asides.items():
        if task not in shown:
            out.append(
                (side.component, side.label, float(timeline.start_s[task]), float(timeline.arrival_s[task]), True)
            )
    return [
        Span(kind=kind, label=label, start_s=start, end_s=end, beside=aside)
        for kind, label, start, end, aside in out
        if end > start
    ]
