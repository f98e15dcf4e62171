"""Assign samples to ranks by cost: the same number on each rank, or as many as fit; near-optimal in milliseconds.

A sample of length L costs a·L + b·L²: products of a layer grow with L, attention with L². A step lasts as long as its
busiest rank, so the idle share is 1 − mean / max of the ranks' costs.

* ``balanced`` with fixed counts starts from the differencing of Karmarkar and Karp with equal counts (Michiels et al.,
  2003). Sorted samples become tuples of one per rank. The two tuples of widest spread are merged, heaviest on lightest,
  until one is left. A second start deals the sorted samples in a snake's order (rank i gets i, 2n−i, 2n+i, …); the
  better start is used.
* With variable counts it starts from longest-processing-time-first, within a capacity of tokens per rank if one is
  given.
* Then samples of the busiest rank are swapped with (or moved to) other ranks while that lowers the larger of the two
  loads.
* Few samples have few near-perfect assignments. So with up to 64 samples, the busiest rank and each other rank share
  theirs anew by trying all ways to do so, from several starts.
"""

from __future__ import annotations

import heapq
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleacross.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SWAPS: Final = 256
"""Limit on improvements. Each takes microseconds, and few are ever found."""
_FEW: Final = 64
_MOST_SHARED: Final = 12
"""Limit on the samples of two ranks that are shared anew: 2^12 ways take a fraction of a millisecond."""
_NEAR: Final = 1e-4
"""Relative distance to the mean load below which a rank counts as balanced."""


def sample_costs(lengths: ArrayLike, linear: float, quadratic: float) -> Floats:
    """Cost a·L + b·L² of every sample, (samples,).

    Raises:
        InputError: negative lengths or factors, no cost at all, or anything that is not finite.
    """
    own = np.asarray(lengths, dtype=np.float64)
    if own.ndim != 1:
        raise InputError(f"lengths are one list of numbers, got {own.ndim} dimensions")
    if len(bad := np.flatnonzero(~(np.isfinite(own) & (own >= 0)))):
        raise InputError(f"sample {bad[0]} has a length of {own[bad[0]]:g}: lengths are finite and not negative")
    if not (linear >= 0 and quadratic >= 0 and 0 < linear + quadratic < np.inf):
        raise InputError(
            f"costs {linear:g}·L + {quadratic:g}·L²: factors must not be negative, and one of them above 0"
        )
    return linear * own + quadratic * own * own


def balanced(
    costs: ArrayLike,
    num_ranks: int,
    *,
    fixed_counts: bool = True,
    tokens: ArrayLike | None = None,
    capacity: float = np.inf,
) -> Ints:
    """Assign every sample to a rank; returns the ranks, int64 (samples,).

    Args:
        costs: cost of every sample, in any unit.
        num_ranks: number of ranks.
        fixed_counts: every rank gets the same number of samples (a multiple of the ranks is needed); else as many as
            its costs allow.
        tokens: tokens of every sample; needed with a capacity.
        capacity: largest number of tokens per rank; only with variable counts.

    Raises:
        InputError: no ranks, counts that do not divide, costs that are no finite numbers, or samples that find no room.
    """
    own = np.asarray(costs, dtype=np.float64)
    if own.ndim != 1 or num_ranks < 1 or not np.isfinite(own).all() or (own < 0).any():
        raise InputError("costs are one list of numbers, finite and not negative, for one rank or more")
    if fixed_counts:
        if len(own) % num_ranks:
            raise InputError(f"{len(own):,} samples on {num_ranks:,} ranks: equal counts need a multiple")
        if capacity != np.inf:
            raise InputError("a capacity of tokens goes with variable counts: with fixed ones every rank takes as many")
        starts = [snake(own, num_ranks), _differenced(own, num_ranks)]
        rank = min(starts, key=lambda start: busiest(own, start, num_ranks))
        if len(own) > _FEW:
            return _swapped(own, rank, num_ranks)
        starts = [rank, *starts, *(snake(noisy, num_ranks) for noisy in _noisy(own))]
        ends = [_shared_anew(own, _swapped(own, start, num_ranks), num_ranks, True) for start in starts]
        return min(ends, key=lambda end: busiest(own, end, num_ranks))
    size = np.zeros_like(own) if tokens is None else np.asarray(tokens, dtype=np.float64)
    if size.shape != own.shape:
        raise InputError(f"{size.size:,} numbers of tokens for {own.size:,} samples")
    if tokens is None and capacity != np.inf:
        raise InputError("a capacity needs the tokens of every sample")
    rank = _moved(own, size, _longest_first(own, size, num_ranks, capacity), num_ranks, capacity)
    if len(own) > _FEW or capacity != np.inf:
        return rank
    starts = [rank, *(_longest_first(noisy, size, num_ranks, capacity) for noisy in _noisy(own))]
    ends = [_shared_anew(own, _moved(own, size, one, num_ranks, capacity), num_ranks, False) for one in starts]
    return min(ends, key=lambda end: busiest(own, end, num_ranks))


