"""The loop of a simulation in plain Python, for comparison with the compiled one (``simulation.event_loop``).

A start or an end changes rates only on links that flows could overload. Only flows that share such links are
considered, once for every set of kinds that meet there. A pipeline meets the same sets again and again.

A task of a pipeline takes a few microseconds, and method calls would take most of them. ``Clock.to_the_end`` therefore
handles nearly all tasks in one loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import chain, count
from typing import NamedTuple

import numpy as np

from oracles.fair_share import Floats, Incidence, fair_rates
from scaleacross.errors import InputError
from scaleacross.simulation.tasks import Path, Task, Timeline

_TOLD_EVERY = 5000  # moments between two reports of progress
_ROUNDING = 1e-12  # relative; two ends closer than this are one


class _Sort(NamedTuple):
    """What equal tasks share.

    Attributes:
        alone_s: seconds where nobody shares its links or holds its device; inf where that never ends.
        loads: what a flow that is alone puts on its links; None: a computation.
        holds: whether it holds devices.
    """

    amount: float
    alone_s: float
    loads: list[tuple[int, float]] | None
    latency_s: float
    holds: bool
    device: int | None


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
        self.tasks, self.progress = tasks, progress
        number = len(self.tasks)
        self.start, self.end, self.arrival = [np.nan] * number, [np.nan] * number, [np.nan] * number
        self.waits = [len(one) for one in after]
        self._make_waiting(after)
        self.now, self.order, self.steps, self.ended = 0.0, count(1), 0, 0
        self.events: list[tuple[float, int, int, int]] = []
        self.left, self.rate, self.since = [0.0] * number, [0.0] * number, [0.0] * number
        self.version = [0] * number
        self._make_links(capacities)
        self.held: dict[int | None, float] = {}
        for one in {id(task): task for task in self.tasks}.values():
            if one.held_fraction:
                self.held |= dict.fromkeys(one.holds, 0.0)
        self.computing: dict[int | None, set[int]] = {device: set() for device in self.held}

    def _make_waiting(self, after: Sequence[Sequence[int]]) -> None:
        """Waiting tasks of every event.

        ``on_end[t]`` lists those that wait for the end of task t. Those that wait for its arrival are in ``on_arrival``
        from ``first_on_arrival[t]`` to that of the next task.
        """
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
        """Sorts of tasks, kinds of flows (equal path and cap) with the rate that each reaches alone, and the state of every
        link."""
        self.capacities, self.room = capacities, (capacities * (1 + _ROUNDING)).tolist()
        kinds: dict[tuple[Path, float], int] = {}
        known: dict[int, tuple[_Sort, int]] = {}  # tasks that are one object, by its identity
        self.paths: list[Path] = []
        self.alone: list[float] = []
        for task in self.tasks:
            if id(task) not in known:
                known[id(task)] = self._sorted(task, kinds)
        found = [known[id(task)] for task in self.tasks]
        self.sort_of, self.kind_of = [one for one, _ in found], [kind for _, kind in found]
        self.load = [0.0] * len(capacities)
        self.on_link: list[set[int]] = [set() for _ in capacities]
        self.over: set[int] = set()
        self.unsettled: list[int] = []
        self.shifted: set[int] = set()
        self.known: dict[tuple[int, ...], dict[int, float]] = {}

    def _sorted(self, task: Task, kinds: dict[tuple[Path, float], int]) -> tuple[_Sort, int]:
        """The sort of a task, which it shares with equal tasks, and the kind of a flow (-1 for other tasks)."""
        fixed = task.latency_s, bool(task.held_fraction), task.device
        if task.path is None:
            return _Sort(task.amount, task.amount, None, *fixed), -1
        path = tuple(task.path)
        kind = kinds.setdefault((path, task.cap_bytes_per_s), len(kinds))
        if kind == len(self.paths):
            limits = [float(self.capacities[link]) / weight for link, weight in path if weight > 0]
            self.paths.append(path)
            self.alone.append(min([task.cap_bytes_per_s, *limits]))
        alone = self.alone[kind]
        loads = [(link, weight * alone) for link, weight in path]
        return _Sort(task.amount, task.amount / alone if alone > 0 else np.inf, loads, *fixed), kind

    def to_the_end(self) -> Timeline:
        self._run([task for task, waits in enumerate(self.waits) if not waits])
        if self.ended < len(self.tasks):
            raise InputError(self._why_not())
        return Timeline(
            self.tasks, np.arange(len(self.tasks)), np.array(self.start), np.array(self.end), np.array(self.arrival)
        )

    def _run(self, free: list[int]) -> None:
        """Moment after moment, from the tasks that wait for nothing: what ends or arrives, what starts, and new rates."""
        events, version, sort_of, computing = self.events, self.version, self.sort_of, self.computing
        start, end, arrival, left, since = self.start, self.end, self.arrival, self.left, self.since
        load, room, on_link, over, held, waits = self.load, self.room, self.on_link, self.over, self.held, self.waits
        on_end, on_arrival, first, order = self.on_end, self.on_arrival, self.first_on_arrival, self.order
        now = horizon = 0.0
        while True:
            while free:
                task = free.pop()
                amount, alone_s, loads, _, holds, device = sort_of[task]
                start[task] = now
                if amount <= 0:
                    free += self._end_at_once(task)
                elif loads is not None:
                    left[task], since[task] = amount, now
                    for link, more in loads:
                        load[link] += more
                        on_link[link].add(task)
                        if load[link] > room[link]:
                            self.shifted.add(link)
                    self.unsettled.append(task)
                    if holds:
                        self._hold(task, 1)
                elif device in held:
                    left[task], since[task] = amount, now
                    computing[device].add(task)
                    self._set_rate(task, max(0.0, 1.0 - held[device]))
                else:
                    heappush(events, (now + alone_s, next(order), task, 0))
            if not events or events[0][0] > horizon:
                if self.shifted:
                    self._settle()
                elif self.unsettled:
                    self._settle_alone()
                if not events:
                    return
                self._tell()
                now = self.now = events[0][0]
                horizon = now * (1 + _ROUNDING)
            _, _, task, number = heappop(events)
            if number != version[task] and number >= 0:
                continue
            _, _, loads, latency_s, holds, device = sort_of[task]
            if number >= 0:
                if loads is not None:
                    for link, less in loads:
                        there = on_link[link]
                        there.discard(task)
                        load[link] = load[link] - less if there else 0.0
                        if link in over:
                            self.shifted.add(link)
                elif device in held:
                    computing[device].discard(task)
                self.ended += 1
                end[task] = now
                if latency_s > 0:
                    arrival[task] = now + latency_s
                    if task in on_end:
                        free += self._released(on_end[task])
                    heappush(events, (arrival[task], next(order), task, -1))
                    continue
                arrival[task] = now
                if task in on_end:
                    free += self._released(on_end[task])
            if holds:
                self._hold(task, -1)
            for other in on_arrival[first[task] : first[task + 1]]:
                waits[other] -= 1
                if not waits[other]:
                    free.append(other)

    def _tell(self) -> None:
        """Report progress now and then."""
        self.steps += 1
        if self.progress is not None and self.steps % _TOLD_EVERY == 0:
            self.progress(self.ended, len(self.tasks))

    def _why_not(self) -> str:
        """The reason why some tasks have not ended."""
        endless = (task for task, waits in enumerate(self.waits) if not waits and np.isnan(self.end[task]))
        if (one := next(endless, None)) is not None:
            return f"'{self.tasks[one].name}' never ends: one of its links, or its device, has nothing left for it"
        stuck = next(task for task, waits in enumerate(self.waits) if waits)
        return f"'{self.tasks[stuck].name}' never starts: it waits for tasks that wait for it"

    def _end_at_once(self, task: int) -> list[int]:
        """End a task without work at its start; return the tasks that may start."""
        latency_s = self.sort_of[task].latency_s
        self.ended += 1
        self.end[task] = self.now
        self.arrival[task] = self.now + latency_s
        free = self._released(self.on_end[task]) if task in self.on_end else []
        if latency_s > 0:
            heappush(self.events, (self.arrival[task], next(self.order), task, -1))
            return free
        first = self.first_on_arrival
        return free + self._released(self.on_arrival[first[task] : first[task + 1]])

    def _released(self, waiting: list[int]) -> list[int]:
        """The tasks that waited for nothing else."""
        free, waits = [], self.waits
        for task in waiting:
            waits[task] -= 1
            if not waits[task]:
                free.append(task)
        return free

    def _settle_alone(self) -> None:
        """New flows have the rate that each reaches alone."""
        for task in sorted(self.unsettled):
            alone_s = self.sort_of[task].alone_s
            if alone_s < np.inf:
                self.rate[task] = self.alone[self.kind_of[task]]
                self.version[task] += 1
                heappush(self.events, (self.now + alone_s, next(self.order), task, self.version[task]))
        self.unsettled.clear()

    def _settle(self) -> None:
        """Set new rates for all flows that this moment affects.

        They are new flows, and flows over links that are or were over.
        """
        reached = set(self.unsettled)
        rates = self._shared(reached)
        for task in sorted(reached):
            kind = self.kind_of[task]
            rate = rates.get(kind, self.alone[kind])
            if rate != self.rate[task]:
                self._set_rate(task, rate)
        self.unsettled.clear()
        self.shifted.clear()

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
        seen: set[int] = set()
        for task in queue:  # which grows meanwhile
            shared = False
            for link, _ in paths[kind_of[task]]:
                if link in over:
                    shared = True
                    if link not in seen:
                        seen.add(link)
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
            heappush(self.events, (self.now + left / rate, next(self.order), task, self.version[task]))

    def _hold(self, task: int, way: int) -> None:
        """Flows take hold of devices (+1), or release them (-1) with the last arrival.

        The pace of their computations changes.
        """
        one = self.tasks[task]
        if one.amount <= 0:
            return
        for device in one.holds:
            self.held[device] += way * one.held_fraction
            for other in sorted(self.computing[device]):
                self._set_rate(other, max(0.0, 1.0 - self.held[device]))
