"""Loops as machine code, a clock that stands still while it is made, and a word to whoever waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import Final, TypeVar

Function = TypeVar("Function", bound=Callable[..., object])
Clock = Callable[[], float]
CLOCKS: Final[tuple[Clock, ...]] = (time.perf_counter, time.process_time)
_spent_s: Final = dict.fromkeys(CLOCKS, 0.0)
_TELL: Final[ContextVar[Callable[[], None] | None]] = ContextVar("tell", default=None)


def compiled(function: Function) -> Function:
    """``function`` as machine code, which takes seconds once: it is kept on disk, beside its file or in the user's cache."""
    from numba import njit  # late: whoever asks for a clock alone needs no compiler

    _watch()
    try:
        found: Function = njit(cache=True)(function)
    except RuntimeError:  # neither folder may be written
        found = njit(function)
    return found


def without_compiling(clock: Clock) -> Clock:
    """A clock that is one of ``CLOCKS``, but stands still while loops are compiled: the first search after an installation has as
    much of its limit as all others. Other clocks as they are."""
    return (lambda: clock() - _spent_s[clock]) if clock in CLOCKS else clock


def when_compiling(tell: Callable[[], None]) -> None:
    """Have ``tell`` called before the first loop of this process is compiled; not where all are on disk already."""
    _TELL.set(tell)


@cache
def _watch() -> None:
    """Have the compiler say when it works; what a loop calls is compiled while it is."""
    from numba.core import event

    class Watch(event.Listener):  # type: ignore[misc]  # numba has no types
        depth = 0

        def on_start(self, event: object) -> None:
            if self.depth == 0:
                tell = _TELL.get()
                _TELL.set(None)
                if tell is not None:
                    tell()
                self.began_s = [clock() for clock in CLOCKS]
            self.depth += 1

        def on_end(self, event: object) -> None:
            self.depth -= 1
            if self.depth == 0:
                for clock, began_s in zip(CLOCKS, self.began_s, strict=True):
                    _spent_s[clock] += clock() - began_s

    event.register("numba:compile", Watch())
