"""A replay as programs: what a rank of each class computes, calls, sends and receives, and what waits for what.

Collectives keep their place between computations and their bytes, not the times of this replay: another simulator has its own.
Operations stand in the order in which the replay began them (receives: in which they arrived), which is the same on all ranks
for whatever they do together; so ranks that run one communication after another never wait for each other in a circle.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from scaleacross.simulation.accounting import COMPUTING
from scaleacross.simulation.machine import group_geometry
from scaleacross.simulation.replay import Replay
from scaleacross.simulation.step import SHAPES, Key
from scaleacross.spec.execution_trace import Communicator, ExecutionTrace, Operation
from scaleacross.spec.placement import strides
from scaleacross.spec.plan import Plan
from scaleacross.workloads.problem import Problem


def execution_trace(plan: Plan, problem: Problem, played: Replay) -> ExecutionTrace:
    """The programs of all classes of ranks, and which position runs which."""
    machine, step = played.machine, played.step
    classes = list(step.players)
    number = {who: index for index, who in enumerate(classes)}
    of_block = np.array([number[int(one)] for one in machine.classes.of[: machine.fabric.num_blocks]])
    degrees, placement = plan.degrees, plan.placement
    uses = {call.use for call in step.calls_by_end.values()}
    whole = problem.profile.whole_experts
    communicators = {
        use: Communicator(*group_geometry(SHAPES.get(use, use), degrees, placement, whole)) for use in sorted(uses)
    }
    return ExecutionTrace(
        plan_name=plan.job.name,
        step_s=played.step_s,
        programs=tuple(_Program(played, who).operations() for who in classes),
        program_of=tuple(np.repeat(of_block, machine.fabric.width).tolist()),
        communicators=communicators,
        pipeline=Communicator(degrees.pp, strides(degrees, placement.axis_order)["pp"]),
    )


class _Program:
    """One class: ``tasks`` -> its operations in a row; ``waits`` -> tasks of its own that it waits for; ``began`` -> seconds."""

    def __init__(self, played: Replay, who: int) -> None:
        self.played, self.step, self.who = played, played.step, who
        self.messages: dict[int, tuple[Key, int]] = {
            number: (key, tag) for tag, (key, number) in enumerate(self.step.messages.items())
        }
        self.tasks: dict[int, list[Operation]] = {}
        self.waits: dict[int, list[int]] = {}
        self.began: dict[int, float] = {}
        for entry in self.step.story[who]:
            self._add(entry.task, entry.label, entry.component in COMPUTING)
        for side in self.step.beside[who]:
            self._add(side.task, side.label, False)
        for task in list(self.tasks):
            self.waits[task] = [one for one in self._waited_for(task) if one in self.tasks or self._receives(one)]

    def operations(self) -> tuple[Operation, ...]:
        """In the order of the replay, nothing before what it waits for."""
        waiting = {task: len(set(waits)) for task, waits in self.waits.items()}
        followers: dict[int, list[int]] = {}
        for task, waits in self.waits.items():
            for one in set(waits):
                followers.setdefault(one, []).append(task)
        ready = [(self.began[task], task) for task, count in waiting.items() if not count]
        heapq.heapify(ready)
        out: list[Operation] = []
        ends: dict[int, int] = {}
        while ready:
            _, task = heapq.heappop(ready)
            before = tuple(sorted({ends[one] for one in self.waits[task]}))
            for operation in self.tasks[task]:
                out.append(Operation(**{**vars(operation), "waits": before}))
                before = (len(out) - 1,)
            ends[task] = len(out) - 1
            for follower in followers.get(task, ()):
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(ready, (self.began[follower], follower))
        return tuple(out)

    def _add(self, task: int, label: str, computes: bool) -> None:
        if task in self.tasks:
            return
        timeline, simulation = self.played.timeline, self.step.simulation
        if computes:
            seconds = float(timeline.end_s[task] - timeline.start_s[task])
            self.tasks[task] = [Operation("compute", label, seconds=seconds)]
            self.began[task] = float(timeline.start_s[task])
        elif task in self.messages:
            (_, down, *_), tag = self.messages[task]
            size = simulation.tasks[task].amount
            self.tasks[task] = [Operation("send", f"send {label}", size_bytes=size, following=bool(down), tag=tag)]
            self.began[task] = float(timeline.start_s[task])
        else:
            call = self.step.calls_by_end[task]
            calls = max(1, round(call.num_calls))
            each = call.size_bytes * call.num_calls / calls
            self.tasks[task] = [
                Operation("collective", f"{call.use} {op} {label}", 0.0, op, call.use, each, calls) for op in call.ops
            ]
            self.began[task] = float(timeline.start_s[call.first])

    def _waited_for(self, task: int) -> Iterator[int]:
        first = self.step.calls_by_end[task].first if task in self.step.calls_by_end else task
        return (one for one, _ in self.step.simulation.waited_for(first))

    def _receives(self, task: int) -> bool:
        """Whether ``task`` is a message to this class, which is received when first waited for."""
        if task not in self.messages or self.messages[task][0][0] == self.who:
            return False
        (sender, down, stage, kind, microbatch), tag = self.messages[task]
        neighbour = self.played.machine.neighbour(self.who, forward=not down)
        if sender != neighbour:
            return False
        size = self.step.simulation.tasks[task].amount
        label = f"receive {stage}{kind}{microbatch}"
        self.tasks[task] = [Operation("receive", label, size_bytes=size, following=not down, tag=tag)]
        self.waits[task] = []
        self.began[task] = float(self.played.timeline.arrival_s[task])
        return True