def busiest(costs: Floats, rank: Ints, num_ranks: int) -> float:
    """Cost of the busiest rank; 0 without samples."""
    return float(np.bincount(rank, costs, num_ranks).max()) if len(costs) else 0.0


def idle_share(costs: ArrayLike, rank: Ints, num_ranks: int) -> float:
    """Idle share 1 − mean / max of the ranks' costs, in [0, 1)."""
    loads = np.bincount(rank, np.asarray(costs, dtype=np.float64), num_ranks)
    most = float(loads.max())
    return 1 - float(loads.mean()) / most if most else 0.0


def snake(costs: Floats, num_ranks: int) -> Ints:
    """Deal the sorted samples back and forth, the same number to each rank: rank i gets i, 2n−i, 2n+i, ….

    Returns the rank of every sample, int64 (samples,).
    """
    order = np.argsort(-costs, kind="stable")
    there = np.arange(num_ranks)
    rounds = len(costs) // num_ranks
    ranks = np.where(np.arange(rounds)[:, None] % 2 == 0, there, there[::-1])
    out = np.empty(len(costs), np.int64)
    out[order] = ranks.reshape(-1)
    return out


def _differenced(costs: Floats, num_ranks: int) -> Ints:
    """Assignment by Karmarkar and Karp's differencing, with the same number of samples in every part."""
    order = np.argsort(-costs, kind="stable").reshape(-1, num_ranks)
    heap: list[tuple[float, int, Floats, list[Ints]]] = []
    for number, row in enumerate(order):
        sums = costs[row]
        # sums descend, so the spread is negative: the smallest entry of the heap is the widest tuple
        heap.append((float(sums[-1] - sums[0]), number, sums, [row[:, None]]))
    heapq.heapify(heap)
    fresh = len(heap)
    while len(heap) > 1:
        _, _, sums, parts = heapq.heappop(heap)
        _, _, other, others = heapq.heappop(heap)
        joined = sums + other[::-1]  # both descend, so reversing one adds heaviest to lightest
        turn = np.argsort(-joined, kind="stable")
        members = [part[turn] for part in parts] + [part[::-1][turn] for part in others]
        joined = joined[turn]
        merged = [np.concatenate(members, axis=1)]
        heapq.heappush(heap, (float(joined[-1] - joined[0]), fresh, joined, merged))
        fresh += 1
    out = np.zeros(len(costs), np.int64)
    if heap:
        out[np.concatenate(heap[0][3], axis=1)] = np.arange(num_ranks)[:, None]
    return out


def _swapped(costs: Floats, rank: Ints, num_ranks: int) -> Ints:
    """Swap samples between the busiest rank and another as long as that lowers the larger load of the two."""
    rank, loads = rank.copy(), np.bincount(rank, costs, num_ranks)
    mean = loads.mean() if num_ranks else 0.0
    for _ in range(_SWAPS):
        most = int(loads.argmax())
        if loads[most] - mean <= _NEAR * mean:
            break
        mine, others = np.flatnonzero(rank == most), np.flatnonzero(rank != most)
        if not len(mine) or not len(others):
            break
        given = costs[mine][:, None] - costs[others]
        worse = np.maximum(loads[most] - given, loads[rank[others]] + given)
        best = int(worse.argmin())
        i, j = divmod(best, len(others))
        # without the epsilon, rounding errors could swap the same pair again and again
        if worse.flat[best] >= loads[most] * (1 - 1e-12):
            break
        to, amount = int(rank[others[j]]), given[i, j]
        rank[mine[i]], rank[others[j]] = to, most
        loads[most] -= amount
        loads[to] += amount
    return rank


def _noisy(costs: Floats) -> list[Floats]:
    """Eight copies of the costs, blurred by 5 to 40 %, the same in every run; they give other starting assignments."""
    generator = np.random.default_rng(0)
    return [
        costs * generator.uniform(1 - spread, 1 + spread, len(costs)) for spread in (0.05, 0.1, 0.2, 0.4) for _ in "ab"
    ]


