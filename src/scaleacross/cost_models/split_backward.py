"""Overlap of gradients and parameters where a schedule computes weight gradients separately: when each bucket is ready.

Weight gradients use idle time. So the last of all chunks are computed one right after another at the end of a step,
each far shorter than the backward pass that windows assume (``overlap.windows``). Such a schedule is timed action by
action in any case. That timing tells when the first and the last bucket of a chunk can be reduced; those between are
spaced equally. From then on the remaining buckets, φ of all bytes in n buckets, pass their communicators. They are
exposed by what outlasts the pipeline's end, L seconds later:

    x·t + (1 − x)·s/n + (1 − φ)·s·taken − L       x = (φ − 1/n) / (1 − 1/n)       t, s, taken as in ``overlap``

n buckets take t, and one takes s/n. Buckets reduced before held multiprocessors, so that all computation is later.
Parameters are the mirror image: those of a bucket and of all before it are gathered before its part of the first
forward pass of its chunk, L seconds from the start. L counts all seconds that pass, with waits and idle time.
"""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.chunk_work import StageWork
from scaleacross.cost_models.overlap import ChunkWindows
from scaleacross.cost_models.pipeline.stage_ends import StageEnds


def gradient_chunks(stages: StageWork, ends: StageEnds, pieces: Floats, buckets: Floats, taken: Floats) -> ChunkWindows:
    """Windows of gradients for the first and the last bucket of every chunk, (2 · chunks, ranks).

    Args:
        pieces: buckets of every stage, (p·v,).
        buckets: buckets of every rank as windows count them, (ranks,).
        taken: seconds by which computation falls behind per second of concurrent traffic, (ranks,).
    """
    part_s = (ends.last_end_s - ends.last_start_s) / pieces
    # from the first bucket of a chunk, and from the last
    to_end = ends.total_s - ends.last_start_s - part_s, ends.total_s - ends.last_end_s
    return _chunks(stages, -ends.last_end_s, to_end, pieces, buckets, taken)


def parameter_chunks(
    stages: StageWork, ends: StageEnds, pieces: Floats, buckets: Floats, taken: Floats
) -> ChunkWindows:
    """Windows of parameters for the first and the last bucket of every chunk; arguments as in ``gradient_chunks``."""
    part_s = (ends.first_end_s - ends.first_start_s) / pieces
    from_start = ends.first_end_s - part_s, ends.first_start_s  # to the last bucket, and to the first
    return _chunks(stages, ends.first_end_s, from_start, pieces, buckets, taken)


def _chunks(
    stages: StageWork,
    sorted_by: Floats,
    lengths_s: tuple[Floats, Floats],
    pieces: Floats,
    buckets: Floats,
    taken: Floats,
) -> ChunkWindows:
    """Windows of the chunks of every rank in rising order of ``sorted_by``, (p·v,).

    The first half of the rows counts all of a chunk, the second half one of its buckets.
    """
    of = np.argsort(stages.rank, kind="stable").reshape(len(buckets), -1)  # virtual stages, (ranks, chunks)
    share = stages.held_share
    order = np.take_along_axis(of, np.argsort(sorted_by[of]), 1)
    whole = np.cumsum(share[order], axis=1)
    left: Floats = np.hstack([whole, whole - (share * (1 - 1 / pieces))[order]]).T  # φ, (2 · chunks, ranks)
    one = 1 / buckets
    # a single bucket is exposed as a whole: x is 0
    of_pace = np.where(buckets > 1, np.maximum(0.0, left - one) / np.maximum(1 - one, one), 0.0)
    of_calls = np.minimum(left, (1 - of_pace) * one) + taken * (1 - left)
    return ChunkWindows(of_pace, of_calls, np.hstack([each[order] for each in lengths_s]).T)
