"""Layers per pipeline stage when stages differ in speed or memory: the slowest stage as fast as possible.

Sets          r  pipeline ranks 0…p−1;  l  layers 0…L−1 in model order, each of a block type;  v  chunks per rank
Parameters    s[r,l]  seconds of layer l on the slowest accelerator type of rank r;  h[r]  embedding and head on r
              a[r] + Σ w[r,l]  bytes of rank r with its layers;  c[r]  memory of its smallest accelerator type
              q[r]  layers of rank r in the equal split
Variables     x[r]  first layer of rank r, 0 = x[0] < x[1] < … < x[p] = L
Objective     min T, then min Σ_r |x[r+1] − x[r] − q[r]|, then the first ranks as light as possible
C1 pace       h[r] + Σ_{x[r] ≤ l < x[r+1]} s[r,l] ≤ T
C2 memory     a[r] + Σ_{x[r] ≤ l < x[r+1]} w[r,l] ≤ c[r]
C3 chunks     x[r+1] − x[r] ≥ v

Exact by dynamic programming over (rank, first layer), O(p·L²) in arrays: a minimax pass for T, then an additive pass for the
second objective among the ranges within T. With equal ranks and light ends the equal split itself comes out.

With v > 1 a rank holds v runs of layers, one per chunk: its layers are counted, not located, every layer weighs the mean of
the block types, and the chunks of a rank are as equal as possible. For models of one block type that is exact too; whoever
asks checks the memory of the split that comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from scaleacross.cost_models.settings import Floats
from scaleacross.cost_models.stages import equal_stages
from scaleacross.cost_models.uneven import LayerCosts, Split
from scaleacross.schedules.pipeline.stage_placement import StagePlacement
from scaleacross.spec.parallelism import split_layers

SAME: Final = 1 + 1e-9
"""Paces within this ratio are equal."""


def partition_stages(
    costs: LayerCosts, types: Sequence[frozenset[str]], num_chunks: int, placement: StagePlacement = "loop"
) -> Split | None:
    """The split of the module docstring, [rank][chunk] -> layers; None when no split fits in memory.

    Args:
        types: accelerator types on every pipeline rank.
        placement: where the schedule has its virtual stages; it decides which ranks of the equal split have a layer more.
    """
    pp, num_layers = len(types), sum(costs.counts)
    if num_layers < pp * num_chunks:
        return None
    equal = np.array([sum(stage) for stage in equal_stages(num_layers, pp, num_chunks, placement)])
    pace = _range_paces(costs, types, located=num_chunks == 1, least=num_chunks)
    slowest = _least_slowest(pace)
    if not np.isfinite(slowest):
        return None
    return tuple(split_layers(count, num_chunks) for count in _nearest(pace <= slowest * SAME, equal))


def _range_paces(costs: LayerCosts, types: Sequence[frozenset[str]], *, located: bool, least: int) -> Floats:
    """Seconds of rank r with the layers i…j−1, (pp, L + 1, L + 1); inf where C2 or C3 forbids them."""
    pp, counts, num_layers = len(types), np.array(costs.counts), sum(costs.counts)
    share = np.eye(len(counts))[np.repeat(np.arange(len(counts)), counts)]  # (L, block types)
    if not located:
        share[:] = counts / num_layers
    before = np.concatenate([np.zeros((1, len(counts))), np.cumsum(share, axis=0)])
    inside = before[None, :, :] - before[:, None, :]  # layers of each block type in i…j−1
    seconds = np.stack([inside @ layer_s for layer_s in costs.layer_s])  # (types, L + 1, L + 1)
    capacity = costs.least_capacity_bytes(types)
    out = np.empty((pp, num_layers + 1, num_layers + 1))
    for rank, here in enumerate(types):
        ends = costs.ends_s[:, 0] * (rank == 0) + costs.ends_s[:, 1] * (rank == costs.head_rank % pp)
        used = [kind for kind, name in enumerate(costs.types) if name in here]
        out[rank] = (seconds[used] + ends[used, None, None]).max(axis=0)
        out[rank][costs.fixed_bytes[rank] + inside @ costs.layer_bytes[rank] > capacity[rank]] = np.inf
    size = np.arange(num_layers + 1)
    out[:, size[None, :] - size[:, None] < least] = np.inf
    return out


def _least_slowest(pace: Floats) -> float:
    """Minimax pass: the least T with which all layers find a rank."""
    reached = np.full(pace.shape[1], np.inf)
    reached[0] = 0.0
    for here in pace:
        reached = np.maximum(reached[:, None], here).min(axis=0)
    return float(reached[-1])


def _nearest(
    allowed: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], equal: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> list[int]:
    """Additive pass: layers per rank nearest to ``equal`` over allowed ranges, lightest first ranks among equals."""
    size = np.arange(allowed.shape[1])
    taken = size[None, :] - size[:, None]
    apart = [np.where(here, np.abs(taken - wanted), np.inf) for here, wanted in zip(allowed, equal, strict=True)]
    left = np.full(len(size), np.inf)
    left[-1] = 0.0
    rest = [left]
    for here in reversed(apart):
        rest.append((here + rest[-1]).min(axis=1))
    start, counts = 0, []
    for here, after in zip(apart, reversed(rest[:-1]), strict=True):
        end = int((here[start] + after).argmin())
        counts.append(end - start)
        start = end
    return counts