def _shared_anew(costs: Floats, rank: Ints, num_ranks: int, fixed_counts: bool) -> Ints:
    """Share the samples of the busiest rank and one other anew, as long as that lowers the larger load of the two."""
    rank, loads = rank.copy(), np.bincount(rank, costs, num_ranks)
    for _ in range(_SWAPS):
        most = int(loads.argmax())
        mine = np.flatnonzero(rank == most)
        # the tuple's second entry stays ``most`` unless some rank improves, which ends the loop
        best = float(loads[most]) * (1 - 1e-12), most, mine, mine
        for other in range(num_ranks):
            members = np.concatenate([mine, np.flatnonzero(rank == other)])
            if other == most or len(members) > _MOST_SHARED:
                continue
            masks = _halves(len(members), len(mine) if fixed_counts else None)
            sums = masks @ costs[members]
            larger = np.maximum(sums, loads[most] + loads[other] - sums)
            at = int(larger.argmin())
            if larger[at] < best[0]:
                best = float(larger[at]), other, members[masks[at] > 0], members[masks[at] == 0]
        _, other, kept, given = best
        if other == most:
            break
        rank[kept], rank[given] = most, other
        loads[most], loads[other] = costs[kept].sum(), costs[given].sum()
    return rank


@cache
def _halves(count: int, ones: int | None) -> Floats:
    """All ways to choose some of ``count`` items, or exactly ``ones``, as rows of zeros and ones, (ways, count)."""
    masks = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    return (masks if ones is None else masks[masks.sum(1) == ones]).astype(np.float64)


def _longest_first(costs: Floats, tokens: Floats, num_ranks: int, capacity: float) -> Ints:
    """Assign each sample, largest cost first, to the least loaded rank with room.

    If some sample finds no room, the longest samples go first instead. Raises InputError if that fails too.
    """
    for order in (np.argsort(-costs, kind="stable"), np.argsort(-tokens, kind="stable")):
        rank, loads, room = np.zeros(len(costs), np.int64), np.zeros(num_ranks), np.full(num_ranks, capacity)
        for sample in order:
            fits = room >= tokens[sample]
            if not fits.any():
                break
            to = int(np.where(fits, loads, np.inf).argmin())
            rank[sample] = to
            loads[to] += costs[sample]
            room[to] -= tokens[sample]
        else:
            return rank
    total, longest = float(tokens.sum()), float(tokens.max())
    raise InputError(
        f"{len(costs):,} samples of {total:,.0f} tokens (longest {longest:,.0f}) find no room on {num_ranks:,} ranks of "
        f"{capacity:,.0f}: give more ranks or room"
    )


def _moved(costs: Floats, tokens: Floats, rank: Ints, num_ranks: int, capacity: float) -> Ints:
    """Move or swap samples of the busiest rank as long as that lowers the larger load of the two and both have room."""
    rank, loads = rank.copy(), np.bincount(rank, costs, num_ranks)
    held = np.bincount(rank, tokens, num_ranks)
    mean = loads.mean() if num_ranks else 0.0
    for _ in range(_SWAPS):
        most = int(loads.argmax())
        mine, others = np.flatnonzero(rank == most), np.flatnonzero(rank != most)
        if loads[most] - mean <= _NEAR * mean or not len(mine):
            break
        # one empty sample per rank makes a move a swap with nothing
        to = np.concatenate([rank[others], np.arange(num_ranks)])
        back, size = (
            np.concatenate([costs[others], np.zeros(num_ranks)]),
            np.concatenate([tokens[others], np.zeros(num_ranks)]),
        )
        given, moved = costs[mine][:, None] - back, tokens[mine][:, None] - size
        worse = np.maximum(loads[most] - given, loads[to] + given)
        worse[:, to == most] = np.inf
        worse[(held[to] + moved > capacity) | (held[most] - moved > capacity)] = np.inf
        i, j = divmod(int(worse.argmin()), len(to))
        if worse[i, j] >= loads[most] * (1 - 1e-12):
            break
        target = int(to[j])
        rank[mine[i]] = target
        if j < len(others):
            rank[others[j]] = most
        for sums, amount in ((loads, given[i, j]), (held, moved[i, j])):
            sums[most] -= amount
            sums[target] += amount
    return rank
