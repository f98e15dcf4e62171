"""In how many pieces gradients are reduced and parameters gathered.

A piece pays the latency of its collectives, which no bandwidth shortens: across regions a layer a piece costs more than what it
hides. Pieces are whole layers. Sharded parameters travel layer by layer (PyTorch FSDP, one unit per layer); other states in
buckets of the size that the job states or that Megatron-Core takes by default (``spec.job.Overlap.bucket_parameters``), at least
one for every model chunk, since each chunk has its own, and no more where nothing is reduced beside computation.
"""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.candidates import Bools, Candidates, Floats
from scaleacross.cost_models.sharding import reduced_every_pass
from scaleacross.spec.framework import BUCKET_PARAMETERS_PER_REPLICA, LEAST_BUCKET_PARAMETERS, Overlap


def hidden_reductions(overlap: Overlap, candidates: Candidates) -> Bools:
    """Whether computation can hide gradients that are reduced once per step, (n,): that of the pass that makes them, or of other
    chunks."""
    alone = (candidates.pp > 1) & (candidates.num_chunks == 1)
    out: Bools = np.where(alone, overlap.reduces_within(pipelined=True), overlap.gradient_reduce)
    return out


def num_buckets(overlap: Overlap, candidates: Candidates, layers: Floats, parameters: Floats) -> Floats:
    """Pieces of a pipeline rank with ``layers`` and ``parameters`` (before sharding over data parallel) on it, (n,).

    v chunks with ⌈P/v / bucket⌉ pieces each, but no more than layers.
    """
    size, chunks = _bucket_size(overlap, candidates), candidates.num_chunks
    if overlap.gradient_reduce:
        pieces = chunks * np.maximum(1.0, np.ceil(parameters / chunks / size))
        pieces = np.minimum(pieces, np.maximum(chunks, layers))
    else:
        pieces = chunks.astype(np.float64)
    whole: Floats = np.where(reduced_every_pass(candidates), np.maximum(1.0, layers), pieces)
    return whole


def least_bucket_share(overlap: Overlap, candidates: Candidates, parameters: Floats) -> Floats:
    """Least size of a bucket of ranks that hold ``parameters`` or more, as a share of ``parameters``, (n,).

    With x = P/v / bucket a piece has bucket · x/⌈x⌉ parameters, which for all greater x is at least the lesser of that and
    bucket · ⌈x⌉/(⌈x⌉ + 1); fewer pieces, where there are few layers, are larger. 0 of gradients sharded, which travel layer by
    layer.
    """
    size, chunks = _bucket_size(overlap, candidates), candidates.num_chunks
    filled = parameters / chunks / size
    whole = np.maximum(1.0, np.ceil(filled))
    least = (
        np.minimum(filled / whole, whole / (whole + 1)) * size / parameters if overlap.gradient_reduce else 1.0 / chunks
    )
    share: Floats = np.where(reduced_every_pass(candidates), 0.0, least)
    return share


def _bucket_size(overlap: Overlap, candidates: Candidates) -> Floats:
    """Parameters of a full bucket, (n,)."""
    if overlap.bucket_parameters is not None:
        return np.full(len(candidates), float(overlap.bucket_parameters))
    return np.maximum(float(LEAST_BUCKET_PARAMETERS), BUCKET_PARAMETERS_PER_REPLICA * candidates.dp * candidates.cp)
