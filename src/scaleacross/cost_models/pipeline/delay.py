"""Delay laws of 1F1B and Interleaved1F1B in closed form: seconds by which delays between ranks lengthen the step.

The time of a schedule is the longest path in the graph of its actions and messages. Besides the order on each rank, a
path uses *windows*: down the pipeline over ℓ boundaries with forwards, a turn, and up the same boundaries with
backwards. A window of ℓ boundaries waits for 2·Σc. The two schedules differ in the progress that a window makes:

* 1F1B: rank s runs one forward less ahead than rank s−1. The window advances ℓ+1 micro-batches and computes exactly as
  long as one rank does for them, (ℓ+1)(F+B). Every delay is exposed: a single slow boundary adds c per micro-batch.
* Interleaved1F1B: rank s runs two chunk forwards less ahead than rank s−1. The window advances 2ℓ+1 chunks, (2ℓ+1)·D of
  work of one rank, and computes only (ℓ+1)·D. Delays up to D/2 per boundary are overlapped.

A sequence of windows must start and end where the schedule starts and ends, on the last rank. So one window extends
from the leftmost rank of them all to the last rank. The laws choose the windows that maximise the wait within m
micro-batches.

Derived here; tested against ``pipeline.timing``. Symbols as in ``pipeline.closed_form``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.columns import column_names


@dataclass(frozen=True, kw_only=True)
class BoundaryDelays:
    """Delays between neighbouring ranks of a pipeline with fast boundaries and a few slow ones. All fields broadcast.

    Attributes:
        inner_s: delay of a fast boundary, latency + occupancy, ≥ 0.
        slow_s: delay of a slow boundary, ≥ ``inner_s``.
        loop_s: delay from rank p−1 back to rank 0; only Interleaved1F1B uses it.
        occupancy_s: longest time that a message occupies the link of a boundary; part of the delays above.
        num_slow: number of slow boundaries, 0 … p−1.
        slow_tail: ranks after the last slow boundary, ≥ 1 (p/2 when it is in the middle). Ignored where there is none.
        slow_spacing: ranks between consecutive slow boundaries, ≥ 1. Of unequal spacings the largest keeps the bound.
        back: 1 where messages from rank p−1 to rank 0 pass the link of the slow boundary (``least_waits``), else 0.
    """

    inner_s: ArrayLike
    slow_s: ArrayLike
    loop_s: ArrayLike
    occupancy_s: ArrayLike
    num_slow: ArrayLike = 0
    slow_tail: ArrayLike = 1
    slow_spacing: ArrayLike = 1
    back: ArrayLike = 0

    def total_s(self, num_ranks: ArrayLike) -> Floats:
        """P, the sum of delays over the p−1 boundaries without the loop-back, s."""
        boundaries, slow = np.asarray(num_ranks) - 1, np.asarray(self.num_slow)
        return np.asarray(
            (boundaries - slow) * np.asarray(self.inner_s) + slow * np.asarray(self.slow_s), dtype=np.float64
        )

    def tail_s(self, length: Ints) -> Floats:
        """Sum of delays over the last ``length`` boundaries, s."""
        beyond = (length - np.asarray(self.slow_tail)) // np.asarray(self.slow_spacing) + 1
        crossed = np.clip(beyond, 0, self.num_slow)
        return np.asarray(length * np.asarray(self.inner_s) + crossed * self.excess_s, dtype=np.float64)

    def take(self, rows: Ints) -> BoundaryDelays:
        """The rows selected by an index array; all fields must be arrays."""
        return BoundaryDelays(**{name: np.asarray(getattr(self, name))[rows] for name in column_names(BoundaryDelays)})

    @property
    def excess_s(self) -> Floats:
        """Seconds by which a slow boundary exceeds a fast one."""
        return np.asarray(self.slow_s, dtype=np.float64) - np.asarray(self.inner_s)

    @property
    def max_slow(self) -> int:
        """Largest number of slow boundaries of any candidate."""
        return int(np.max(self.num_slow, initial=0))


def microbatches_per_round(num_ranks: ArrayLike, num_microbatches: ArrayLike) -> Ints:
    """R of Interleaved1F1B: m / max(1, ⌊m/p⌋), which is p when p divides m."""
    p, m = np.asarray(num_ranks), np.asarray(num_microbatches)
    return np.asarray(m // np.maximum(1, m // p))


def one_f_one_b_delay_s(num_ranks: ArrayLike, num_microbatches: ArrayLike, delays: BoundaryDelays) -> Floats:
    """Seconds that the delays add to 1F1B's (m+p−1)(F+B), whatever F and B.

    = 2P + 2·max Σ c(window) over windows of Σ(ℓ+1) = m−1 micro-batches, one of which ends at the last rank. Let there
    be w windows, j slow boundaries in the longest, tail q and spacing L. The others cross one slow boundary with ℓ = 1
    and one more with every L, at most j each. All w together have Σℓ = m−1−w. For a single slow boundary among free
    ones this is c·(2 + 2·⌊(m−q)/2⌋).

    Exact for at most one slow boundary or equal delays, if no link queues (occupancy ≤ min(F, B)). Two or more slow
    boundaries at equal spacing: a bound, below the optimum over windows in 4 of 162,777 random cases (p ≤ 24, m < 90,
    up to 5 of them), by 0.2 %. Three at unequal spacings, of which the largest is given: exact in 93 % of cases, worst
    19 % of the step below. With queues it is a bound.
    """
    p, m = np.asarray(num_ranks), np.asarray(num_microbatches)
    inner, excess = np.asarray(delays.inner_s, dtype=np.float64), delays.excess_s
    tail, spacing = np.asarray(delays.slow_tail), np.asarray(delays.slow_spacing)
    fewest = -(-(m - 1) // p)
    best = inner * (m - 1 - fewest)
    for j in range(1, delays.max_slow + 1):
        free = m - 1 - tail - (j - 1) * spacing  # Σℓ + w left to the windows besides the longest
        full = (m - tail) // ((j - 1) * spacing + 2)  # the largest w with j slow boundaries in each
        parity = (free - 2 * full - 1) % spacing // 2
        short = (free + 1) // 2  # the largest w with ℓ ≥ 1 in each
        # numbers of windows around both limits, where the count of slow boundaries crossed changes
        for w in (fewest, full, full + 1, full + 2, full + 3, full + 1 + parity, short - 2, short - 1, short):
            w = np.clip(w, fewest, m - 1)
            lengths = free - w
            others = np.where(lengths < w - 1, lengths, w - 1 + (lengths - w + 1) // spacing)
            crossed = j + np.minimum((w - 1) * j, others)
            possible = (lengths >= 0) & (w >= 1) & (j <= np.asarray(delays.num_slow))
            best = np.maximum(best, np.where(possible, inner * (m - 1 - w) + excess * crossed, 0.0))
    return np.asarray(2 * delays.total_s(p) + 2 * best, dtype=np.float64)


def interleaved_time_s(
    num_ranks: ArrayLike,
    num_microbatches: ArrayLike,
    num_chunks: ArrayLike,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    delays: BoundaryDelays,
) -> Floats:
    """Seconds of Interleaved1F1B; ``forward_s`` and ``backward_s`` are F and B, through all chunks of one rank.

    = warm-up + cool-down + steady + gain. Warm-up: the first micro-batch goes through all chunks,
    p·F/v + P + (v−1)·max(R·F/v, p·F/v + P + c_loop), cool-down the same with B. Steady: (m·v − 1 − (v−1)R)·D on the
    last rank. Gain, never negative: the best of the families of windows and round trips below.

    Exact if no link queues and every delay, loop-back included, is ≤ D/2. If also P + c_loop ≤ p·min(F, B)/v, the gain
    is 0 and delays add 2·(v·P + (v−1)·c_loop) in all (R = p). Beyond D/2 it is a bound, never above timing. Measured on
    random cases without queues (p ≤ 8, v ≤ 4, m ≤ 40, one to three slow boundaries), below timing by (% of it):

    | delays up to | fast loop-back: mean, worst | loop-back as slow as a boundary: mean, worst |
    |--------------|-----------------------------|----------------------------------------------|
    | D            | 0.1, 3                      | 0.4, 7                                       |
    | 2 D          | 0.2, 8                      | 1.0, 13                                      |
    | 5 D          | 0.3, 11                     | 2.2, 15                                      |
    """
    p, m, v = np.asarray(num_ranks), np.asarray(num_microbatches), np.asarray(num_chunks)
    delays = replace(delays, loop_s=np.where(p > 1, delays.loop_s, 0.0))  # one rank sends nothing to itself
    chunk_f, chunk_b = np.asarray(forward_s) / v, np.asarray(backward_s) / v
    work, per_round, across = chunk_f + chunk_b, microbatches_per_round(p, m), delays.total_s(p)
    trips = sum(
        np.maximum(per_round * chunk, p * chunk + across + np.asarray(delays.loop_s)) for chunk in (chunk_f, chunk_b)
    )
    steady = m * v - 1 - (v - 1) * per_round
    skew = np.abs(chunk_f - chunk_b)
    gains = [
        _window_gain_s(steady, work, skew, reach, width, within, delays) for reach, width, within in _windows(p, delays)
    ]
    gains.append(_round_gain_s(p, m, v, chunk_f, chunk_b, across, delays))
    gain = reduce(np.maximum, gains)
    return np.asarray(p * work + 2 * across + (v - 1) * trips + steady * work + np.maximum(gain, 0.0), dtype=np.float64)


def _windows(p: Ints, delays: BoundaryDelays) -> list[tuple[Ints, Ints, Floats]]:
    """(reach, width, Σc of a window) of families of windows; the longest window spans the last ``reach`` boundaries.

    A candidate that lacks a family has width and reach 0 there, which gains nothing.
    """
    inner, last = np.asarray(delays.inner_s, dtype=np.float64), p - 1
    families = [
        (last, last, delays.total_s(p)),
        (np.minimum(last, 1), np.minimum(last, 1), delays.tail_s(np.minimum(last, 1))),
    ]
    for j in range(1, delays.max_slow + 1):
        reach = np.asarray(delays.slow_tail) + (j - 1) * np.asarray(delays.slow_spacing)
        present = (j <= np.asarray(delays.num_slow)) & (reach <= last)
        for i in {1, 2, j} & set(range(1, j + 1)):
            width = (i - 1) * np.asarray(delays.slow_spacing) + 1
            within = width * inner + i * delays.excess_s
            families.append((np.where(present, reach, 0), np.where(present, width, 0), np.where(present, within, 0.0)))
    return families


def _window_gain_s(
    steady: Ints, work: Floats, skew: Floats, reach: Ints, width: Ints, within: Floats, delays: BoundaryDelays
) -> Floats:
    """Wait gained by one window over the last ``reach`` boundaries and as many of ``width`` as fit with it.

    The narrow ones are at the left end of the long one. Where forward and backward differ, the path may begin or end at
    their right end instead of on the last rank. That saves the shorter direction (``skew`` per rank) without its
    delays.
    """
    left = steady - (2 * reach + 1)
    others = np.maximum(left, 0) // (2 * width + 1)
    behind = reach - width
    shortcut = np.maximum(behind * skew - 2 * delays.tail_s(behind), 0.0)
    gain = 2 * delays.tail_s(reach) - reach * work + others * np.maximum(2 * within - width * work, 0.0) + shortcut
    return np.where(left >= 0, gain, 0.0)


def _round_gain_s(
    p: Ints, m: Ints, v: Ints, chunk_f: Floats, chunk_b: Floats, across: Floats, delays: BoundaryDelays
) -> Floats:
    """Wait gained per round by passing over the loop-back, and by windows over the last slow boundary in its rest.

    One way is windows over the loop-back. Forwards of the last chunk do not loop back, so (v−1)·p of the v·p chunks of
    a round serve (only if R = p). The other way is v−1 trips around all ranks in one direction, each with p chunks of
    work and P + c_loop instead of R·D. The first round has none.
    """
    work, loop_s, per_round = chunk_f + chunk_b, np.asarray(delays.loop_s), microbatches_per_round(p, m)
    tail = np.asarray(delays.slow_tail)
    present = (np.asarray(delays.num_slow) >= 1) & (tail <= p - 1)
    reach, width = np.where(present, tail, 0), np.where(present, 1, 0)
    within = np.where(present, np.asarray(delays.slow_s, dtype=np.float64), 0.0)
    loops = np.where(per_round == p, (v - 1) * p // 3, 0)
    around = across + loop_s - (per_round - p) * work - p * np.minimum(chunk_f, chunk_b)
    best = np.zeros(())
    for used, gain in ((3 * loops, loops * (2 * loop_s - work)), ((v - 1) * per_round, (v - 1) * around)):
        rest = _window_gain_s(v * per_round - used, work, np.zeros_like(work), reach, width, within, delays)
        best = np.maximum(best, gain + np.maximum(rest, 0.0))
    return np.asarray((m // per_round - 1) * best)
