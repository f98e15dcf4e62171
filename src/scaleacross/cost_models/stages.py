"""Which layers a pipeline rank holds, for one (pp, num_chunks): ranks that hold the same are one class.

Chunk c of rank r is virtual stage c·pp + r (the looped placement of interleaved schedules); layers per virtual stage
follow ``spec.parallelism.split_layers``. The embedding sits on rank 0, the head on rank pp − 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scaleacross.cost_models.settings import Floats, Ints
from scaleacross.spec.parallelism import split_layers


@dataclass(frozen=True)
class RankClasses:
    """Distinct pipeline ranks. Arrays of shape (classes, ...).

    Attributes:
        layers: layers per block type, (classes, block types).
        has_embedding, has_head: 0 or 1, (classes,).
        first_rank: lowest pipeline rank of the class: the one with most micro-batches in flight, (classes,).
        num_ranks: ranks of the class, (classes,).
    """

    layers: Ints
    has_embedding: Ints
    has_head: Ints
    first_rank: Ints
    num_ranks: Ints

    @property
    def num_layers(self) -> Ints:
        """Layers per class, all types."""
        total: Ints = self.layers.sum(axis=1)
        return total


@lru_cache(maxsize=4096)
def rank_layers(block_counts: tuple[int, ...], pp: int, num_chunks: int) -> tuple[tuple[int, ...], ...]:
    """Layers of each type on each pipeline rank, [rank][type], for blocks of ``block_counts`` layers in model order.

    Raises:
        ValueError: more virtual stages than layers.
    """
    table = np.zeros((pp, len(block_counts)), dtype=np.int64)
    type_of_layer = np.repeat(np.arange(len(block_counts)), block_counts)
    start = 0
    for stage, count in enumerate(split_layers(sum(block_counts), pp * num_chunks)):
        table[stage % pp] += np.bincount(type_of_layer[start : start + count], minlength=len(block_counts))
        start += count
    return tuple(tuple(int(n) for n in row) for row in table)


@lru_cache(maxsize=4096)
def rank_classes(block_counts: tuple[int, ...], pp: int, num_chunks: int) -> RankClasses:
    """The distinct ranks of a pipeline. Raises ValueError when there are more virtual stages than layers."""
    ranks: dict[tuple[tuple[int, ...], bool, bool], list[int]] = {}
    for rank, layers in enumerate(rank_layers(block_counts, pp, num_chunks)):
        ranks.setdefault((layers, rank == 0, rank == pp - 1), []).append(rank)
    keys = list(ranks)
    return RankClasses(
        layers=np.array([layers for layers, _, _ in keys]),
        has_embedding=np.array([int(first_rank) for _, first_rank, _ in keys]),
        has_head=np.array([int(last_rank) for _, _, last_rank in keys]),
        first_rank=np.array([ranks[key][0] for key in keys]),
        num_ranks=np.array([len(ranks[key]) for key in keys]),
    )


def spread(values: Floats, classes: RankClasses, embedding: Floats, head: Floats) -> Floats:
    """Sum of a per-layer quantity over the layers of each class.

    Args:
        values: (types, n) per block type and candidate; ``embedding`` and ``head``: (n,).

    Returns:
        (classes, n).
    """
    ends = classes.has_embedding[:, None] * embedding + classes.has_head[:, None] * head
    total: Floats = classes.layers @ values + ends
    return total
