"""Quantises fp32 elements to whole numbers, such that every element decodes to within a bound.

An element x becomes q = round(x / step) and decodes to fp32(q · step). Its error is at most half a step plus the
rounding to fp32. With m the largest |x| the step is therefore

    step = 2 · (bound − ulp(m + bound) / 2)         all of the bound but what fp32 needs to write the result

The encoder decodes what it has coded. Elements that are still off by more than the bound are exceptions, which travel
uncoded. They occur only where the bound is close to an ulp of the values. The comparison is exact: x and its decoded
value differ by less than 2^29 in scale, so their difference is a float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleacross.errors import InputError

Rows = NDArray[np.float32]
Codes = NDArray[np.int32]

LARGEST_CODE: Final = 2**24
"""Largest code. fp32 holds whole numbers exactly up to here; an element of more steps travels uncoded."""
_LARGEST: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Quantised:
    """Rows as whole numbers, with every distinct row stored once.

    Attributes:
        step: value of one code.
        codes: int32 (distinct rows, width).
        index: int64 (rows,), number of each row's distinct row; distinct rows are numbered as they first appear.
        places: int64, flat positions of the elements that travel uncoded.
        values: fp32 values of these elements.
    """

    step: float
    codes: Codes
    index: NDArray[np.int64]
    places: NDArray[np.int64]
    values: Rows

    def rows(self) -> Rows:
        """Return the decoded rows, fp32 (rows, width)."""
        out = dequantised(self.codes, self.step)[self.index]
        out.reshape(-1)[self.places] = self.values
        return out


def checked_rows(rows: NDArray[np.generic]) -> Rows:
    """Return ``rows`` if they are fp32 (rows, width) and finite.

    Raises:
        InputError: another type or shape, infinities or NaN.
    """
    if rows.dtype != np.float32 or rows.ndim != 2:
        way = "" if rows.dtype == np.float32 or rows.dtype.kind != "f" else ": convert them, bounds are of fp32"
        raise InputError(f"rows are fp32 of (rows, width), not {rows.dtype} of {rows.shape}{way}")
    bad = ~np.isfinite(rows)
    if number := int(np.count_nonzero(bad)):
        row, column = np.argwhere(bad)[0].tolist()
        raise InputError(
            f"{number:,} of {rows.size:,} elements are infinite or NaN (first: row {row:,}, column {column:,}): "
            "no bound holds for them"
        )
    return rows.astype(np.float32, copy=False)


def checked_bound(bound: float) -> float:
    """Return ``bound`` if it is positive and finite; raise InputError otherwise."""
    if not (bound > 0 and math.isfinite(bound)):
        raise InputError(f"an error bound must be positive and finite; got {bound}")
    return float(bound)


def absolute_bound(rows: Rows, fraction: float) -> float:
    """Return ``fraction`` of the range of ``rows`` (largest minus smallest) as an absolute bound.

    For constant rows it is that fraction of the constant's magnitude. For rows of zeros, and for no rows, it is
    ``fraction`` itself.

    Raises:
        InputError: the fraction is not positive and finite.
    """
    checked_bound(fraction)
    if not rows.size:
        return fraction
    low, high = float(rows.min()), float(rows.max())
    return fraction * ((high - low) or abs(high) or 1.0)


def quantise(rows: NDArray[np.generic], bound: float) -> Quantised:
    """Quantise ``rows`` so that every element decodes to within ``bound``.

    Args:
        rows: fp32 (rows, width), finite.
        bound: absolute, positive.

    Raises:
        InputError: infinities, NaN, another type or shape, or a bound that is not positive and finite.
    """
    own, bound = checked_rows(rows), checked_bound(bound)
    step = step_of(float(np.abs(own).max()) if own.size else 0.0, bound)
    # an element of more than LARGEST_CODE steps is an exception below, whatever stands in its place
    with np.errstate(over="ignore"):
        whole = np.rint(own.astype(np.float64) / step)
    whole[np.abs(whole) > LARGEST_CODE] = 0
    first, index = distinct_rows(whole.astype(np.int32))
    codes = whole[first].astype(np.int32)
    with np.errstate(over="ignore"):
        off = np.abs(dequantised(codes, step)[index].astype(np.float64) - own) > bound
    places = np.flatnonzero(off)
    return Quantised(step, codes, index, places, own.reshape(-1)[places])


def dequantised(codes: Codes, step: float) -> Rows:
    """Return the fp32 values of ``codes``, of the same shape."""
    with np.errstate(over="ignore"):
        return (codes * np.float64(step)).astype(np.float32)


def distinct_rows(rows: NDArray[np.generic]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (first position of each distinct row, number of each row's distinct row), int64 (distinct,) and (rows,).

    Distinct rows are numbered as they first appear. Rows are compared by a 64-bit hash, and the result is then checked
    element by element. If two different rows share a hash, all rows are compared whole, which takes longer.
    """
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    words = np.ascontiguousarray(rows).view(np.uint32).reshape(len(rows), -1).astype(np.uint64)
    first, index = _numbered(words @ _multipliers(words.shape[1]))
    if not np.array_equal(rows[first][index], rows):
        whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)
        first, index = _numbered(whole)
    return first, index


def _numbered(keys: NDArray[np.generic]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    # np.unique numbers by value; renumber by first appearance
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return first[order], number[inverse.reshape(-1)]


def _multipliers(width: int) -> NDArray[np.uint64]:
    """Return ``width`` odd 64-bit numbers, the same in every run."""
    drawn = np.random.default_rng(0x5CA1E).integers(0, 2**63, width, dtype=np.uint64)
    return drawn * np.uint64(2) + np.uint64(1)


def step_of(largest: float, bound: float) -> float:
    """Return the value of one code for elements of magnitude ``largest`` at most."""
    with np.errstate(over="ignore"):
        rounding = float(np.spacing(np.float32(min(largest + bound, _LARGEST)))) / 2
    # where fp32's own rounding takes more than half of the bound, exceptions are cheaper than many more codes
    return 2 * (bound - rounding) if rounding < bound / 2 else 2 * bound
