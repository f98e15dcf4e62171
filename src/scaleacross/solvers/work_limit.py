"""Limits in work instead of seconds: a clock of step times, which makes plans independent of machine and load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

WORK_S: Final = 0.01
"""Seconds on an idle machine that one unit of work of a search by constraint programs takes, about."""


class WorkClock:
    """Replaces a clock of seconds; its time is the number of step times computed and of candidates begun."""

    def __init__(self) -> None:
        self._done = 0.0

    def __call__(self) -> float:
        return self._done

    def count(self) -> None:
        """Count one more step time or candidate."""
        self._done += 1


class SolverWork(WorkClock):
    """Replaces a clock of seconds in a search by constraint programs: seconds of work, equal on every machine.

    One plan counts as WORK_S, a constraint program as the seconds that it measures its own operations to take.
    """

    def __call__(self) -> float:
        return self._done * WORK_S

    def spend(self, seconds: float) -> None:
        """Count the work of a constraint program."""
        self._done += seconds / WORK_S


def count_one(clock: Callable[[], float]) -> None:
    """Count one step time or candidate if ``clock`` counts work; do nothing if it counts seconds."""
    if isinstance(clock, WorkClock):
        clock.count()


def another(clock: Callable[[], float]) -> Callable[[], float] | None:
    """A new clock of work for a search inside one that is limited by work; None if that is limited by seconds."""
    return WorkClock() if isinstance(clock, WorkClock) else None
