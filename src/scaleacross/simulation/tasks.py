"""What a simulation is made of: computations at a rate and flows along links, and when each of them happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Path = Sequence[tuple[int, float]]
"""(link, how many like this flow cross it together) pairs."""


class Task(NamedTuple):
    """One computation (``seconds`` on ``device``) or one flow (``size_bytes`` along ``path``).

    Attributes:
        name: for people.
        amount: seconds of computation at full speed, or bytes.
        path: links of a flow; None for a computation.
        device: where a computation runs.
        latency_s: from end to arrival.
        cap_bytes_per_s: what the flow reaches alone.
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
    """A task without a path."""
    return Task(name, seconds, None, device, 0.0, np.inf, (), 0.0)


@dataclass(frozen=True)
class TaskGraph:
    """Tasks and what they wait for.

    Attributes:
        kinds: equal tasks are one of these.
        of: (tasks,) kind of each.
        waits: (waits,) n for the arrival of task n, ~n for its end alone; task after task.
        first_wait: (tasks + 1,) where the waits of each begin.
    """

    kinds: Sequence[Task]
    of: Ints
    waits: Ints
    first_wait: Ints


@dataclass(frozen=True)
class Timeline:
    """When everything happened, s: arrays over tasks in the order in which they were added. ``arrival_s`` = end + latency.

    Attributes:
        kinds: equal tasks are one of these.
        of: (tasks,) kind of each.
    """

    kinds: Sequence[Task]
    of: Ints
    start_s: Floats
    end_s: Floats
    arrival_s: Floats

    def task(self, number: int) -> Task:
        """The task of a number."""
        return self.kinds[int(self.of[number])]

    @property
    def total_s(self) -> float:
        """Last arrival."""
        return float(self.arrival_s.max(initial=0.0))
