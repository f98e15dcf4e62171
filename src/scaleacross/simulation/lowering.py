"""Lowers a step graph to tasks on links; called by ``simulate_step``.

A computation becomes one task, a message one flow, a call the consecutive flows of its algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from scaleacross.simulation import clock
from scaleacross.simulation.calls import Calls
from scaleacross.simulation.connections import Way
from scaleacross.simulation.segments import Segment
from scaleacross.simulation.tasks import Floats, Ints, Task, TaskGraph, Timeline, computation
from scaleacross.step.graph import Call, Computation, Node, StepGraph
from scaleacross.step.setting import SHAPES, Op


@dataclass(frozen=True)
class Lowered:
    """The tasks of a graph; ``first`` and ``last``: (nodes,) first and last task of every node."""

    tasks: TaskGraph
    capacities_bytes_per_s: Floats
    first: Ints
    last: Ints

    def run(self, progress: Callable[[int, int], None] | None = None) -> Timeline:
        """Simulate the tasks and return their times."""
        return clock.run(self.tasks, self.capacities_bytes_per_s, progress)

    def by_node(self, timeline: Timeline) -> Timeline:
        """Return the times of every node: start of its first task, end and arrival of its last."""
        return Timeline(
            timeline.kinds,
            timeline.of[self.last],
            timeline.start_s[self.first],
            timeline.end_s[self.last],
            timeline.arrival_s[self.last],
        )


def lower(graph: StepGraph, calls: Calls, ways: Mapping[tuple[str, Op], Way]) -> Lowered:
    """Return the tasks of ``graph`` on the links of ``calls.machine``; ``ways``: (use, operation) -> way."""
    rows = [_tasks(kind, graph, calls, ways) for kind in graph.kinds]
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    number = counts[graph.of]
    last = np.cumsum(number) - 1
    first = last - number + 1
    behind = np.arange(int(number.sum())) - np.repeat(first, number)  # tasks of the same node before each task
    of = np.repeat((np.cumsum(counts) - counts)[graph.of], number) + behind
    # a node's first task waits for what the node waits for, every further task only for the one before it
    num_waits = np.ones(len(of), dtype=np.int64)
    num_waits[first] = np.diff(graph.first_wait)
    first_wait = np.concatenate([[0], np.cumsum(num_waits)])
    waits = np.empty(first_wait[-1], dtype=np.int64)
    waits[first_wait[:-1][behind > 0]] = np.flatnonzero(behind) - 1
    # to wait for a node is to wait for its last task; ~ keeps the mark of an end instead of an arrival
    waited = np.where(graph.waits >= 0, last[graph.waits], ~last[~graph.waits])
    waits[np.repeat(first_wait[first] - graph.first_wait[:-1], num_waits[first]) + np.arange(len(waited))] = waited
    tasks = TaskGraph([task for row in rows for task in row], of, waits, first_wait)
    return Lowered(tasks, calls.machine.capacities, first, last)


def _tasks(node: Node, graph: StepGraph, calls: Calls, ways: Mapping[tuple[str, Op], Way]) -> tuple[Task, ...]:
    """Return the tasks of a node, which run one after another."""
    if isinstance(node, Computation):
        name = f"{node.component} of pipeline rank {node.pipeline_rank}"
        return (computation(name, node.seconds, node.rank_class),)
    if isinstance(node, Call):
        shape = SHAPES.get(node.use, node.use)
        how = tuple(ways[node.use, op] for op in node.ops)
        held = max(way.drive.held_fraction for way in how) if node.holds_ranks else 0.0
        devices = tuple(calls.machine.members(shape, node.group)) if held else ()
        segments = calls.of(shape, node.group, node.ops, how, node.size_bytes)
        return tuple(_flow(node.use, segment, node.num_calls, devices, held) for segment in segments)
    size = graph.setting.size_bytes["pp", "send"]
    segment = calls.message(node.sender, node.down, ways["pp", "send"], size)
    return (_flow("message", segment, 1.0, (), 0.0),)


def _flow(name: str, segment: Segment, count: float, holds: tuple[int, ...], held_fraction: float) -> Task:
    """Return a flow of ``count`` times a segment; the ranks of ``holds`` compute more slowly while it runs."""
    amount, fixed_s = segment.amount * count, segment.fixed_s * count
    return Task(name, amount, segment.load, None, fixed_s, segment.cap_bytes_per_s, holds, held_fraction)
