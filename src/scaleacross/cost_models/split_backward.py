"""Gradients and parameters of a schedule that computes weight gradients apart: which of them is ready when.

Weight gradients fill idle time, and so the last of all chunks are computed one right after another at the end of a step, each far
shorter than the backward pass that windows count with (``overlap.windows``). The schedule is timed action by action anyhow, and
tells when the first and the last bucket of a chunk are ready to be reduced, those between at equal distances. From there on what
is left of n buckets, φ of all bytes, passes its communicators, and is exposed as far as it outlasts the pipeline, L seconds
later:

    x·t + (1 − x)·s/n + (1 − φ)·s·taken − L       x = (φ − 1/n) / (1 − 1/n)       t, s, taken as in ``overlap``

n buckets take t, one takes s/n, and what was reduced before has taken multiprocessors from computation, so that all comes later.
Parameters likewise, the other way round: those of a bucket and of all before it are gathered before its part of the first forward
pass of its chunk, L seconds from the start. L has all seconds that pass, with waits and idle time.
"""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.chunk_work import StageWork
from scaleacross.cost_models.overlap import ChunkWindows
from scaleacross.cost_models.pipeline.stage_ends import StageEnds


def gradient_chunks(
    stages: StageWork, ends: StageEnds, pieces: Floats, buckets: Floats, carried: Floats, taken: Floats
) -> ChunkWindows:
    """What the outermost buckets of every chunk leave gradients, (2 · chunks, ranks).

    Args:
        pieces: buckets of every stage, (p·v,); ``buckets``: those of every rank as windows count them, (ranks,).
        carried: parameters whose traffic every rank is taken to have, (ranks,).
        taken: by which computation falls behind per second of concurrent traffic, (ranks,).
    """
    part_s = (ends.last_end_s - ends.last_start_s) / pieces
    # from the first bucket of a chunk, and from the last
    to_end = ends.total_s - ends.last_start_s - part_s, ends.total_s - ends.last_end_s
    return _chunks(stages, -ends.last_end_s, to_end, pieces, buckets, carried, taken)


def parameter_chunks(
    stages: StageWork, ends: StageEnds, pieces: Floats, buckets: Floats, carried: Floats, taken: Floats
) -> ChunkWindows:
    """What the outermost buckets of every chunk leave parameters; arguments as of ``gradient_chunks``."""
    part_s = (ends.first_end_s - ends.first_start_s) / pieces
    from_start = ends.first_end_s - part_s, ends.first_start_s  # to the last bucket, and to the first
    return _chunks(stages, ends.first_end_s, from_start, pieces, buckets, carried, taken)


def _chunks(
    stages: StageWork,
    sorted_by: Floats,
    lengths_s: tuple[Floats, Floats],
    pieces: Floats,
    buckets: Floats,
    carried: Floats,
    taken: Floats,
) -> ChunkWindows:
    """Windows of the chunks of every rank in rising order of ``sorted_by``, (p·v,); with all of a chunk, then with one bucket."""
    of = np.argsort(stages.rank, kind="stable").reshape(len(buckets), -1)  # virtual stages, (ranks, chunks)
    share: Floats = (stages.dense_parameters + stages.expert_parameters) / carried[stages.rank]  # of its rank's traffic
    order = np.take_along_axis(of, np.argsort(sorted_by[of]), 1)
    whole = np.cumsum(share[order], axis=1)
    left: Floats = np.hstack([whole, whole - (share * (1 - 1 / pieces))[order]]).T  # φ, (2 · chunks, ranks)
    one = 1 / buckets
    of_pace = np.where(buckets > 1, np.maximum(0.0, left - one) / np.maximum(1 - one, one), 0.0)
    of_calls = np.minimum(left, (1 - of_pace) * one) + taken * (share[of].sum(axis=1) - left)
    return ChunkWindows(of_pace, of_calls, np.hstack([each[order] for each in lengths_s]).T)
