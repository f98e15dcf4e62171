"""Data types of a simulation: tasks (computations on devices, flows along links), their graph, and their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Path = Sequence[tuple[int, float]]
"""(link, bytes on the link per byte of the flow) pairs."""


class Task(NamedTuple):
    """One computation on ``device`` or one flow along ``path``.

    Attributes:
        name: name in messages.
        amount: seconds of computation at full speed, or bytes.
        path: links of a flow; None for a computation.
        device: device of a computation.
        latency_s: time from end to arrival.
        cap_bytes_per_s: largest rate of the flow, however free its links are.
        holds: devices of which the flow keeps ``held_fraction`` from computations.
    """

    name: str
    amount: float
    path: Path | None
    device: int | None
    latency_s: float
    cap_bytes_per_s: float
    holds: Sequence[int]
    held_fraction: float


def computation(name: str, seconds: float, device: int | None = None) -> Task:
    """Return a task without a path."""
    return Task(name, seconds, None, device, 0.0, np.inf, (), 0.0)


@dataclass(frozen=True)
class TaskGraph:
    """Tasks and what they wait for.

    Attributes:
        kinds: the distinct tasks.
        of: (tasks,) index in ``kinds`` of each task.
        waits: (waits,) n for the arrival of task n, ~n for its end alone; the waits of task 0 first, then of task 1, …
        first_wait: (tasks + 1,) index in ``waits`` at which those of each task begin.
    """

    kinds: Sequence[Task]
    of: Ints
    waits: Ints
    first_wait: Ints


@dataclass(frozen=True)
class Timeline:
    """Start, end and arrival of every task, s: (tasks,) arrays. ``arrival_s`` = end + latency.

    Attributes:
        kinds: the distinct tasks.
        of: (tasks,) index in ``kinds`` of each task.
    """

    kinds: Sequence[Task]
    of: Ints
    start_s: Floats
    end_s: Floats
    arrival_s: Floats

    def task(self, number: int) -> Task:
        """Return the task of a number."""
        return self.kinds[int(self.of[number])]

    @property
    def total_s(self) -> float:
        """Time of the last arrival, s."""
        return float(self.arrival_s.max(initial=0.0))
