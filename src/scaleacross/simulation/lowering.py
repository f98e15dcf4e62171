"""A step graph as tasks on links: a computation is one task, a message one flow, a call the flows of its algorithm in a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaleacross.simulation.calls import Calls
from scaleacross.simulation.connections import Way
from scaleacross.simulation.engine import Simulation
from scaleacross.simulation.fabric import Ints
from scaleacross.simulation.segments import Segment
from scaleacross.simulation.tasks import Task, Timeline, computation
from scaleacross.step.graph import Call, Computation, Node, StepGraph
from scaleacross.step.setting import SHAPES, Op


@dataclass(frozen=True)
class Lowered:
    """The tasks of a graph; ``first`` and ``last`` of every node, each (nodes,)."""

    simulation: Simulation
    first: Ints
    last: Ints

    def by_node(self, timeline: Timeline) -> Timeline:
        """When every node happened: from the start of its first task to the end and the arrival of its last."""
        return Timeline(
            timeline.kinds,
            timeline.of[self.last],
            timeline.start_s[self.first],
            timeline.end_s[self.last],
            timeline.arrival_s[self.last],
        )


def lower(graph: StepGraph, calls: Calls, ways: Mapping[tuple[str, Op], Way]) -> Lowered:
    """The tasks of ``graph`` on the links of ``calls.machine``; ``ways``: how the calls of a use and an operation run."""
    simulation = Simulation(calls.machine.capacities)
    known: dict[int, tuple[Task, ...]] = {}  # by a node's identity: equal nodes are one object
    first, last = [], []
    for node in graph.nodes:
        tasks = known.get(id(node))
        if tasks is None:
            tasks = known[id(node)] = _tasks(node, graph, calls, ways)
        number = simulation.add(tasks[0])
        first.append(number)
        for task in tasks[1:]:
            number = simulation.add(task, [number])
        last.append(number)
    for number, waits in zip(first, graph.waits_for, strict=True):
        simulation.wait(number, [last[one] if one >= 0 else ~last[~one] for one in waits])
    return Lowered(simulation, np.array(first, dtype=np.int64), np.array(last, dtype=np.int64))


def _tasks(node: Node, graph: StepGraph, calls: Calls, ways: Mapping[tuple[str, Op], Way]) -> tuple[Task, ...]:
    """The tasks of a node, one after another."""
    if isinstance(node, Computation):
        name = f"{node.component} of pipeline rank {node.pipeline_rank}"
        return (computation(name, node.seconds, node.rank_class),)
    if isinstance(node, Call):
        shape = SHAPES.get(node.use, node.use)
        held = calls.held_fraction if node.holds_ranks else 0.0
        devices = tuple(calls.machine.members(shape, node.group)) if held else ()
        how = tuple(ways[node.use, op] for op in node.ops)
        segments = calls.of(shape, node.group, node.ops, how, node.size_bytes)
        return tuple(_flow(node.use, segment, node.num_calls, devices, held) for segment in segments)
    size = graph.setting.size_bytes["pp", "send"]
    segment = calls.message(node.sender, node.down, ways["pp", "send"], size)
    return (_flow("message", segment, 1.0, (), 0.0),)


def _flow(name: str, segment: Segment, count: float, holds: tuple[int, ...], held_fraction: float) -> Task:
    """``count`` times a segment; the ranks of ``holds`` compute more slowly meanwhile."""
    amount, fixed_s = segment.amount * count, segment.fixed_s * count
    return Task(name, amount, segment.load, None, fixed_s, segment.cap_bytes_per_s, holds, held_fraction)
