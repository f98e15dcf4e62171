"""Loops as machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """``function`` as machine code, which takes seconds once: it is kept on disk, beside its file or in the user's cache."""
    try:
        found: Function = njit(cache=True)(function)
    except RuntimeError:  # neither folder may be written
        found = njit(function)
    return found
