"""When a search ends: by a clock of seconds or of work, or because the caller stops it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypedDict

from scaleacross.solvers.place_parallelism import never
from scaleacross.solvers.work_limit import WORK_S, SolverWork, count_one


class Limits(TypedDict):
    """Arguments with which a constraint program keeps to the clock of its search."""

    clock: Callable[[], float]
    stopped: Callable[[], bool]


@dataclass(frozen=True)
class Until:
    """The end of a search: ``end_s`` by ``clock``, or the moment at which ``stopped`` turns true."""

    clock: Callable[[], float]
    stopped: Callable[[], bool]
    end_s: float

    @classmethod
    def within(
        cls,
        limit_s: float,
        clock: Callable[[], float] = time.perf_counter,
        stopped: Callable[[], bool] = never,
        work_limit: int | None = None,
    ) -> Until:
        """Return the end of a search that begins now; ``work_limit`` replaces seconds and clock by units of work."""
        if work_limit is not None:
            limit_s, clock = work_limit * WORK_S, SolverWork()
        return cls(clock, stopped, clock() + limit_s)

    def left(self) -> float:
        """Return the seconds left, below 0 once the search is stopped. A look counts as one unit of work."""
        count_one(self.clock)
        return -1.0 if self.stopped() else self.end_s - self.clock()

    def part(self, seconds: float) -> Until:
        """Return the end of a part of the search that begins now and takes ``seconds`` at most."""
        return replace(self, end_s=min(self.end_s, self.clock() + seconds))

    @property
    def limits(self) -> Limits:
        """Return clock and stop of the search."""
        return {"clock": self.clock, "stopped": self.stopped}
