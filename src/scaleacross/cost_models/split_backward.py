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

from scaleacross.cost_models.candidates import Floats, Ints
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
    of, share = _of_ranks(stages, buckets), _share(stages, carried)
    part_s = (ends.last_end_s - ends.last_start_s) / pieces
    # from the first bucket of a chunk, and from the last
    to_end = ends.total_s - ends.last_start_s - part_s, ends.total_s - ends.last_end_s
    order = np.take_along_axis(of, np.argsort(-ends.last_end_s[of]), 1)
    left = _left(share, pieces, order)
    gradients = _windows(left, to_end, order, buckets)
    before = share[of].sum(axis=1) - left
    return gradients._replace(of_calls=gradients.of_calls + taken * before)


def parameter_chunks(
    stages: StageWork, ends: StageEnds, pieces: Floats, buckets: Floats, carried: Floats, taken: Floats
) -> ChunkWindows:
    """What the outermost buckets of every chunk leave parameters; arguments as of ``gradient_chunks``."""
    of = _of_ranks(stages, buckets)
    part_s = (ends.first_end_s - ends.first_start_s) / pieces
    from_start = ends.first_end_s - part_s, ends.first_start_s  # to the last bucket, and to the first
    order = np.take_along_axis(of, np.argsort(ends.first_end_s[of]), 1)
    share = _share(stages, carried)
    left = _left(share, pieces, order)
    parameters = _windows(left, from_start, order, buckets)
    behind = share[of].sum(axis=1) - left
    return parameters._replace(of_calls=parameters.of_calls + taken * behind)


def _of_ranks(stages: StageWork, buckets: Floats) -> Ints:
    """Virtual stages of every rank, (ranks, chunks)."""
    return np.argsort(stages.rank, kind="stable").reshape(len(buckets), -1)


def _share(stages: StageWork, carried: Floats) -> Floats:
    """Of its rank's traffic, by virtual stage."""
    share: Floats = (stages.dense_parameters + stages.expert_parameters) / carried[stages.rank]
    return share


def _left(share: Floats, pieces: Floats, order: Ints) -> Floats:
    """φ of all chunks before one in ``order`` (ranks, chunks) with all of it, then with one bucket of it, (2 · chunks, ranks)."""
    whole = np.cumsum(share[order], axis=1)
    out: Floats = np.hstack([whole, whole - (share * (1 - 1 / pieces))[order]]).T
    return out


def _windows(left: Floats, lengths_s: tuple[Floats, Floats], order: Ints, buckets: Floats) -> ChunkWindows:
    one = 1 / buckets
    of_pace = np.where(buckets > 1, np.maximum(0.0, left - one) / np.maximum(1 - one, one), 0.0)
    of_calls = np.minimum(left, (1 - of_pace) * one)
    return ChunkWindows(of_pace, of_calls, np.hstack([each[order] for each in lengths_s]).T)
