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
    """Names of the fields of a dataclass, in order."""
    return _known(kind)[0]


def columns_of(rows: Any) -> tuple[Any, ...]:
    """Fields of a dataclass instance with at least two fields, in order."""
    kind: Any = type(rows)
    columns: tuple[Any, ...] = _known(kind)[1](rows)
    return columns


def concatenated(parts: Sequence[T]) -> T:
    """Concatenate the rows of at least one part."""
    return type(parts[0])(*map(np.concatenate, zip(*map(columns_of, parts), strict=True)))


@cache
def _known(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    """Names and a getter of the fields, remembered: searches select rows tens of thousands of times, and
    ``dataclasses.fields`` inspects all fields each time."""
    names = tuple(field.name for field in fields(kind))
    return names, attrgetter(*names)
