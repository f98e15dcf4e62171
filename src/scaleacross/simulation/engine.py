"""Tasks that wait for one another: computations at a rate, flows that share links.

* a *task* starts when all tasks that it waits for have arrived, and, on a lane, when the task before it on that lane has ended
* a *computation* takes its seconds on its device, longer while running transfers hold a share of that device (SMs)
* a *flow* sends its bytes at its max-min fair rate; the last byte arrives ``latency_s`` after it was sent

Nothing here knows of training; ``clock`` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from scaleacross.errors import InputError
from scaleacross.simulation.clock import Clock
from scaleacross.simulation.fair_share import Floats
from scaleacross.simulation.tasks import Path, Task, Timeline


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
        return self._add(Task(name, seconds, None, device, 0.0, np.inf, (), 0.0), after, (), lane)

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
        """Add a flow; returns its number. ``after`` must have arrived, ``after_end`` only have been sent."""
        task = Task(name, size_bytes, path, None, latency_s, cap_bytes_per_s, holds, held_fraction)
        return self._add(task, after, after_end, lane)

    def also_after(self, task: int, others: Iterable[int] = (), ended: Iterable[int] = ()) -> None:
        """Let ``task``, added before, wait for more: a collective waits for members that are added after it."""
        self._after[task].extend(others)
        self._after_end[task].extend(ended)

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

    def waited_for(self, task: int) -> list[tuple[int, bool]]:
        """What ``task`` waits for, each with whether it must have arrived (else only ended)."""
        return [*((one, True) for one in self._after[task]), *((one, False) for one in self._after_end[task])]

    def run(self, progress: Callable[[int, int], None] | None = None) -> Timeline:
        """Run to the end; ``progress`` is told now and then how many tasks of how many have ended.

        Raises:
            InputError: a flow can never end, because one of its links has no capacity, or tasks wait for one another.
        """
        waiting = self._after, self._after_end
        return Clock(self.tasks, *waiting, self.capacities_bytes_per_s, progress).to_the_end()
