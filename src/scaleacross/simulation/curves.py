"""Measured times of collectives within a scale-up domain, from the network's catalogue entry; used by ``calls``.

Time is linear in size between two measured sizes, constant below the first, and proportional to size beyond the last
(as ``spec.network.CollectiveCurve`` states). A group size n that was not measured is interpolated between its
neighbours a < b:

* gather, scatter, reduce   linearly in n at equal bytes per rank, since a ring takes n − 1 equal steps
* all-to-all                linearly in log n at equal bytes per sender

A group larger than any measured takes at least the time of the largest. A smaller one takes at least (n − 1)/(a − 1) of
the smallest's time, an all-to-all exactly that time. A missing gather is read from the scatter, and the other way
round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from scaleacross.spec.network import CurveOp, NetworkTechnology

_MIRROR: Final[Mapping[CurveOp, CurveOp]] = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}


def measured_s(technology: NetworkTechnology, op: CurveOp, num_ranks: int, size_bytes: float) -> float | None:
    """Return the seconds of ``op`` among ``num_ranks`` of one domain, launch included; None if it is not measured."""
    if num_ranks <= 1 or size_bytes <= 0:
        return 0.0
    curves = curves_of(technology, op)
    if not curves:
        return None
    if num_ranks in curves:
        return _at(curves[num_ranks], size_bytes)
    known = sorted(curves)
    if op == "all_to_all" and num_ranks < known[0]:
        return _at(curves[known[0]], size_bytes)
    if len(known) == 1:
        return _scaled(curves[known[0]], known[0], num_ranks, size_bytes)
    right = min(max(int(np.searchsorted(known, num_ranks)), 1), len(known) - 1)
    a, b = known[right - 1], known[right]
    if op == "all_to_all":
        share = (math.log(num_ranks) - math.log(a)) / (math.log(b) - math.log(a))
        low, high = (_at(curves[n], size_bytes) for n in (a, b))
    else:
        share = (num_ranks - a) / (b - a)
        low, high = (_at(curves[n], size_bytes * n / num_ranks) for n in (a, b))
    time = low + share * (high - low)
    if num_ranks > b:
        return max(time, _at(curves[b], size_bytes))
    if num_ranks < a:  # a smaller group than any measured: its share of the bytes at least, as the estimate has it
        return max(time, _at(curves[a], size_bytes) * (num_ranks - 1) / (a - 1))
    return time


def curves_of(technology: NetworkTechnology, op: CurveOp) -> dict[int, Mapping[int, float]]:
    """Return ranks -> size -> seconds of ``op``, or of the operation that replaces it where it was not measured."""
    return _of(technology, op) or _of(technology, _MIRROR.get(op, op))


def _of(technology: NetworkTechnology, op: CurveOp) -> dict[int, Mapping[int, float]]:
    return {curve.num_ranks: curve.time_s for curve in technology.curves if curve.op == op}


def _at(points: Mapping[int, float], size_bytes: float) -> float:
    sizes, times = list(points), list(points.values())
    if size_bytes > sizes[-1]:
        return times[-1] * size_bytes / sizes[-1]
    return float(np.interp(size_bytes, sizes, times))


def _scaled(points: Mapping[int, float], measured: int, num_ranks: int, size_bytes: float) -> float:
    """Extrapolate from the only measured group size: time per step is constant at equal bytes per rank."""
    time = _at(points, size_bytes * measured / num_ranks) * (num_ranks - 1) / (measured - 1)
    return max(time, _at(points, size_bytes)) if num_ranks > measured else time
