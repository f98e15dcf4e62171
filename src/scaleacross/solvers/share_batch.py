"""Micro-batches per data-parallel replica when replicas differ in speed: the slowest replica as fast as possible.

Sets          c  replica classes (replicas that touch the same buildings), R[c] replicas each
Parameters    P[c]  seconds of a micro-batch on the slowest stage of class c;  β  idle micro-batches of fill and drain
              M  micro-batches of a step in all;  u  multiple that the schedule asks for;  m⁻  fewest that it runs with
Variables     m[c] ∈ u·ℤ, m[c] ≥ m⁻
Objective     min T, then as many as possible for the slowest class, then for the next one
C1 pace       (m[c] + β)·P[c] ≤ T
C2 batch      Σ_c R[c]·m[c] = M

T is found by bisection over the values that C1 can take; whether C2 has a solution is a subset-sum question, answered with
bit sets. Both are exact; the size depends on the classes and on M, not on accelerators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

SAME: Final = 1 + 1e-9
"""Times within this ratio are equal."""


def share_batch(
    pace_s: Sequence[float], num_replicas: Sequence[int], total: int, idle: float, unit: int, least: int
) -> tuple[int, ...] | None:
    """Micro-batches of every class, None when no legal numbers add up.

    Args:
        pace_s, num_replicas: P, R of every class.
        total, idle, unit, least: M, β, u, m⁻ of the module docstring.
    """
    first = -(-least // unit) * unit
    legal = [np.arange(first, total // count + 1, unit) for count in num_replicas]
    if any(len(values) == 0 for values in legal):
        return None
    times = np.unique(np.concatenate([(m + idle) * pace for m, pace in zip(legal, pace_s, strict=True)]))
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        counts = _legal_counts(pace_s, num_replicas, float(times[middle]), idle, unit, first, total)
        if counts is None or not _reachable(counts, num_replicas, unit, first, total)[0] >> total & 1:
            low = middle + 1
        else:
            high = middle
    if low == len(times):
        return None
    return _most_for_the_slowest(pace_s, num_replicas, float(times[low]), total, idle, unit, first)


def _legal_counts(
    pace_s: Sequence[float],
    num_replicas: Sequence[int],
    limit_s: float,
    idle: float,
    unit: int,
    first: int,
    total: int,
) -> list[int] | None:
    """How many values of m[c] keep C1, from ``first`` upwards; None when a class has none."""
    most = [min(limit_s * SAME / pace - idle, total // count) for pace, count in zip(pace_s, num_replicas, strict=True)]
    counts = [int((value - first) // unit) + 1 for value in most]
    return counts if min(counts) >= 1 else None


def _reachable(counts: Sequence[int], num_replicas: Sequence[int], unit: int, first: int, total: int) -> list[int]:
    """[c] -> sums up to ``total`` that classes c, c+1, … reach, as bit sets; the last entry is the empty sum."""
    mask, out = (1 << (total + 1)) - 1, [1]
    for count, replicas in zip(reversed(counts), reversed(num_replicas), strict=True):
        sums, done = (out[0] << (first * replicas)) & mask, 1
        while done < count:
            step = min(done, count - done)
            sums |= (sums << (step * unit * replicas)) & mask
            done += step
        out.insert(0, sums)
    return out


def _most_for_the_slowest(
    pace_s: Sequence[float],
    num_replicas: Sequence[int],
    limit_s: float,
    total: int,
    idle: float,
    unit: int,
    first: int,
) -> tuple[int, ...]:
    """The second objective: classes in the order of their pace take as many as the others can make up for."""
    order = sorted(range(len(pace_s)), key=lambda c: (-pace_s[c], c))
    replicas = [num_replicas[c] for c in order]
    counts = _legal_counts([pace_s[c] for c in order], replicas, limit_s, idle, unit, first, total) or []
    reachable = _reachable(counts, replicas, unit, first, total)
    chosen, left = [0] * len(order), total
    for index, c in enumerate(order):
        fitting = (first + unit * k for k in reversed(range(counts[index])))
        chosen[c] = next(
            m
            for m in fitting
            if m * replicas[index] <= left and reachable[index + 1] >> (left - m * replicas[index]) & 1
        )
        left -= chosen[c] * replicas[index]
    return tuple(chosen)
