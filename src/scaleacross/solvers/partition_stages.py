"""Layers per pipeline stage when stages differ in speed or memory: the slowest stage as fast as possible.

Sets          r  pipeline ranks 0…p−1;  l  layers 0…L−1 in model order, each of a block type;  v  chunks per rank
Parameters    s[r,l]  seconds of layer l on the slowest accelerator type of rank r;  h[r]  embedding and head on r
              a[r] + Σ w[r,l]  bytes of rank r with its layers;  c[r]  memory of its smallest accelerator type
              q[r]  layers of rank r in the equal split
Variables     x[r]  first layer of rank r, 0 = x[0] < x[1] < … < x[p] = L
Objective     min T, then min Σ_r |x[r+1] − x[r] − q[r]|, then min Σ_r (seconds of r)², which leaves no two ranks
              further apart than they must be, then the first ranks as light as possible
C1 pace       h[r] + Σ_{x[r] ≤ l < x[r+1]} s[r,l] ≤ T
C2 memory     a[r] + Σ_{x[r] ≤ l < x[r+1]} w[r,l] ≤ c[r]
C3 chunks     x[r+1] − x[r] ≥ v

With recomputation by stage (``Reruns``) a rank also reruns all of R of its layers, the least number that fits. Then
s[r,l] grows by the seconds of a rerun for R layers, and C2 reads

C2 memory     a'[r] + Σ w[r,l] − R·(w − w')[r] ≤ c[r]      where R > 0; a', w' are those of ranks that rerun all layers

Fewer reruns are never slower on any rank, so no other number need be tried. R is a whole number in every chunk, its
share is one that ``spec.recomputation`` can name, and all layers are of one kind.

Exact by dynamic programming over (rank, first layer), O(p·L²) in arrays: a minimax pass for T, then an additive pass
for the second objective among the ranges within T. With equal ranks and light ends the equal split itself results.

With v > 1 a rank has v runs of layers, one per chunk. Then its layers are counted, not located: every layer weighs the
mean of the block types, and the chunks of a rank are as equal as possible. For models of one block type that is exact
too. The caller checks the memory of the resulting split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.differing_ranks import LayerCosts, Split
from scaleacross.cost_models.stages import equal_stages
from scaleacross.schedules.pipeline.stage_placement import StagePlacement
from scaleacross.spec.parallelism import split_layers
from scaleacross.spec.recomputation import policy_of_share, rerun_period

SAME: Final = 1e-9
"""Relative difference up to which two paces are equal."""


@dataclass(frozen=True)
class Reruns:
    """Recomputation by stage, for accelerator types ``types`` on every rank.

    Attributes:
        kept, rerun: costs of ranks that keep all layers and of ranks that rerun all.
    """

    kept: LayerCosts
    rerun: LayerCosts
    types: Sequence[frozenset[str]]
    num_chunks: int

    @cached_property
    def layers(self) -> Floats:
        """R of every rank with 0…L layers, (pp, L + 1); inf where no allowed number of reruns fits in memory."""
        most, capacity = sum(self.kept.counts), self.kept.least_capacity_bytes(self.types)
        out = np.full((len(self.types), most + 1), np.inf)
        for held in range(most + 1):
            again = np.array([some for some in range(held + 1) if self._policy(some, held) is not None])
            bytes_ = self._bytes(held, again)
            fits = bytes_ <= capacity[:, None]
            out[:, held] = np.where(fits.any(axis=1), again[fits.argmax(axis=1)], np.inf)
        return out

    @property
    def slower_s(self) -> Floats:
        """Seconds that each further rerun layer adds, (types,)."""
        return (self.rerun.layer_s - self.kept.layer_s)[:, 0]

    def policies(self, split: Split) -> tuple[str, ...] | None:
        """Recompute policy of every rank with its layers of a split; None where one does not fit or has no name."""
        held = [sum(chunks) for chunks in split]
        again = self.layers[np.arange(len(held)), held]
        if not np.isfinite(again).all():
            return None
        out = [self._policy(int(some), layers) or "full" for some, layers in zip(again, held, strict=True)]
        # a policy that reruns one of d layers needs chunks of equal size (R11)
        unequal = (len(set(chunks)) > 1 for chunks in split)
        return (
            None if any(rerun_period(one) > 1 for one, some in zip(out, unequal, strict=True) if some) else tuple(out)
        )

    def _policy(self, again: int, held: int) -> str | None:
        """Policy of a rank that reruns ``again`` of ``held`` layers; None where its chunks would differ."""
        whole = held % self.num_chunks == 0 and again % self.num_chunks == 0
        return policy_of_share(again, held) if whole or again in (0, held) else None

    def _bytes(self, held: int, again: Ints) -> Floats:
        """Bytes of every rank that reruns ``again`` of ``held`` layers, (pp, choices)."""
        least, layer = self.kept.fixed_bytes[:, None], self.kept.layer_bytes[:, :1]
        full, rerun = self.rerun.fixed_bytes[:, None], self.rerun.layer_bytes[:, :1]
        return np.where(again > 0, full + again * rerun + (held - again) * layer, least + held * layer)


def partition_stages(
    costs: LayerCosts,
    types: Sequence[frozenset[str]],
    num_chunks: int,
    placement: StagePlacement = "loop",
    reruns: Reruns | None = None,
) -> Split | None:
    """The split of the module docstring, [rank][chunk] -> layers; None when no split fits in memory.

    Args:
        types: accelerator types on every pipeline rank.
        placement: where the schedule has its virtual stages; it decides which ranks of the equal split have one more
            layer.
        reruns: recomputation by stage; ``costs`` are then those of ranks that keep all layers.
    """
    return StagePaces(costs, num_chunks, reruns).partition(types, placement)


@dataclass(frozen=True)
class StagePaces:
    """Seconds of the pipeline ranks of one candidate with any range of layers.

    They are remembered by rank and types, because most layouts differ on few ranks. ``reruns`` are those of one layout.
    """

    costs: LayerCosts
    num_chunks: int
    reruns: Reruns | None = None
    _known: dict[tuple[int, frozenset[str]], Floats] = field(default_factory=dict)

    def partition(self, types: Sequence[frozenset[str]], placement: StagePlacement = "loop") -> Split | None:
        """``partition_stages`` for these types."""
        pp, num_layers = len(types), sum(self.costs.counts)
        if num_layers < pp * self.num_chunks:
            return None
        pace = [self._of_rank(rank, here) for rank, here in enumerate(types)]
        slowest = _least_slowest(pace)
        if not np.isfinite(slowest):
            return None
        equal = np.array([sum(stage) for stage in equal_stages(num_layers, pp, self.num_chunks, placement)])
        return tuple(split_layers(count, self.num_chunks) for count in _nearest(np.stack(pace) / slowest, equal))

    def _of_rank(self, rank: int, here: frozenset[str]) -> Floats:
        """Seconds of a rank on types with the layers i…j−1, (L + 1, L + 1); inf where C2 or C3 forbids the range."""
        if (rank, here) not in self._known:
            out = self._paces(rank, here)
            out = out if self._located else out[np.maximum(self._size, 0)]
            self._known[rank, here] = np.where(self._size < self.num_chunks, np.inf, out)
        return self._known[rank, here]

    @property
    def _located(self) -> bool:
        """Whether layers are located; else they are counted only."""
        return self.num_chunks == 1

    @cached_property
    def _size(self) -> Ints:
        """Layers of the range i…j−1, j − i, (L + 1, L + 1); ranges of too few are excluded at the end."""
        each = np.arange(sum(self.costs.counts) + 1)
        return np.subtract.outer(each, each).T

    @cached_property
    def _inside(self) -> tuple[Floats, Ints]:
        """Layers of each block type, (..., block types), and of all, (...), of every range or number of layers."""
        counts = np.array(self.costs.counts)
        if not self._located:
            held = np.arange(counts.sum() + 1)
            return np.outer(held, counts / counts.sum()), held
        share = np.eye(len(counts))[np.repeat(np.arange(len(counts)), counts)]  # (L, block types)
        before = np.concatenate([np.zeros((1, len(counts))), np.cumsum(share, axis=0)])
        return before[None, :, :] - before[:, None, :], self._size

    @cached_property
    def _seconds(self) -> Floats:
        """Seconds of these layers without the ends, (types, ...)."""
        return np.stack([self._inside[0] @ layer_s for layer_s in self.costs.layer_s])

    def _paces(self, rank: int, here: frozenset[str]) -> Floats:
        """Seconds of a rank on types with the layers of ``_inside``, (...); inf where C2 forbids them."""
        costs, (inside, size) = self.costs, self._inside
        used, each = [kind for kind, name in enumerate(costs.types) if name in here], (..., *(None,) * size.ndim)
        ends = costs.ends_s[:, 0] * (rank == 0) + costs.ends_s[:, 1] * (
            rank == costs.head_rank % len(costs.fixed_bytes)
        )
        here_s = self._seconds[used] + ends[used][each]
        if self.reruns is None:
            fits = costs.fixed_bytes[rank] + inside @ costs.layer_bytes[rank] <= costs.least_capacity_bytes([here])[0]
        else:
            again = self.reruns.layers[rank][np.maximum(size, 0)]
            fits = np.isfinite(again)
            here_s = here_s + self.reruns.slower_s[used][each] * np.where(fits, again, 0.0)
        return np.where(fits, here_s.max(axis=0), np.inf)


def _least_slowest(pace: Sequence[Floats]) -> float:
    """Minimax pass: the least T within which the ranks hold all layers."""
    reached = np.full(len(pace[0]), np.inf)
    reached[0] = 0.0
    for here in pace:
        reached = np.maximum(reached[:, None], here).min(axis=0)
    return float(reached[-1])


def _nearest(pace: Floats, equal: Ints) -> list[int]:
    """Additive pass: layers per rank nearest to ``equal``, then of least Σ pace², then with the lightest first ranks.

    ``pace`` is relative to T, so ranges above 1 are excluded.
    """
    size = np.arange(pace.shape[1])
    taken = size[None, :] - size[:, None]
    # scaled so that the squares of all ranks together weigh less than one layer
    squares = np.where(pace <= 1 + SAME, pace, np.inf) ** 2 / (2 * len(equal))
    apart = [np.abs(taken - wanted) + here for here, wanted in zip(squares, equal, strict=True)]
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
