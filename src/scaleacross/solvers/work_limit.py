"""Limits in work instead of seconds: a clock that counts step times, so that a plan depends on no machine and no load."""

from __future__ import annotations

from collections.abc import Callable


class WorkClock:
    """Stands where a clock of seconds does; its time is the number of step times computed, and of candidates begun."""

    def __init__(self) -> None:
        self._done = 0

    def __call__(self) -> float:
        return float(self._done)

    def count(self) -> None:
        """One more."""
        self._done += 1


def count_one(clock: Callable[[], float]) -> None:
    """Tell a clock of work that a step time is computed; clocks of seconds need not be told."""
    if isinstance(clock, WorkClock):
        clock.count()


def another(clock: Callable[[], float]) -> Callable[[], float] | None:
    """A clock of work of its own for a search inside another that is limited by work; None where that is by seconds."""
    return WorkClock() if isinstance(clock, WorkClock) else None
