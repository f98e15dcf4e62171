"""Micro-batches per data-parallel replica when replicas differ in speed: the slowest replica as fast as possible.

Sets          c  replica classes (replicas that touch the same buildings), R[c] replicas each
Parameters    P[c]  seconds of a micro-batch on the slowest stage of class c
              β  idle micro-batches of warm-up and cool-down;  M  micro-batches of a step in all
              N  numbers of micro-batches that the schedule runs with
Variables     m[c] ∈ N
Objective     min T, then as many as possible for the slowest class, then for the next one
C1 pace       (m[c] + β)·P[c] ≤ T
C2 batch      Σ_c R[c]·m[c] = M

T is found by bisection over the values that C1 can take, from the first one that allows enough micro-batches in all.
Whether C2 has a solution is a subset-sum question, answered with bit sets. Both are exact. The size depends on the
classes and on M, not on accelerators.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Ints
from scaleacross.cost_models.distinct import distinct
from scaleacross.schedules.pipeline import legal_micro_batches
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import SCHEDULE_NAMES
from scaleacross.targets import needs_equal_batches

SAME: Final = 1e-9
"""Relative difference up to which two times are equal."""


def share_batch(
    pace_s: Sequence[float], num_replicas: Sequence[int], total: int, idle: float, legal: Sequence[int]
) -> tuple[int, ...] | None:
    """Micro-batches of every class, None when no legal numbers add up to the batch.

    Args:
        pace_s, num_replicas: P, R of every class.
        total, idle: M, β of the module docstring.
        legal: N up to M, ascending.
    """
    numbers = np.array(legal, dtype=np.int64)
    own = [numbers[: np.searchsorted(numbers, total // count, side="right")] for count in num_replicas]
    if any(len(values) == 0 for values in own):
        return None
    times = np.unique(np.concatenate([(m + idle) * pace for m, pace in zip(own, pace_s, strict=True)]))

    def enough(index: int) -> bool:
        """Whether every class has a number within T, and the largest add up to M: necessary, and fast to check."""
        within = _within(own, pace_s, float(times[index]), idle)
        return all(map(len, within)) and sum(int(m[-1]) * r for m, r in zip(within, num_replicas, strict=True)) >= total

    def adds_up(index: int) -> bool:
        within = _within(own, pace_s, float(times[index]), idle)
        return bool(_reachable(within, num_replicas, total)[0] >> total & 1)

    least = _first(adds_up, _first(enough, 0, len(times)), len(times))
    if least == len(times):
        return None
    return _most_for_the_slowest(_within(own, pace_s, float(times[least]), idle), pace_s, num_replicas, total)


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first index from ``low`` on at which a monotone condition holds; ``high`` if there is none before it."""
    return low + bisect_left(range(low, high), True, key=holds)


def _within(own: Sequence[Ints], pace_s: Sequence[float], limit_s: float, idle: float) -> list[Ints]:
    """The values of m[c] that keep C1, for every class."""
    return [values[: np.searchsorted(values, limit_s * (1 + SAME) / pace - idle, side="right")]
            for values, pace in zip(own, pace_s, strict=True)]  # fmt: skip


def _reachable(within: Sequence[Ints], num_replicas: Sequence[int], total: int) -> list[int]:
    """[c] -> sums up to ``total`` that classes c, c+1, … can reach, as bit sets; the last entry is the empty sum."""
    mask, out = (1 << (total + 1)) - 1, [1]
    for values, replicas in zip(reversed(within), reversed(num_replicas), strict=True):
        every = 0
        for first, step, count in _runs(values):
            sums, done = (out[0] << (first * replicas)) & mask, 1
            # doubling: a run of n evenly spaced values needs log n shifts
            while done < count:
                more = min(done, count - done)
                sums |= (sums << (more * step * replicas)) & mask
                done += more
            every |= sums
        out.insert(0, every)
    return out


def _runs(values: Ints) -> Iterator[tuple[int, int, int]]:
    """Yield evenly spaced runs of ascending numbers as (first, step, count)."""
    steps, start = np.diff(values), 0
    ends = [*(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(values) - 1]
    for end in ends:
        if end >= start:
            step = int(steps[start]) if end > start else 1
            yield int(values[start]), step, end - start + 1
            start = end + 1


def _most_for_the_slowest(
    within: Sequence[Ints], pace_s: Sequence[float], num_replicas: Sequence[int], total: int
) -> tuple[int, ...]:
    """The second objective: classes, slowest first, get as many as the others can make up for."""
    order = sorted(range(len(pace_s)), key=lambda c: (-pace_s[c], c))
    replicas = [num_replicas[c] for c in order]
    reachable = _reachable([within[c] for c in order], replicas, total)
    chosen, left = [0] * len(order), total
    for index, c in enumerate(order):
        chosen[c] = next(
            m
            for m in reversed(within[c].tolist())
            if m * replicas[index] <= left and reachable[index + 1] >> (left - m * replicas[index]) & 1
        )
        left -= chosen[c] * replicas[index]
    return tuple(chosen)


def fewest_micro_batches(job: Job, candidates: Candidates) -> Ints:
    """Return the fewest micro-batches of a replica under any split of the batch that its schedule runs (R7), (n,)."""
    if needs_equal_batches(job):
        return candidates.num_micro_batches
    least = np.ones(len(candidates), dtype=np.int64)
    shapes = distinct(candidates.schedule, candidates.pp, candidates.num_chunks, candidates.num_micro_batches)
    for kind, row in enumerate(shapes.first):
        pp, v, m = (int(column[row]) for column in (candidates.pp, candidates.num_chunks, candidates.num_micro_batches))
        if pp > 1:
            name = SCHEDULE_NAMES[int(candidates.schedule[row])]
            least[shapes.code == kind] = legal_micro_batches(name, pp, v, m)[0]
    return least
