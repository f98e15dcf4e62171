"""Run products of matrices on one thread, because a search multiplies many small matrices.

Threads of the BLAS library wait for one another in busy loops, which costs more CPU than they save. Blocks of
candidates on two accelerator types took 5 s of CPU with one thread and 9 s with two, on two cores that others used as
well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

P = ParamSpec("P")
R = TypeVar("R")


def one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """``function`` with one BLAS thread; the caller's number of threads is restored when it returns."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with threadpool_limits(1, "blas"):
            return function(*args, **kwargs)

    return limited
