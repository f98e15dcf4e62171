"""One event after another: when every task starts, ends and arrives. Deterministic: equal tasks give equal times.

A start or an end changes rates only on links that flows could overload, so only flows that share such links are looked at, and
once for every set of kinds that meet there: a pipeline meets the same sets again and again.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain

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
        capacities: Floats,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.tasks, self.progress, self.ended = tasks, progress, 0
        count = len(self.tasks)
        self.start, self.end, self.arrival = [np.nan] * count, [np.nan] * count, [np.nan] * count
        self.waits = [len(one) for one in after]
        self._make_waiting(after)
        self.now, self.order, self.steps = 0.0, 0, 0
        self.events: list[tuple[float, int, int, int]] = []
        self.left, self.rate, self.since = [0.0] * count, [0.0] * count, [0.0] * count
        self.version = [0] * count
        self._make_links(capacities)
        self.held: dict[int | None, float] = {}
        for one in self.tasks:
            if one.held_fraction:
                self.held |= dict.fromkeys(one.holds, 0.0)
        self.computing: dict[int | None, set[int]] = {device: set() for device in self.held}

    def _make_waiting(self, after: Sequence[Sequence[int]]) -> None:
        """Who waits for whom: ``on_end[t]`` for the end of task t, and for its arrival what ``on_arrival`` has from
        ``first_on_arrival[t]`` up to that of the next task."""
        others = np.fromiter(chain.from_iterable(after), dtype=np.int64, count=sum(self.waits))
        waiting = np.repeat(np.arange(len(after)), self.waits)
        arrives = others >= 0
        order = np.argsort(others[arrives], kind="stable")
        self.on_arrival = waiting[arrives][order].tolist()
        self.first_on_arrival = np.searchsorted(others[arrives][order], np.arange(len(after) + 1)).tolist()
        self.on_end: defaultdict[int, list[int]] = defaultdict(list)
        for task, other in zip(waiting[~arrives].tolist(), (~others[~arrives]).tolist(), strict=True):
            self.on_end[other].append(task)

    def _make_links(self, capacities: Floats) -> None:
        """Kinds of flows (equal path and cap) with the rate that each reaches alone, and the state of every link."""
        self.capacities, self.room = capacities, (capacities * (1 + _ROUNDING)).tolist()
        kinds: dict[tuple[Path, float], int] = {}
        of_task: dict[int, int] = {}  # tasks that are one object, by its identity
        self.kind_of = [-1] * len(self.tasks)
        self.paths: list[Path] = []
        self.alone: list[float] = []
        for number, task in enumerate(self.tasks):
            if task.path is None:
                continue
            if id(task) in of_task:
                self.kind_of[number] = of_task[id(task)]
                continue
            path = tuple(task.path)
            kind = of_task[id(task)] = kinds.setdefault((path, task.cap_bytes_per_s), len(kinds))
            if kind == len(self.paths):
                limits = [float(capacities[link]) / weight for link, weight in path if weight > 0]
                self.paths.append(path)
                self.alone.append(min([task.cap_bytes_per_s, *limits]))
            self.kind_of[number] = kind
        self.loads = [
            [(link, weight * alone) for link, weight in path]
            for path, alone in zip(self.paths, self.alone, strict=True)
        ]
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
        if self.ended < len(self.tasks):
            raise InputError(self._why_not())
        return Timeline(self.tasks, np.array(self.start), np.array(self.end), np.array(self.arrival))

    def _why_not(self) -> str:
        """Why some tasks have not ended."""
        endless = (task for task, waits in enumerate(self.waits) if not waits and np.isnan(self.end[task]))
        if (one := next(endless, None)) is not None:
            return f"'{self.tasks[one].name}' never ends: one of its links, or its device, has nothing left for it"
        stuck = next(task for task, waits in enumerate(self.waits) if waits)
        return f"'{self.tasks[stuck].name}' never starts: it waits for tasks that wait for it"

    def _step(self) -> None:
        """Everything that happens at the next moment."""
        events, versions = self.events, self.version
        self.now = events[0][0]
        horizon = self.now * (1 + _ROUNDING)
        while events and events[0][0] <= horizon:
            _, _, task, version = heapq.heappop(events)
            if version < 0:
                self._let_go(task)
                free = self._arrived(task)
            elif versions[task] == version:
                self._leave(task)
                free = self._end(task)
            else:
                continue
            if free:
                self._begin(free)
        if self.unsettled or self.shifted:
            self._settle()

    def _begin(self, tasks: list[int]) -> None:
        """Start tasks; those without work end at once."""
        queue, now = tasks, self.now
        while queue:
            task = queue.pop()
            one = self.tasks[task]
            self.start[task] = now
            if one.amount <= 0:
                queue += self._end(task)
            elif one.path is not None:
                self._join(task, one)
            elif one.device in self.held:
                self.left[task], self.since[task] = one.amount, now
                self.computing[one.device].add(task)
                self._set_rate(task, max(0.0, 1.0 - self.held[one.device]))
            else:
                self.order += 1
                heapq.heappush(self.events, (now + one.amount, self.order, task, 0))

    def _join(self, task: int, one: Task) -> None:
        """A flow on its links."""
        load, room = self.load, self.room
        self.left[task], self.since[task] = one.amount, self.now
        for link, more in self.loads[self.kind_of[task]]:
            load[link] += more
            self.on_link[link].add(task)
            if load[link] > room[link]:
                self.shifted.add(link)
        self.unsettled.add(task)
        if one.held_fraction:
            self._hold(one.holds, one.held_fraction)

    def _leave(self, task: int) -> None:
        """What runs ends: off its links, or off its device."""
        one = self.tasks[task]
        if one.path is None:
            if one.device in self.held:
                self.computing[one.device].discard(task)
            return
        load, over = self.load, self.over
        for link, less in self.loads[self.kind_of[task]]:
            there = self.on_link[link]
            there.discard(task)
            load[link] = load[link] - less if there else 0.0
            if link in over:
                self.shifted.add(link)
        self.unsettled.discard(task)
        if one.latency_s <= 0:
            self._let_go(task)

    def _settle(self) -> None:
        """New rates for whom the changes of this moment reach: new flows, and flows over links that are or were over."""
        reached, rates = self.unsettled, {}
        if self.shifted:
            rates = self._shared(reached)
        for task in sorted(reached):
            kind = self.kind_of[task]
            rate = rates.get(kind, self.alone[kind])
            if rate != self.rate[task]:
                self._set_rate(task, rate)
        self.unsettled, self.shifted = set(), set()

    def _shared(self, reached: set[int]) -> dict[int, float]:
        """Rates by kind over links that are over; all flows whose rates may have changed join ``reached``.

        A flow that joins or leaves such a link shifts it: without one, what is new has the rate that it reaches alone.
        """
        over, paths, kind_of = self.over, self.paths, self.kind_of
        for link in self.shifted:
            is_over = self.load[link] > self.room[link]
            if is_over or link in over:
                reached |= self.on_link[link]
            (over.add if is_over else over.discard)(link)
        queue, met = list(reached), []
        while queue:
            task = queue.pop()
            shared = False
            for link, _ in paths[kind_of[task]]:
                if link in over:
                    shared = True
                    more = self.on_link[link] - reached
                    reached |= more
                    queue += more
            if shared:
                met.append(kind_of[task])
        return self._fair(tuple(sorted(met))) if met else {}

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
            self.order += 1
            heapq.heappush(self.events, (self.now + left / rate, self.order, task, self.version[task]))

    def _end(self, task: int) -> list[int]:
        """Task ``task`` ends now: the tasks that may start."""
        latency_s = self.tasks[task].latency_s
        self.ended += 1
        self.end[task] = self.now
        self.arrival[task] = self.now + latency_s if latency_s else self.now
        free = self._released(self.on_end[task]) if task in self.on_end else []
        if latency_s > 0:
            self.order += 1
            heapq.heappush(self.events, (self.arrival[task], self.order, task, -1))
            return free
        return free + self._arrived(task)

    def _arrived(self, task: int) -> list[int]:
        """The tasks that may start with the arrival of ``task``."""
        first = self.first_on_arrival
        return self._released(self.on_arrival[first[task] : first[task + 1]])

    def _released(self, waiting: list[int]) -> list[int]:
        """The tasks that waited for nothing else."""
        free, waits = [], self.waits
        for task in waiting:
            waits[task] -= 1
            if not waits[task]:
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
