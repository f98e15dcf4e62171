"""The clock: tasks that wait for one another, computations at a rate, flows that share links, one event after another.

* a *task* starts when all tasks that it waits for have arrived, and, on a lane, when the task before it on that lane has ended
* a *computation* takes its seconds on its device, longer while running transfers hold a share of that device (SMs)
* a *flow* sends its bytes at its max-min fair rate; the last byte arrives ``latency_s`` after it was sent

Nothing here knows of training. Deterministic: equal tasks give equal times.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scaleacross.errors import InputError
from scaleacross.simulate.fair_share import Floats, Incidence, fair_rates

Bools = NDArray[np.bool_]
Path = Sequence[tuple[int, float]]
"""(link, how many like this flow cross it together) pairs."""

_ROUNDING = 1e-12  # relative; two ends closer than this are one


@dataclass(frozen=True, slots=True)
class Task:
    """One computation (``seconds`` on ``device``) or one flow (``size_bytes`` along ``path``).

    Attributes:
        name: for people.
        amount: seconds of computation at full speed, or bytes.
        path: links of a flow; None for a computation.
        device: computation: where it runs; flow: what it holds a share of.
        latency_s: from end to arrival.
        cap_bytes_per_s: what the flow reaches alone.
        held_fraction: share of ``device`` that the flow keeps from computations.
    """

    name: str
    amount: float
    path: Path | None
    device: int | None
    latency_s: float
    cap_bytes_per_s: float
    held_fraction: float


@dataclass(frozen=True)
class Timeline:
    """When everything happened, s: arrays over tasks in the order in which they were added. ``arrival_s`` = end + latency."""

    tasks: Sequence[Task]
    start_s: Floats
    end_s: Floats
    arrival_s: Floats

    @property
    def total_s(self) -> float:
        """Last arrival."""
        return float(self.arrival_s.max(initial=0.0))


@dataclass
class Simulation:
    """Tasks to run over links of given capacities (bytes/s)."""

    capacities_bytes_per_s: Floats
    tasks: list[Task] = field(default_factory=list)
    _after: list[list[int]] = field(default_factory=list)
    _after_end: list[list[int]] = field(default_factory=list)
    _lane_ends: dict[object, int] = field(default_factory=dict)

    def compute(
        self, name: str, seconds: float, device: int | None = None, after: Iterable[int] = (), lane: object = None
    ) -> int:
        """Add a computation; returns its number. Tasks of a lane run in the order in which they are added."""
        return self._add(Task(name, seconds, None, device, 0.0, np.inf, 0.0), after, (), lane)

    def flow(
        self,
        name: str,
        size_bytes: float,
        path: Path,
        latency_s: float = 0.0,
        after: Iterable[int] = (),
        after_end: Iterable[int] = (),
        lane: object = None,
        cap_bytes_per_s: float = np.inf,
        device: int | None = None,
        held_fraction: float = 0.0,
    ) -> int:
        """Add a flow; returns its number. ``after`` must have arrived, ``after_end`` only have been sent."""
        task = Task(name, size_bytes, path, device, latency_s, cap_bytes_per_s, held_fraction)
        return self._add(task, after, after_end, lane)

    def _add(self, task: Task, after: Iterable[int], after_end: Iterable[int], lane: object) -> int:
        number = len(self.tasks)
        arrived, ended = list(after), list(after_end)
        if not task.amount >= 0 or not task.latency_s >= 0 or not task.cap_bytes_per_s > 0:
            raise InputError(f"task '{task.name}': amount, latency and cap must not be negative, the cap not zero")
        if any(not 0 <= other < number for other in (*arrived, *ended)):
            raise InputError(f"task '{task.name}' waits for a task that was not added before it")
        if lane is not None:
            if lane in self._lane_ends:
                ended.append(self._lane_ends[lane])
            self._lane_ends[lane] = number
        self.tasks.append(task)
        self._after.append(arrived)
        self._after_end.append(ended)
        return number

    def run(self) -> Timeline:
        """Run to the end.

        Raises:
            InputError: a flow can never end, because one of its links has no capacity.
        """
        return _Run(self).to_the_end()


class _Run:
    """State of one run. ``waits[t]`` counts what task t still waits for."""

    def __init__(self, simulation: Simulation) -> None:
        self.tasks, self.capacities = simulation.tasks, simulation.capacities_bytes_per_s
        count = len(self.tasks)
        self.start, self.end, self.arrival = np.full(count, np.nan), np.full(count, np.nan), np.full(count, np.nan)
        self.waits = [
            len(one) + len(other) for one, other in zip(simulation._after, simulation._after_end, strict=True)
        ]
        self.on_arrival: list[list[int]] = [[] for _ in range(count)]
        self.on_end: list[list[int]] = [[] for _ in range(count)]
        for waited_for, waiting in ((simulation._after, self.on_arrival), (simulation._after_end, self.on_end)):
            for task, others in enumerate(waited_for):
                for other in others:
                    waiting[other].append(task)
        self.now = 0.0
        self.arriving: list[tuple[float, int]] = []
        self.active: list[int] = []
        self.left: Floats = np.zeros(0)
        self.rates: Floats = np.zeros(0)

    def to_the_end(self) -> Timeline:
        self._begin([task for task, waits in enumerate(self.waits) if not waits])
        while self.active or self.arriving:
            self._step()
        return Timeline(self.tasks, self.start, self.end, self.arrival)

    def _step(self) -> None:
        """On to the next end or arrival."""
        with np.errstate(divide="ignore", invalid="ignore"):
            needs = np.where(self.left > 0, self.left / self.rates, 0.0)
        until_end = float(needs.min(initial=np.inf))
        arrival = self.arriving[0][0] if self.arriving else np.inf
        if np.isinf(min(until_end, arrival)):
            stuck = self.tasks[self.active[0]].name
            raise InputError(f"'{stuck}' never ends: one of its links, or its device, has nothing left for it")
        passed = min(until_end, arrival - self.now)
        self.now = min(self.now + until_end, arrival)
        released: list[int] = []
        while self.arriving and self.arriving[0][0] <= self.now:
            released += self._release(self.on_arrival[heapq.heappop(self.arriving)[1]])
        ended = needs <= passed * (1 + _ROUNDING)
        if ended.any():
            released += self._finish(ended, passed)
        else:
            self.left = self.left - self.rates * passed
        if released or ended.any():
            self._begin(released)

    def _finish(self, ended: Bools, passed: float) -> list[int]:
        released: list[int] = []
        for index in np.flatnonzero(ended):
            released += self._end(self.active[index])
        self.left = self.left[~ended] - self.rates[~ended] * passed
        self.active = [task for task, over in zip(self.active, ended, strict=True) if not over]
        return released

    def _end(self, task: int) -> list[int]:
        """Task ``task`` ends now: the tasks that may start."""
        self.end[task] = self.now
        self.arrival[task] = self.now + self.tasks[task].latency_s
        released = self._release(self.on_end[task])
        if self.tasks[task].latency_s > 0:
            heapq.heappush(self.arriving, (float(self.arrival[task]), task))
            return released
        return released + self._release(self.on_arrival[task])

    def _release(self, waiting: list[int]) -> list[int]:
        free = []
        for task in waiting:
            self.waits[task] -= 1
            if not self.waits[task]:
                free.append(task)
        return free

    def _begin(self, tasks: list[int]) -> None:
        """Start tasks (those without work end at once) and share the links anew."""
        fresh: list[int] = []
        queue = list(tasks)
        while queue:
            task = queue.pop()
            self.start[task] = self.now
            if self.tasks[task].amount > 0:
                fresh.append(task)
            else:
                queue += self._end(task)
        self.active += sorted(fresh)
        self.left = np.concatenate([self.left, [self.tasks[task].amount for task in sorted(fresh)]])
        self._share()

    def _share(self) -> None:
        """Rates of everything that is active: flows by fairness, computations by what flows leave of their device."""
        tasks = [self.tasks[number] for number in self.active]
        self.rates = np.ones(len(tasks))
        flows = [index for index, task in enumerate(tasks) if task.path is not None]
        if flows:
            incidence = Incidence.of([tasks[index].path or () for index in flows])
            caps = np.array([tasks[index].cap_bytes_per_s for index in flows])
            self.rates[flows] = fair_rates(incidence, caps, self.capacities)
        held: dict[int, float] = {}
        for index in flows:
            device = tasks[index].device
            if device is not None and tasks[index].held_fraction:
                held[device] = held.get(device, 0.0) + tasks[index].held_fraction
        for index, task in enumerate(tasks):
            if task.path is None and task.device in held:
                self.rates[index] = max(0.0, 1.0 - held[task.device])
