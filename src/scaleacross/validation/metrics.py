"""Errors and rank agreement by their usual definitions; arrays in, plain numbers out.

An error is predicted / measured − 1, so +0.05 means that the predicted time is 5 % too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """Statistics of the relative errors of ``rows`` rows; NaN without rows."""

    rows: int
    median_abs: float
    mean_abs: float
    p90_abs: float
    worst: float
    bias: float


def errors(predicted: ArrayLike, measured: ArrayLike) -> Errors:
    """Compute error statistics. ``worst`` keeps its sign, ``bias`` is the mean signed error."""
    error = np.asarray(predicted, dtype=np.float64) / np.asarray(measured, dtype=np.float64) - 1
    if not error.size:
        return Errors(0, *([float("nan")] * 5))
    size = np.abs(error)
    return Errors(
        rows=int(error.size),
        median_abs=float(np.median(size)),
        mean_abs=float(size.mean()),
        p90_abs=float(np.percentile(size, 90)),
        worst=float(error[size.argmax()]),
        bias=float(error.mean()),
    )


def weighted_quantile(values: ArrayLike, weights: ArrayLike, share: float) -> float:
    """Smallest value at or below which ``share`` of the weight lies; the largest for a share of 1 or more."""
    x, w = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    order = np.argsort(x)
    below = np.cumsum(w[order])
    return float(x[order][min(len(x) - 1, np.searchsorted(below, share * below[-1]))])


def kendall_tau(a: ArrayLike, b: ArrayLike) -> float:
    """Kendall's τ-b; NaN if one of the two has only ties."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    upper = np.triu_indices(len(x), 1)
    dx, dy = (np.sign(v[:, None] - v[None, :])[upper] for v in (x, y))
    norm = np.sqrt(float((dx != 0).sum()) * float((dy != 0).sum()))
    return float((dx * dy).sum() / norm) if norm else float("nan")


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Spearman's ρ: the correlation of ranks, ties ranked by their mean; NaN if one of the two has only ties."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    norm = np.sqrt(float((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / norm) if norm else float("nan")


def _ranks(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    below = (array[:, None] > array[None, :]).sum(axis=1)
    same = (array[:, None] == array[None, :]).sum(axis=1)
    return np.asarray(below + (same - 1) / 2, dtype=np.float64)


def regret(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Measured time of the configuration predicted fastest, over that of the fastest, − 1; ≥ 0."""
    times = np.asarray(measured, dtype=np.float64)
    return float(times[np.asarray(predicted).argmin()] / times.min() - 1)


@dataclass(frozen=True)
class NoiseFloor:
    """Differences between runs of one configuration; no model without the software release as input can do better.

    ``spread`` is slowest over fastest − 1 per group. ``mean_abs`` is the mean error of predicting every group's median.
    """

    groups: int
    rows: int
    spread_median: float
    spread_p90: float
    spread_max: float
    mean_abs: float


def noise_floor(groups: Sequence[Sequence[float]]) -> NoiseFloor:
    """Noise floor of measured times grouped by configuration; groups of one do not count."""
    repeated = [np.asarray(group, dtype=np.float64) for group in groups if len(group) > 1]
    if not repeated:
        return NoiseFloor(0, 0, *([float("nan")] * 4))
    spread = np.array([group.max() / group.min() - 1 for group in repeated])
    left = np.concatenate([np.abs(np.median(group) / group - 1) for group in repeated])
    return NoiseFloor(
        groups=len(repeated),
        rows=int(left.size),
        spread_median=float(np.median(spread)),
        spread_p90=float(np.percentile(spread, 90)),
        spread_max=float(spread.max()),
        mean_abs=float(left.mean()),
    )
