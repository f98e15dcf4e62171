"""Time of collectives inside one scale-up domain, as measured: curves of a link technology on a common grid.

Regime: a group inside one domain, alone on its links. Symbols: n ranks, S bytes (nccl-tests' size), c = S/n.

A *table* holds seconds, (operations, group sizes, sizes): rows of ``CURVE_OPS``, ``GROUPS`` and powers of two of bytes.
Curves are resampled at the powers of two. Between these time is α + β·S; below the first size it is constant, beyond
the last proportional to S. Between grid group sizes it is linear in n.

Group sizes without a measurement use neighbours a < b with one. Beyond all, a and b are the two largest, below all the
two smallest:

* gather, scatter, reduce   t(n, S) = t_a(a·c) + (n−a)/(b−a) · (t_b(b·c) − t_a(a·c)): at equal bytes per step, time is
                            linear in the number of steps, as a ring's base + (n−1) · step(c). Leaving 2, 4 and 8 ranks
                            out in turn on H100, H200, B200 and B300, the median error of gather and scatter is at most
                            7 % below 1 MiB and 3 % from 64 MiB, of all-reduce 5 %; but 21 % from 64 MiB on H200, where
                            only 8 ranks reduce in the switch.
* all-to-all                linear in log n at equal S; beyond the largest, t_b(S) · (1−1/n) / (1−1/b): all peers at
                            once.
* one group size a only     t_a(S) · g_n(S)/g_a(S) with the gather's times g; (n−1)/(a−1) · t_a(a·c) where these are
                            unknown too.

More ranks than the largest group measured are never faster than it. A curve that starts at a larger size is completed
downwards by the same laws. All-gather and reduce-scatter mirror each other where only one is measured. An operation
with neither is NaN: ``collectives`` then uses the alpha-beta law, which is the stated model for links without
measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.spec.network import CURVE_OPS, CollectiveCurve, CurveOp

GROUPS: Final = np.array([2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 72, 96, 144, 288, 576], dtype=np.float64)
MIN_LOG2_BYTES: Final = 6
SIZES: Final = 2.0 ** np.arange(MIN_LOG2_BYTES, 38)

_MIRROR: Final[dict[CurveOp, CurveOp]] = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
_Measured = dict[int, Floats]  # group size -> seconds at SIZES, NaN below the first size


def domain_table(curves: Sequence[CollectiveCurve], domain: int) -> Floats | None:
    """The table of a technology in domains of ``domain`` accelerators, None without curves.

    Groups larger than a domain have the figures of the whole domain, a lower bound for more ranks across domains.
    """
    if not curves:
        return None
    return _table(tuple((curve.op, curve.num_ranks, tuple(curve.time_s.items())) for curve in curves), domain)


def slowest(tables: Sequence[Floats | None]) -> Floats | None:
    """The table of a job in several domains, of which the slowest sets the pace; None if any has no curves."""
    distinct = list({id(table): table for table in tables}.values())
    present = [table for table in distinct if table is not None]
    if len(present) < len(distinct):
        return None
    return present[0] if len(present) == 1 else np.max(present, axis=0)


def fastest(tables: Sequence[Floats | None]) -> Floats | None:
    """A table that bounds every domain from below. Where some domains have no curves it is 0, no bound."""
    present = [table for table in tables if table is not None]
    if not present:
        return None
    if len(present) < len(tables):
        return np.zeros_like(present[0])
    unknown = np.isnan(present)
    return np.where(unknown.any(axis=0) & ~unknown.all(axis=0), 0.0, np.min(present, axis=0))


def slowest_of_fastest(kinds: Sequence[Sequence[Floats | None]]) -> Floats | None:
    """Lower bounds for jobs that use at least one domain of every kind: ``slowest`` of ``fastest``.

    Where a domain of one kind has no curve and another has one, the job may have none. The entry is then 0, no bound.
    """
    each = [fastest(tables) for tables in kinds]
    whole = slowest(each)
    if whole is None:
        return None
    unbounded = np.any([table == 0.0 for table in each if table is not None], axis=0)
    return np.where(unbounded, 0.0, whole)


def curve_s(tables: Floats, row: Ints | int, op: CurveOp, num_ranks: Floats, size_bytes: Floats) -> Floats:
    """Seconds of ``op``; zero for one rank or no bytes, NaN where table ``row`` has no curve.

    Args:
        tables: (tables, operations, group sizes, sizes); ``row`` (...) chooses one for each result.
        num_ranks, size_bytes: (...), broadcast.
    """
    _, num_ops, num_groups, num_sizes = tables.shape
    size = np.asarray(size_bytes, dtype=np.float64)
    exponent = np.log2(np.maximum(size, 1.0)).astype(np.int64)
    column = np.minimum(np.maximum(exponent - MIN_LOG2_BYTES, 0), num_sizes - 2)  # np.clip takes thrice as long
    along = np.maximum(size / SIZES[column] - 1, 0.0)  # above 1 beyond the last size: the last segment goes on
    ranks = np.minimum(np.maximum(num_ranks, GROUPS[0]), GROUPS[-1])
    upper = np.maximum(np.searchsorted(GROUPS, ranks), 1)
    between = (ranks - GROUPS[upper - 1]) / (GROUPS[upper] - GROUPS[upper - 1])
    at = ((np.asarray(row) * num_ops + CURVE_OPS.index(op)) * num_groups + upper) * num_sizes + column
    flat = tables.reshape(-1)

    def seconds(index: Ints) -> Floats:
        return flat[index] + along * (flat[index + 1] - flat[index])

    time = seconds(at) if (between == 1.0).all() else (1 - between) * seconds(at - num_sizes) + between * seconds(at)
    return np.where((np.asarray(num_ranks) > 1) & (size > 0), time, 0.0)


@lru_cache(maxsize=64)
def _table(curves: tuple[tuple[CurveOp, int, tuple[tuple[int, float], ...]], ...], domain: int) -> Floats:
    measured: dict[CurveOp, _Measured] = {op: {} for op in CURVE_OPS}
    for op, num_ranks, points in curves:
        measured[op][num_ranks] = _resampled(points)
    gather = _completed(measured["all_gather"] or measured["reduce_scatter"], {})
    rows = []
    for op in CURVE_OPS:
        own = measured[op] or measured.get(_MIRROR.get(op, op), {})
        whole = _completed(own, {} if op == "all_to_all" else gather, op == "all_to_all")
        rows.append([_law(whole, min(int(n), domain), gather, op == "all_to_all") for n in GROUPS.tolist()])
    # measured curves may dip, but more bytes never take less time
    table = np.maximum.accumulate(np.array(rows), axis=-1)
    table.setflags(write=False)
    return table


def _resampled(points: tuple[tuple[int, float], ...]) -> Floats:
    known, times = np.array(points, dtype=np.float64).T
    inside = np.interp(SIZES, known, times)
    at = np.where(known[-1] < SIZES, times[-1] * SIZES / known[-1], inside)
    return np.where(known[0] > SIZES, np.nan, at)


def _completed(measured: _Measured, gather: _Measured, direct: bool = False) -> _Measured:
    """Curves without gaps at small sizes: filled from other group sizes that start earlier, else constant."""
    out: _Measured = {}
    # curves with fewer gaps first, so that later ones can be filled from them
    for n in sorted(measured, key=lambda ranks: float(np.isnan(measured[ranks]).sum())):
        own = measured[n]
        first = own[~np.isnan(own)][0]
        below = np.minimum(first, _law(out, n, gather, direct)) if out else first
        out[n] = np.where(np.isnan(own), below, own)
    return out


def _law(measured: _Measured, n: int, gather: _Measured, direct: bool) -> Floats:
    """Seconds of a group of ``n`` by the laws of the module docstring; NaN when nothing is measured."""
    if n in measured:
        return measured[n]
    if not measured:
        return np.full_like(SIZES, np.nan)
    sizes = sorted(measured)
    if direct:
        return _all_at_once(measured, n, sizes)
    if len(sizes) == 1:
        (only,) = sizes
        if len(gather) > 1:
            return measured[only] * _law(gather, n, {}, False) / _law(gather, only, {}, False)
        return _at_equal_chunks(measured[only], only, n) * (n - 1) / (only - 1)
    right = int(np.clip(np.searchsorted(sizes, n), 1, len(sizes) - 1))
    a, b = sizes[right - 1], sizes[right]
    low, high = (_at_equal_chunks(measured[ranks], ranks, n) for ranks in (a, b))
    time = low + (n - a) / (b - a) * (high - low)
    if n > b:
        return np.maximum(time, measured[b])
    return np.maximum(time, measured[a] * (n - 1) / (a - 1)) if n < a else time


def _at_equal_chunks(curve: Floats, ranks: int, n: int) -> Floats:
    """A curve of ``ranks`` at the sizes that give each rank the same bytes c as n ranks with S."""
    sizes = SIZES * ranks / n
    return np.interp(sizes, SIZES, curve) * np.maximum(1.0, sizes / SIZES[-1])


def _all_at_once(measured: _Measured, n: int, sizes: list[int]) -> Floats:
    last = sizes[-1]
    if n > last:
        return measured[last] * (1 - 1 / n) / (1 - 1 / last)
    stacked = np.array([measured[ranks] for ranks in sizes])
    return np.array([np.interp(np.log2(n), np.log2(sizes), column) for column in stacked.T])
