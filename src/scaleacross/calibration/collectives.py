"""Fit curves of collectives to measurements, and measure their error on sizes that the fit has not seen.

The fit, for one operation and group size (all given systems share it):

1. median time of every size
2. the rising sequence nearest to the medians in absolute log error (pool adjacent violators with medians)
3. the fewest of its points such that straight lines between them pass within TOLERANCE (relative) of all others

Between two points time is α + β·S with their own α and β, so the points are the size classes. The held-out error fits
every second size (4× apart) and predicts the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, TypeVar

import numpy as np

from scaleacross.calibration.collective_data import Measurement
from scaleacross.cost_models.collective_curves import GROUPS, curve_s, domain_table
from scaleacross.spec.network import CURVE_OPS, CollectiveCurve, CurveOp

K = TypeVar("K", bound=Any)  # sortable keys

TOLERANCE: Final = 0.03
MIB: Final = 2**20
SIZE_CLASSES: Final[dict[str, tuple[float, float]]] = {
    "< 1 MiB": (0, MIB),
    "1-64 MiB": (MIB, 64 * MIB),
    ">= 64 MiB": (64 * MIB, math.inf),
}


@dataclass(frozen=True)
class CurveError:
    """Relative errors, prediction / measurement − 1, of one system, operation (``all``: all of them) and size class."""

    system: str
    op: str
    size_class: str
    errors: tuple[float, ...]


def fit_curves(rows: Iterable[Measurement]) -> tuple[CollectiveCurve, ...]:
    """One curve per operation and group size that has at least two sizes, in the order of ``CURVE_OPS``."""
    out = []
    for (op, num_ranks), group in _grouped(rows, lambda row: (CURVE_OPS.index(row.op), row.num_ranks)):
        sizes, medians = _medians(group)
        if len(sizes) > 1:
            times = rising(medians)
            kept = fewest_points(sizes, times, TOLERANCE)
            points = {sizes[index]: float(f"{times[index]:.4g}") for index in kept}
            out.append(CollectiveCurve(op=CURVE_OPS[op], num_ranks=num_ranks, time_s=points))
    return tuple(out)


def _medians(rows: Iterable[Measurement]) -> tuple[list[int], list[float]]:
    pairs = [(size, median(row.time_s for row in group)) for size, group in _grouped(rows, lambda row: row.size_bytes)]
    return [size for size, _ in pairs], [time for _, time in pairs]


def rising(times: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to ``times`` in absolute log error."""
    blocks: list[list[float]] = []
    for time in times:
        blocks.append([time])
        # a time below that of a smaller size is noise: both join one block with their common median
        while len(blocks) > 1 and median(blocks[-2]) > median(blocks[-1]):
            last = blocks.pop()
            blocks[-1] = [*blocks[-1], *last]
    return [median(block) for block in blocks for _ in block]


def fewest_points(x: Sequence[float], y: Sequence[float], tolerance: float) -> list[int]:
    """Indices of the fewest points, both ends included, whose polyline is within ``tolerance`` of all points.

    The tolerance is relative to y. Among choices of equal length, the one with the smallest largest deviation is used.
    O(n³).
    """
    at, value = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    # best[end] = (points used, largest deviation, previous point) of the best polyline that ends there
    best: list[tuple[int, float, int]] = [(1, 0.0, -1)]
    for end in range(1, len(at)):
        options = []
        for start in range(end):
            inside = slice(start, end + 1)
            line = np.interp(at[inside], at[[start, end]], value[[start, end]])
            off = float(np.abs(line / value[inside] - 1).max())
            # neighbouring points have nothing between them, so a polyline always exists
            if off <= tolerance or start == end - 1:
                options.append((best[start][0] + 1, max(best[start][1], off), start))
        best.append(min(options))
    kept = [len(at) - 1]
    while kept[-1]:
        kept.append(best[kept[-1]][2])
    return kept[::-1]


def predict_s(curves: Sequence[CollectiveCurve], rows: Sequence[Measurement]) -> list[float]:
    """Times of the curves for the measured rows, s; NaN for operations without a curve."""
    table = domain_table(curves, int(GROUPS[-1]))
    if table is None:
        return [math.nan] * len(rows)
    zero = np.array(0)
    return [
        float(curve_s(table[None], zero, row.op, np.array(float(row.num_ranks)), np.array(float(row.size_bytes))))
        for row in rows
    ]


def score(curves: Sequence[CollectiveCurve], rows: Sequence[Measurement]) -> list[CurveError]:
    """Errors of ``curves`` on ``rows`` by system, operation and size class. Operations without a curve are left out."""
    return summarise((row, time / row.time_s - 1) for row, time in zip(rows, predict_s(curves, rows), strict=True))


def held_out(rows: Sequence[Measurement]) -> list[CurveError]:
    """Errors per system on sizes left out.

    Every second size is fitted and the others are predicted, then the other way round.
    """
    errors: list[tuple[Measurement, float]] = []
    for _, own in _grouped(rows, lambda row: row.system):
        number = dict(_numbered(own))
        for parity in (0, 1):
            seen = [row for row in own if number[row.op, row.num_ranks, row.size_bytes] % 2 == parity]
            unseen = [row for row in own if number[row.op, row.num_ranks, row.size_bytes] % 2 != parity]
            times = predict_s(fit_curves(seen), unseen)
            errors += [(row, time / row.time_s - 1) for row, time in zip(unseen, times, strict=True)]
    return summarise(errors)


def summarise(errors: Iterable[tuple[Measurement, float]]) -> list[CurveError]:
    """Group errors by system, operation and size class; ``all`` operations of a system follow its single ones."""
    known = [(row, error) for row, error in errors if not math.isnan(error)]
    out = []
    for system in sorted({row.system for row, _ in known}):
        for op in (*CURVE_OPS, "all"):
            for label, (least, limit) in SIZE_CLASSES.items():
                hits = [
                    error
                    for row, error in known
                    if row.system == system and op in (row.op, "all") and least <= row.size_bytes < limit
                ]
                if hits:
                    out.append(CurveError(system, op, label, tuple(hits)))
    return out


def _numbered(rows: Iterable[Measurement]) -> Iterator[tuple[tuple[CurveOp, int, int], int]]:
    """Yield every size with its index among the sizes of its operation and group."""
    for (op, num_ranks), group in _grouped(rows, lambda row: (row.op, row.num_ranks)):
        for index, size in enumerate(sorted({row.size_bytes for row in group})):
            yield (op, num_ranks, size), index


def _grouped(rows: Iterable[Measurement], key: Callable[[Measurement], K]) -> list[tuple[K, list[Measurement]]]:
    groups: dict[K, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return sorted(groups.items())
