"""A ``StepRun`` as programs for another simulator: what a rank of each class computes, calls, sends and receives.

Collectives keep their bytes and their place between computations, but not the times of this simulation. Operations
stand in the order in which the simulation began them (receives: in which they arrived). Ranks share this order for
everything that they do together. Ranks that run one communication at a time therefore never wait for each other in a
circle.
"""

from __future__ import annotations

import heapq

import numpy as np

from scaleacross.simulation.step_run import StepRun
from scaleacross.spec.execution_trace import Communicator, ExecutionTrace, Operation
from scaleacross.spec.placement import communicator_axes, strides
from scaleacross.spec.plan import Plan
from scaleacross.step.graph import Call, Computation, Key
from scaleacross.step.setting import SHAPES


def execution_trace(plan: Plan, step_run: StepRun) -> ExecutionTrace:
    """Return the programs of all rank classes, and the program of every global rank."""
    machine, graph = step_run.machine, step_run.graph
    classes = list(graph.ranks)
    number = {who: index for index, who in enumerate(classes)}
    of_block = np.array([number[int(one)] for one in machine.classes.of[: machine.fabric.num_blocks]])
    degrees, placement = plan.degrees, plan.placement
    uses = {node.use for node in graph.kinds if isinstance(node, Call)}
    axes = communicator_axes(degrees, placement.axis_order)
    communicators = {use: Communicator(*axes[SHAPES.get(use, use)]) for use in sorted(uses)}
    return ExecutionTrace(
        plan_name=plan.job.name,
        step_s=step_run.step_s,
        programs=tuple(_Program(step_run, who).operations() for who in classes),
        program_of=tuple(np.repeat(of_block, machine.fabric.width).tolist()),
        communicators=communicators,
        pipeline=Communicator(degrees.pp, strides(degrees, placement.axis_order)["pp"]),
    )


class _Program:
    """The program of one rank class.

    Attributes:
        messages: node of a pipeline message -> its key and its tag.
        nodes: node -> its operations, one after another.
        waits: node -> nodes of this class that it waits for.
        began: node -> when it started (receives: arrived), s.
    """

    def __init__(self, step_run: StepRun, who: int) -> None:
        self.step_run, self.graph, self.who = step_run, step_run.graph, who
        self.messages: dict[int, tuple[Key, int]] = {
            number: (key, tag) for tag, (key, number) in enumerate(self.graph.messages.items())
        }
        self.nodes: dict[int, list[Operation]] = {}
        self.waits: dict[int, list[int]] = {}
        self.began: dict[int, float] = {}
        for entry in self.graph.story(who):
            self._add(entry.node, entry.label)
        for side in self.graph.concurrent(who):
            self._add(side.node, side.label)
        for node in list(self.nodes):
            waited_for = (one if one >= 0 else ~one for one in self.graph.waits_of(node))
            self.waits[node] = [one for one in waited_for if one in self.nodes or self._receives(one)]

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations in the order of the simulation, none before the operations that it waits for."""
        waiting = {node: len(set(waits)) for node, waits in self.waits.items()}
        followers: dict[int, list[int]] = {}
        for node, waits in self.waits.items():
            for one in set(waits):
                followers.setdefault(one, []).append(node)
        # a topological order that prefers the earliest start keeps the order of the simulation
        ready = [(self.began[node], node) for node, count in waiting.items() if not count]
        heapq.heapify(ready)
        out: list[Operation] = []
        ends: dict[int, int] = {}
        while ready:
            _, node = heapq.heappop(ready)
            before = tuple(sorted({ends[one] for one in self.waits[node]}))
            for operation in self.nodes[node]:
                out.append(Operation(**{**vars(operation), "waits": before}))
                before = (len(out) - 1,)
            ends[node] = len(out) - 1
            for follower in followers.get(node, ()):
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(ready, (self.began[follower], follower))
        return tuple(out)

    def _add(self, node: int, label: str) -> None:
        if node in self.nodes:
            return
        what, line = self.graph.node(node), self.step_run.nodes
        self.began[node] = float(line.start_s[node])
        if isinstance(what, Computation):
            seconds = float(line.end_s[node] - line.start_s[node])
            self.nodes[node] = [Operation("compute", label, seconds=seconds)]
        elif isinstance(what, Call):
            calls = max(1, round(what.num_calls))
            each = what.size_bytes * what.num_calls / calls
            self.nodes[node] = [
                Operation("collective", f"{what.use} {op} {label}", 0.0, op, what.use, each, calls) for op in what.ops
            ]
        else:
            _, tag = self.messages[node]
            size = line.task(node).amount
            self.nodes[node] = [Operation("send", f"send {label}", size_bytes=size, following=what.down, tag=tag)]

    def _receives(self, node: int) -> bool:
        """Return whether ``node`` is a message to this class; if so, add its receive."""
        if node not in self.messages or self.messages[node][0][0] == self.who:
            return False
        (sender, down, stage, kind, microbatch), tag = self.messages[node]
        neighbour = self.step_run.machine.neighbour(self.who, forward=not down)
        if sender != neighbour:
            return False
        size = self.step_run.nodes.task(node).amount
        label = f"receive {stage}{kind}{microbatch}"
        self.nodes[node] = [Operation("receive", label, size_bytes=size, following=not down, tag=tag)]
        self.waits[node] = []
        self.began[node] = float(self.step_run.nodes.arrival_s[node])
        return True
