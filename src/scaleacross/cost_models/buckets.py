"""Number of buckets in which gradients are reduced and parameters gathered.

A bucket pays the latency of its collectives, which no bandwidth shortens. Across regions one bucket per layer costs
more time than it overlaps. Buckets are whole layers. Sharded parameters travel layer by layer (PyTorch FSDP, one unit
per layer). Other states travel in buckets of the size that the job states, or that Megatron-Core uses by default
(``spec.job.Overlap.bucket_parameters``). Every model chunk has at least one bucket of its own, and no more if no
reduction is concurrent with computation.
"""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.candidates import Bools, Candidates, Floats
from scaleacross.cost_models.sharding import reduced_every_pass
from scaleacross.spec.framework import BUCKET_PARAMETERS_PER_REPLICA, LEAST_BUCKET_PARAMETERS, Overlap


def hidden_reductions(overlap: Overlap, candidates: Candidates) -> Bools:
    """Mask of candidates whose gradients, if reduced once per step, may overlap with computation, (n,).

    That is the computation of the pass that makes them, or of other chunks.
    """
    alone = (candidates.pp > 1) & (candidates.num_chunks == 1)
    out: Bools = np.where(alone, overlap.reduces_within(pipelined=True), overlap.gradient_reduce)
    return out


def num_buckets(overlap: Overlap, candidates: Candidates, layers: Floats, parameters: Floats) -> Floats:
    """Buckets of a pipeline rank that holds ``layers`` and ``parameters`` (before sharding over data parallel), (n,).

    v chunks with ⌈P/v / bucket⌉ buckets each, but no more than layers.
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
    """Least size of a bucket as a share of ``parameters``, for ranks that hold these or more, (n,).

    With x = P/v / bucket a bucket has bucket · x/⌈x⌉ parameters. For all greater x this is at least the lesser of that
    and bucket · ⌈x⌉/(⌈x⌉ + 1). Fewer buckets, where there are few layers, are larger. The share is 0 for sharded
    gradients, which travel layer by layer.
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
