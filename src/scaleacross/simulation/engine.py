"""Builder of task graphs: computations on devices and flows that share links, which wait for one another.

* a *task* starts when all tasks that it waits for have arrived, and, on a lane, when the task before it on that lane has ended
* a *computation* takes its seconds on its device, longer while running transfers hold a share of that device (SMs)
* a *flow* sends its bytes at its max-min fair rate; the last byte arrives ``latency_s`` after it was sent

This module knows nothing of training. ``clock`` runs the tasks; ``table_step`` uses the builder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from scaleacross.errors import InputError
from scaleacross.simulation import clock
from scaleacross.simulation.tasks import Floats, Path, Task, TaskGraph, Timeline, computation


@dataclass
class Simulation:
    """Tasks to run over links of given capacities (bytes/s).

    ``_after[t]`` is what task t waits for: n for the arrival of task n, ~n for its end alone.
    """

    capacities_bytes_per_s: Floats
    tasks: list[Task] = field(default_factory=list)
    _after: list[list[int]] = field(default_factory=list)
    _lane_ends: dict[object, int] = field(default_factory=dict)

    def compute(
        self, name: str, seconds: float, device: int | None = None, after: Iterable[int] = (), lane: object = None
    ) -> int:
        """Add a computation; returns its number. Tasks of a lane run in the order in which they are added."""
        return self.add(computation(name, seconds, device), after, (), lane)

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
        holds: Sequence[int] = (),
        held_fraction: float = 0.0,
    ) -> int:
        """Add a flow; returns its number. It waits for the arrival of ``after`` and for the end of ``after_end``."""
        task = Task(name, size_bytes, path, None, latency_s, cap_bytes_per_s, holds, held_fraction)
        return self.add(task, after, after_end, lane)

    def add(self, task: Task, after: Iterable[int] = (), after_end: Iterable[int] = (), lane: object = None) -> int:
        """Add a task; returns its number."""
        number, waits = len(self.tasks), list(after)
        if not (task.amount >= 0 and task.latency_s >= 0 and task.cap_bytes_per_s > 0):
            raise InputError(f"task '{task.name}': amount, latency and cap must not be negative, the cap not zero")
        ended = list(after_end) if after_end else []
        for other in chain(waits, ended) if ended else waits:
            if not 0 <= other < number:
                raise InputError(f"task '{task.name}' waits for a task that was not added before it")
        if ended:
            waits += [~other for other in ended]
        if lane is not None:
            if lane in self._lane_ends:
                waits.append(~self._lane_ends[lane])
            self._lane_ends[lane] = number
        self.tasks.append(task)
        self._after.append(waits)
        return number

    def run(self, progress: Callable[[int, int], None] | None = None) -> Timeline:
        """Run all tasks; ``progress`` is called now and then with the number of ended tasks and of all tasks.

        Raises:
            InputError: a flow can never end, because one of its links has no capacity, or tasks wait for one another.
        """
        kinds = {id(task): task for task in self.tasks}
        number = {one: kind for kind, one in enumerate(kinds)}
        of = np.array([number[id(task)] for task in self.tasks], dtype=np.int64)
        first = np.concatenate([[0], np.cumsum([len(one) for one in self._after], dtype=np.int64)])
        waits = np.fromiter(chain.from_iterable(self._after), dtype=np.int64, count=int(first[-1]))
        graph = TaskGraph(tuple(kinds.values()), of, waits, first)
        return clock.run(graph, np.asarray(self.capacities_bytes_per_s, dtype=np.float64), progress)
