"""Dataclasses of arrays, one row per candidate: their columns, in the order of their fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def column_names(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass."""
    return _known(kind)[0]


def columns_of(rows: Any) -> tuple[Any, ...]:
    """The fields of a dataclass with two fields or more."""
    kind: Any = type(rows)
    columns: tuple[Any, ...] = _known(kind)[1](rows)
    return columns


def concatenated(parts: Sequence[T]) -> T:
    """All rows of one part or more, one after another."""
    return type(parts[0])(*map(np.concatenate, zip(*map(columns_of, parts), strict=True)))


@cache
def _known(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    """Remembered: searches select rows some ten thousand times, and ``dataclasses.fields`` looks through all fields each time."""
    names = tuple(field.name for field in fields(kind))
    return names, attrgetter(*names)
