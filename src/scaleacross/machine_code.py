"""Compile loops to machine code with numba, and keep compile time out of time limits.

``cost_models`` and ``simulation`` compile their inner loops with ``compiled``. A search measures its limit with a clock
from ``without_compiling``. ``when_compiling`` lets the command line tell the user why the first run takes longer.
"""

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
    """Return ``function`` compiled to machine code on its first call.

    Compilation takes seconds once. The result is cached on disk, in the folder of the source file or in the user's
    cache.
    """
    from numba import njit  # imported late: callers that need only a clock load no compiler

    _watch()
    try:
        found: Function = njit(cache=True)(function)
    except RuntimeError:  # neither cache folder is writable
        found = njit(function)
    return found


def without_compiling(clock: Clock) -> Clock:
    """Return ``clock`` minus the time spent compiling; a clock that is not in ``CLOCKS`` is returned unchanged.

    Otherwise the first search after an installation would lose part of its time limit to the compiler.
    """
    return (lambda: clock() - _spent_s[clock]) if clock in CLOCKS else clock


def when_compiling(tell: Callable[[], None]) -> None:
    """Register ``tell``, which is called once, before the first loop of this process is compiled.

    It is not called if all loops are cached on disk.
    """
    _TELL.set(tell)


@cache
def _watch() -> None:
    """Register a listener that adds compile time to ``_spent_s``.

    Functions that a loop calls are compiled inside its own compilation, so only the outermost event is timed.
    """
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
