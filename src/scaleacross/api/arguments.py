"""Check the arguments of the public Python functions; an error says what to pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, TypeVar

from scaleacross.errors import InputError

T = TypeVar("T")
MAX_SEED: Final = 2**31 - 1
"""Largest seed that the solvers accept."""


def instance(name: str, value: object, kind: type[T], how: str) -> T:
    """Return ``value`` where it is of type ``kind``.

    Args:
        name: name of the argument.
        value: what was passed.
        kind: the type expected.
        how: what to pass, in words.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, kind):
        raise InputError(f"{name}: {how} is expected, not a {type(value).__name__}")
    return value


def path(name: str, value: object, how: str = "a path") -> Path:
    """Return ``value`` as a path where it is one; ``how`` says in words what to pass. Raises InputError."""
    if not isinstance(value, str | Path):
        raise InputError(f"{name}: {how} is expected, not a {type(value).__name__}")
    return Path(value)


def instances(name: str, values: Iterable[object], kind: type[T], how: str) -> Sequence[T]:
    """Return ``values`` where all are of type ``kind``. Raises InputError."""
    listed = values if isinstance(values, list | tuple) else None
    if listed is None or not all(isinstance(one, kind) for one in listed):
        wrong = next((one for one in listed or () if not isinstance(one, kind)), values)
        inside = "" if listed is None else " in it"
        raise InputError(f"{name}: a list of {how} is expected, not a {type(wrong).__name__}{inside}")
    return listed


def numbers(**values: Any) -> None:
    """Raise InputError where one of ``values`` is neither a number nor None."""
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise InputError(f"{name}: a number is expected, not a {type(value).__name__} ({value!r:.40})")


def whole_numbers(**values: Any) -> None:
    """Raise InputError where one of ``values`` is neither a whole number nor None."""
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise InputError(f"{name}: a whole number is expected, not a {type(value).__name__} ({value!r:.40})")


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise InputError where ``value`` is none of the texts in ``allowed``."""
    if value not in allowed:
        raise InputError(f"{name}: one of {', '.join(allowed)} is expected, not {value!r:.40}")


def between(least: float, most: float, **values: float | None) -> None:
    """Raise InputError where one of ``values`` is a number outside ``least`` to ``most``, or NaN."""
    for name, value in values.items():
        if value is not None and not least <= value <= most:
            room = f"{least:,} or more" if most == inf else f"a number from {least:,} to {most:,}"
            raise InputError(f"{name}: {room} is expected, not {value:g}")


def search_arguments(
    time_limit_s: float, *, gap_tolerance: float = 0.0, seed: int = 0, work_limit: int | None = None
) -> None:
    """Raise InputError where one of the arguments of a search is of a wrong type or out of range."""
    numbers(time_limit_s=time_limit_s, gap_tolerance=gap_tolerance)
    whole_numbers(seed=seed, work_limit=work_limit)
    between(0, inf, time_limit_s=time_limit_s)
    between(0, 1, gap_tolerance=gap_tolerance)
    between(0, MAX_SEED, seed=seed)
    between(1, inf, work_limit=work_limit)
