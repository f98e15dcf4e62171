"""One event after another: when every task starts, ends and arrives. Deterministic: equal tasks give equal times.

A start or an end changes rates only on links that flows could overload, so only flows that share such links are looked at, and
once for every set of kinds that meet there: a pipeline meets the same sets again and again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from scaleacross.errors import InputError
from scaleacross.simulation.fair_share import Floats, Incidence, fair_rates
from scaleacross.simulation.tasks import Path, Task, Timeline

_TOLD_EVERY = 5000  # moments between two reports of progress
_ROUNDING = 1e-12  # relative; two ends closer than this are one


class Clock:
    """State of one run. ``waits[t]`` counts what task t still waits for; ``events`` holds (time, order, task, version).

    A link is *over* when the flows on it could overload it, each at the rate that it reaches alone. Only flows over such
    links are shared out; all others have that rate. Version -1 is an arrival, any other an end that holds while the rate does.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        after: Sequence[Sequence[int]],
        after_end: Sequence[Sequence[int]],
        capacities: Floats,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.tasks, self.progress, self.ended = tasks, progress, 0
        count = len(self.tasks)
        self.start, self.end, self.arrival = [np.nan] * count, [np.nan] * count, [np.nan] * count
        self.waits = [len(one) + len(other) for one, other in zip(after, after_end, strict=True)]
        self.on_arrival: list[list[int]] = [[] for _ in range(count)]
        self.on_end: list[list[int]] = [[] for _ in range(count)]
        for waited_for, waiting in ((after, self.on_arrival), (after_end, self.on_end)):
            for task, others in enumerate(waited_for):
                for other in others:
                    waiting[other].append(task)
        self.now, self.order, self.steps = 0.0, 0, 0
        self.events: list[tuple[float, int, int, int]] = []
        self.left: dict[int, float] = {}
        self.rate: dict[int, float] = {}
        self.since: dict[int, float] = {}
        self.version = [0] * count
        self._make_links(capacities)
        self.held: dict[int, float] = {}
        for one in self.tasks:
            if one.held_fraction:
                self.held |= dict.fromkeys(one.holds, 0.0)
        self.computing: dict[int, set[int]] = {device: set() for device in self.held}

    def _make_links(self, capacities: Floats) -> None:
        """Kinds of flows (equal path and cap) with the rate that each reaches alone, and the state of every link."""
        self.capacities, self.room = capacities, (capacities * (1 + _ROUNDING)).tolist()
        kinds: dict[tuple[Path, float], int] = {}
        self.kind_of = [-1] * len(self.tasks)
        self.paths: list[Path] = []
        self.alone: list[float] = []
        for number, task in enumerate(self.tasks):
            if task.path is None:
                continue
            path = tuple(task.path)
            kind = kinds.setdefault((path, task.cap_bytes_per_s), len(kinds))
            if kind == len(self.paths):
                limits = [float(capacities[link]) / weight for link, weight in path if weight > 0]
                self.paths.append(path)
                self.alone.append(min([task.cap_bytes_per_s, *limits]))
            self.kind_of[number] = kind
        self.load = [0.0] * len(capacities)
        self.on_link: list[set[int]] = [set() for _ in capacities]
        self.over: set[int] = set()
        self.unsettled: set[int] = set()
        self.shifted: set[int] = set()
        self.known: dict[tuple[int, ...], dict[int, float]] = {}

    def to_the_end(self) -> Timeline:
        self._begin([task for task, waits in enumerate(self.waits) if not waits])
        self._settle()
        while self.events:
            self._step()
            self.steps += 1
            if self.progress is not None and self.steps % _TOLD_EVERY == 0:
                self.progress(self.ended, len(self.tasks))
        if self.left:
            name = self.tasks[next(iter(self.left))].name
            raise InputError(f"'{name}' never ends: one of its links, or its device, has nothing left for it")
        stuck = next((task for task, waits in enumerate(self.waits) if waits), None)
        if stuck is not None:
            raise InputError(f"'{self.tasks[stuck].name}' never starts: it waits for tasks that wait for it")
        return Timeline(self.tasks, np.array(self.start), np.array(self.end), np.array(self.arrival))

    def _step(self) -> None:
        """Everything that happens at the next moment."""
        events = self.events
        self.now = events[0][0]
        horizon = self.now * (1 + _ROUNDING)
        while events and events[0][0] <= horizon:
            _, _, task, version = heapq.heappop(events)
            if version < 0:
                self._let_go(task)
                self._begin(self._release(self.on_arrival[task]))
            elif self.version[task] == version:
                self._leave(task)
                self._begin(self._end(task))
        if self.unsettled or self.shifted:
            self._settle()

    def _push(self, time: float, task: int, version: int) -> None:
        self.order += 1
        heapq.heappush(self.events, (time, self.order, task, version))

    def _begin(self, tasks: list[int]) -> None:
        """Start tasks; those without work end at once."""
        queue = tasks
        while queue:
            task = queue.pop()
            one = self.tasks[task]
            self.start[task] = self.now
            if one.amount <= 0:
                queue += self._end(task)
            elif one.path is not None:
                self._join(task)
            elif one.device in self.held:
                self.left[task], self.since[task] = one.amount, self.now
                self.rate[task] = 0.0
                self.computing[one.device].add(task)
                self._set_rate(task, max(0.0, 1.0 - self.held[one.device]))
            else:
                self._push(self.now + one.amount, task, 0)

    def _join(self, task: int) -> None:
        """A flow on its links."""
        one, kind = self.tasks[task], self.kind_of[task]
        alone, load = self.alone[kind], self.load
        self.left[task], self.since[task], self.rate[task] = one.amount, self.now, 0.0
        for link, weight in self.paths[kind]:
            load[link] += weight * alone
            self.on_link[link].add(task)
            if load[link] > self.room[link]:
                self.shifted.add(link)
        self.unsettled.add(task)
        if one.held_fraction:
            self._hold(one.holds, one.held_fraction)

    def _leave(self, task: int) -> None:
        """What runs ends: off its links, or off its device."""
        if task not in self.left:
            return
        one, kind = self.tasks[task], self.kind_of[task]
        del self.left[task], self.rate[task], self.since[task]
        self.version[task] += 1
        if one.path is None:
            self.computing[one.device].discard(task)  # type: ignore[index]
            return
        alone = self.alone[kind]
        for link, weight in self.paths[kind]:
            there = self.on_link[link]
            there.discard(task)
            self.load[link] = self.load[link] - weight * alone if there else 0.0
            if link in self.over:
                self.shifted.add(link)
        self.unsettled.discard(task)
        if one.latency_s <= 0:
            self._let_go(task)

    def _settle(self) -> None:
        """New rates for whom the changes of this moment reach: new flows, and flows over links that are or were over."""
        reached = self.unsettled
        for link in self.shifted:
            is_over = self.load[link] > self.room[link]
            if is_over or link in self.over:
                reached |= self.on_link[link]
            (self.over.add if is_over else self.over.discard)(link)
        queue, met = list(reached), []
        while queue:
            task = queue.pop()
            shared = False
            for link, _ in self.paths[self.kind_of[task]]:
                if link in self.over:
                    shared = True
                    more = self.on_link[link] - reached
                    reached |= more
                    queue += more
            if shared:
                met.append(task)
        rates = self._fair(tuple(sorted(self.kind_of[task] for task in met))) if met else {}
        for task in sorted(reached):
            kind = self.kind_of[task]
            self._set_rate(task, rates.get(kind, self.alone[kind]))
        self.unsettled, self.shifted = set(), set()

    def _fair(self, kinds: tuple[int, ...]) -> dict[int, float]:
        """Max-min fair rates of flows over links that are over; no other link limits them below what they reach alone."""
        if kinds not in self.known:
            paths = [[hop for hop in self.paths[kind] if hop[0] in self.over] for kind in kinds]
            shared = fair_rates(Incidence.of(paths), np.array([self.alone[kind] for kind in kinds]), self.capacities)
            self.known[kinds] = dict(zip(kinds, shared.tolist(), strict=True))
        return self.known[kinds]

    def _set_rate(self, task: int, rate: float) -> None:
        before = self.rate[task]
        if rate == before:
            return
        passed = self.now - self.since[task]
        left = self.left[task]
        if passed > 0 and before > 0:
            left = max(0.0, left - before * passed)
        self.left[task], self.since[task], self.rate[task] = left, self.now, rate
        self.version[task] += 1
        if rate > 0:
            self._push(self.now + left / rate, task, self.version[task])

    def _end(self, task: int) -> list[int]:
        """Task ``task`` ends now: the tasks that may start."""
        one = self.tasks[task]
        self.ended += 1
        self.end[task] = self.now
        self.arrival[task] = self.now + one.latency_s
        released = self._release(self.on_end[task])
        if one.latency_s > 0:
            self._push(self.arrival[task], task, -1)
            return released
        return released + self._release(self.on_arrival[task])

    def _release(self, waiting: list[int]) -> list[int]:
        free = []
        for task in waiting:
            self.waits[task] -= 1
            if not self.waits[task]:
                free.append(task)
        return free

    def _let_go(self, task: int) -> None:
        """A collective holds multiprocessors until its last message has arrived."""
        one = self.tasks[task]
        if one.held_fraction and one.amount > 0:
            self._hold(one.holds, -one.held_fraction)

    def _hold(self, devices: Sequence[int], share: float) -> None:
        """A flow takes hold of devices, or lets go of them: their computations change pace."""
        for device in devices:
            self.held[device] += share
            for task in sorted(self.computing[device]):
                self._set_rate(task, max(0.0, 1.0 - self.held[device]))
