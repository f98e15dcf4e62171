"""Seconds of pipeline schedules in closed form, for one plan or for arrays of candidates.

Every function broadcasts over its arguments, for legal shapes (``schedules.pipeline.is_legal``). Nothing here walks a
schedule. ``pipeline.timing`` does, and tests compare the two.

Symbols: p ranks; m micro-batches; v chunks per rank; F, B seconds of the forward and the backward of one micro-batch
through all chunks of one rank (equal ranks); D = (F+B)/v; R micro-batches per round of Interleaved1F1B; c = latency +
occupancy of a message over a boundary between neighbouring ranks; P the sum of c over the p−1 boundaries.

| schedule        | ``lower_bound_s`` is exact                                          | otherwise                   |
|-----------------|---------------------------------------------------------------------|-----------------------------|
| GPipe           | always                                                              |                             |
| 1F1B            | no link queues (occupancy ≤ min(F, B)), at most one slow boundary   | see ``one_f_one_b_delay_s`` |
| Interleaved1F1B | no link queues (occupancy ≤ min(F, B)/v), every delay ≤ D/2         | see ``interleaved_time_s``  |

Everywhere it is the length of a path of work and messages that the schedule really contains, hence never above the
time; ranks with unequal F or B may pass the smallest of each and keep the bound.

Sources: GPipe arXiv 1811.06965, 1F1B arXiv 2006.09503, interleaving arXiv 2104.04473 for the times without delay; the
laws with delay are derived here (longest path in the graph of the schedule) and tested against timing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.pipeline.delay import BoundaryDelays, interleaved_time_s, one_f_one_b_delay_s


def lower_bound_s(
    schedule: ArrayLike,
    num_ranks: ArrayLike,
    num_microbatches: ArrayLike,
    num_chunks: ArrayLike,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    delays: BoundaryDelays,
) -> Floats:
    """Seconds of a step: a lower bound, exact in the regimes of the module's table.

    GPipe: (m+p−1)(F+B) + 2P + (m−1)·[max(0, b−F) + max(0, b−B)], b the largest occupancy. 1F1B: (m+p−1)(F+B) +
    ``one_f_one_b_delay_s``. Interleaved1F1B: ``interleaved_time_s``. All: at least p(F+B)/v + 2P + (messages − 1)·b,
    the time in which the busiest boundary carries its m·v forward messages one by one. Where links queue (occupancies
    up to 3·min(F, B)/v, random cases) 1F1B and Interleaved1F1B take 1-3 % longer in the mean, 41 % in the worst case.

    Without delays GPipe and 1F1B take (m+p−1)(F+B), Interleaved1F1B m(F+B) + (p−1)(F+B)/v, also where p does not divide m;
    with m < p the rounds cannot fill the ranks: (p·v + m − 1)(F+B)/v.

    Args:
        schedule: name, or array of names, of ``spec.parallelism.ScheduleName``.
        num_ranks, num_microbatches, num_chunks: p, m, v; v = 1 except for Interleaved1F1B.
        forward_s, backward_s: F, B of one micro-batch through all chunks of one rank.
    """
    name = np.asarray(schedule)
    p, m, v = np.asarray(num_ranks), np.asarray(num_microbatches), np.asarray(num_chunks)
    F, B = np.asarray(forward_s, dtype=np.float64), np.asarray(backward_s, dtype=np.float64)
    busy, across = np.where(p > 1, delays.occupancy_s, 0.0), delays.total_s(p)
    plain = (m + p - 1) * (F + B)
    queue = p * (F + B) / v + 2 * across + (m * v - 1) * busy
    gpipe = plain + 2 * across + (m - 1) * (np.maximum(0, busy - F) + np.maximum(0, busy - B))
    flat, looped = plain, plain
    if (name == "1F1B").any():
        flat = plain + one_f_one_b_delay_s(p, m, delays)
    if (name == "Interleaved1F1B").any():
        looped = interleaved_time_s(p, m, v, F, B, delays)
    ordered = np.where(name == "1F1B", flat, looped)
    return np.asarray(np.where(name == "GPipe", gpipe, np.maximum(ordered, queue)), dtype=np.float64)
