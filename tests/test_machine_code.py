"""Compiling loops takes no time from a search."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from numba import njit

from scaleacross.machine_code import CLOCKS, compiled, when_compiling, without_compiling


@pytest.mark.parametrize("clock", CLOCKS)
def test_clock_stands_still_while_a_loop_is_compiled(clock: Callable[[], float]) -> None:
    """The clock stands still during compilation.

    The function is new and not cached, and it calls another one that is compiled with it.
    """
    compiled(abs_of)
    inner = njit(lambda number: number * 3 + 1)
    outer = njit(lambda number: inner(number) if number > 2 else inner(-number))
    still = without_compiling(clock)
    own, all_in = still(), clock()
    outer(5)
    took, spent = still() - own, clock() - all_in
    assert spent > 0.02
    assert 0 <= took < spent / 2


def test_other_clocks_are_left_alone() -> None:
    assert without_compiling(time.monotonic) is time.monotonic


def abs_of(number: float) -> float:
    return abs(number)


def test_whoever_waits_is_told_once_that_loops_are_compiled() -> None:
    compiled(abs_of)
    told: list[str] = []
    when_compiling(lambda: told.append("compiling"))
    loops = njit(lambda number: number * 3), njit(lambda number: number * 2)
    assert not told
    assert [loop(2) for loop in loops] == [6, 4]
    assert told == ["compiling"]
