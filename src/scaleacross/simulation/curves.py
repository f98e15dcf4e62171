"""Measured collectives inside a scale-up domain, read from the network's own entry.

Between two measured sizes time is a straight line, below the first constant, beyond the last proportional to size (as
``spec.network.CollectiveCurve`` states). A group size that was not measured lies between its neighbours a < b:

* gather, scatter, reduce   on a straight line in n at equal bytes per rank, since a ring takes n − 1 equal steps
* all-to-all                on a straight line in log n at equal bytes per sender

and beyond the largest it takes at least as long as that; below the smallest a gather takes its share of that by n − 1 at least,
an all-to-all as long. Gather and scatter stand in for one another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from scaleacross.spec.network import CurveOp, NetworkTechnology

_MIRROR: Final[Mapping[CurveOp, CurveOp]] = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}


def measured_s(technology: NetworkTechnology, op: CurveOp, num_ranks: int, size_bytes: float) -> float | None:
    """Seconds of ``op`` among ``num_ranks`` of one domain, launch included; None where the technology has no such curve."""
    if num_ranks <= 1 or size_bytes <= 0:
        return 0.0
    curves = curves_of(technology, op)
    if not curves:
        return None
    if num_ranks in curves:
        return _at(curves[num_ranks], size_bytes)
    known = sorted(curves)
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
        least = _at(curves[a], size_bytes)
        return least if op == "all_to_all" else max(time, least * (num_ranks - 1) / (a - 1))
    return time


def curves_of(technology: NetworkTechnology, op: CurveOp) -> dict[int, Mapping[int, float]]:
    """Ranks -> size -> seconds, of the operation that stands in where ``op`` was not measured."""
    return _of(technology, op) or _of(technology, _MIRROR.get(op, op))


def _of(technology: NetworkTechnology, op: CurveOp) -> dict[int, Mapping[int, float]]:
    return {curve.num_ranks: curve.time_s for curve in technology.curves if curve.op == op}


def _at(points: Mapping[int, float], size_bytes: float) -> float:
    sizes, times = list(points), list(points.values())
    if size_bytes > sizes[-1]:
        return times[-1] * size_bytes / sizes[-1]
    return float(np.interp(size_bytes, sizes, times))


def _scaled(points: Mapping[int, float], measured: int, num_ranks: int, size_bytes: float) -> float:
    """From one group size alone: as many steps more or fewer at equal bytes per rank."""
    time = _at(points, size_bytes * measured / num_ranks) * (num_ranks - 1) / (measured - 1)
    return max(time, _at(points, size_bytes)) if num_ranks > measured else time
