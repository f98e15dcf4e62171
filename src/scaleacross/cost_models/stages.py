"""Layers of each pipeline rank for one (pp, num_chunks): ranks that hold the same layers form one class.

``schedules.pipeline.stage_placement`` decides which virtual stage a chunk of a rank is.
``spec.parallelism.split_layers`` decides the layers of a virtual stage. The embedding is on rank 0. The head is with
the last virtual stage: on rank pp − 1 of a loop, on rank 0 of a V.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats, Ints
from scaleacross.cost_models.pipeline.timed_bounds import folded
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.schedules.pipeline.stage_placement import StagePlacement, locate, virtual_stage
from scaleacross.spec.parallelism import SCHEDULE_NAMES, split_layers
from scaleacross.workloads.layer_profile import ModelProfile


@dataclass(frozen=True)
class RankClasses:
    """Distinct pipeline ranks. Arrays of shape (classes, ...).

    Attributes:
        layers: layers per block type, (classes, block types).
        has_embedding, has_head: 0 or 1, (classes,).
        first_rank: lowest pipeline rank of the class, (classes,).
        num_ranks: ranks of the class, (classes,).
        last_rank: highest pipeline rank of the class, (classes,).
        ahead: layers by type of the first chunks of all ranks before ``last_rank``, (classes, block types), which the
            first micro-batch passes before it reaches that rank. None (like ``last_rank``) where it is not needed.
    """

    layers: Ints
    has_embedding: Ints
    has_head: Ints
    first_rank: Ints
    num_ranks: Ints
    last_rank: Ints | None = None
    ahead: Ints | None = None

    @property
    def num_layers(self) -> Ints:
        """Layers per class, all types."""
        total: Ints = self.layers.sum(axis=1)
        return total

    @property
    def before(self) -> RankClasses:
        """Everything that the first micro-batch passes before the last rank of every class, as if it were on one rank.

        Raises:
            ValueError: the classes were built without ``ahead``.
        """
        if self.ahead is None or self.last_rank is None:
            raise ValueError("these classes do not know what lies ahead of them")
        first = (self.last_rank > 0).astype(np.int64)
        return RankClasses(self.ahead, first, np.zeros_like(first), self.first_rank, self.num_ranks)


def head_rank(pp: int, num_chunks: int, placement: StagePlacement = "loop") -> int:
    """The rank with the last virtual stage, and so with the head."""
    return locate(placement, pp, pp * num_chunks - 1)[0]


def equal_stages(
    num_layers: int, pp: int, num_chunks: int, placement: StagePlacement = "loop"
) -> tuple[tuple[int, ...], ...]:
    """[rank][chunk] -> layers of the equal split (``spec.parallelism.split_layers``).

    Raises:
        ValueError: more virtual stages than layers; only the two ends of a pipeline may be empty.
    """
    counts = split_layers(num_layers, pp * num_chunks)
    return tuple(
        tuple(counts[virtual_stage(placement, pp, rank, chunk)] for chunk in range(num_chunks)) for rank in range(pp)
    )


def layers_of_ranks(
    block_counts: tuple[int, ...], layers_per_stage: Sequence[Sequence[int]], placement: StagePlacement = "loop"
) -> Ints:
    """Layers of each type on each pipeline rank, (ranks, types), for any split [rank][chunk] -> layers.

    Raises:
        ValueError: the split does not hold the layers of the model.
    """
    by_stage = layers_of_stages(block_counts, layers_per_stage, placement)
    pp = len(layers_per_stage)
    table = np.zeros((pp, len(block_counts)), dtype=np.int64)
    np.add.at(table, [locate(placement, pp, stage)[0] for stage in range(len(by_stage))], by_stage)
    return table


def layers_of_stages(
    block_counts: tuple[int, ...], layers_per_stage: Sequence[Sequence[int]], placement: StagePlacement = "loop"
) -> Ints:
    """Layers of each type of each virtual stage in model order, (pp·v, types), for any split [rank][chunk] -> layers.

    Raises:
        ValueError: the split does not hold the layers of the model.
    """
    pp, num_chunks = len(layers_per_stage), len(layers_per_stage[0])
    places = [locate(placement, pp, stage) for stage in range(pp * num_chunks)]
    counts = [layers_per_stage[rank][chunk] for rank, chunk in places]
    if sum(counts) != sum(block_counts):
        raise ValueError(f"the stages hold {sum(counts)} layers, the model has {sum(block_counts)}")
    table = np.zeros((pp * num_chunks, len(block_counts)), dtype=np.int64)
    stage_of_layer = np.repeat(np.arange(pp * num_chunks), counts)
    np.add.at(table, (stage_of_layer, np.repeat(np.arange(len(block_counts)), block_counts)), 1)
    return table


def virtual_stages(
    block_counts: tuple[int, ...], layers_per_stage: Sequence[Sequence[int]], placement: StagePlacement = "loop"
) -> tuple[RankClasses, Ints]:
    """Every virtual stage as a class of its own, in model order, and the pipeline rank that holds it, (pp·v,).

    Raises:
        ValueError: as ``layers_of_stages``.
    """
    table = layers_of_stages(block_counts, layers_per_stage, placement)
    stages = np.arange(len(table))
    rank = np.array([locate(placement, len(layers_per_stage), stage)[0] for stage in range(len(table))])
    first, last = (stages == 0).astype(np.int64), (stages == stages[-1]).astype(np.int64)
    return RankClasses(table, first, last, rank, np.ones_like(rank)), rank


def every_rank(layers: Ints, head: int) -> RankClasses:
    """Every pipeline rank as a class of its own, from its layers by type, (ranks, types), and the head's rank."""
    ranks = np.arange(len(layers))
    return RankClasses(
        layers, (ranks == 0).astype(np.int64), (ranks == head).astype(np.int64), ranks, np.ones_like(ranks)
    )


@lru_cache(maxsize=4096)
def rank_classes(
    block_counts: tuple[int, ...], pp: int, num_chunks: int, placement: StagePlacement = "loop"
) -> RankClasses:
    """The distinct ranks of a pipeline. Raises ValueError when more than the two ends would be empty."""
    ranks: dict[tuple[tuple[int, ...], bool, bool], list[int]] = {}
    last_rank = head_rank(pp, num_chunks, placement)
    split = equal_stages(sum(block_counts), pp, num_chunks, placement)
    for rank, layers in enumerate(layers_of_ranks(block_counts, split, placement).tolist()):
        ranks.setdefault((tuple(layers), rank == 0, rank == last_rank), []).append(rank)
    keys = list(ranks)
    first_chunks = layers_of_stages(block_counts, split, placement)
    # exclusive sum: a rank's own first chunk is not ahead of it
    passed = np.cumsum(first_chunks[:pp], axis=0) - first_chunks[:pp]
    last = np.array([ranks[key][-1] for key in keys])
    return RankClasses(
        layers=np.array([layers for layers, _, _ in keys]),
        has_embedding=np.array([int(has_embedding) for _, has_embedding, _ in keys]),
        has_head=np.array([int(has_head) for _, _, has_head in keys]),
        first_rank=np.array([ranks[key][0] for key in keys]),
        num_ranks=np.array([len(ranks[key]) for key in keys]),
        last_rank=last,
        ahead=passed[last],
    )


@lru_cache(maxsize=4096)
def stage_classes(block_counts: tuple[int, ...], num_stages: int) -> RankClasses:
    """The distinct virtual stages of the equal split, as if each were a rank. ValueError as in ``rank_classes``."""
    table = layers_of_stages(block_counts, [[count] for count in split_layers(sum(block_counts), num_stages)])
    ends = np.zeros((num_stages, 2), dtype=np.int64)
    ends[0, 0] = ends[-1, 1] = 1
    rows, first, counts = np.unique(np.hstack([table, ends]), axis=0, return_index=True, return_counts=True)
    return RankClasses(rows[:, :-2], rows[:, -2], rows[:, -1], first, counts)


@lru_cache(maxsize=4096)
def one_pass(block_counts: tuple[int, ...], pp: int, num_chunks: int) -> RankClasses:
    """Two classes, as if each were a rank: the least layers of one round, and all layers; equal split over a loop.

    A round passes the first chunks of ranks 0 … r and the last chunks of the others. Block type by block type, r < pp −
    1 is the one with the least layers. Raises ValueError as ``rank_classes`` does.
    """
    every = np.array(block_counts)
    table = layers_of_stages(block_counts, [[count] for count in split_layers(sum(block_counts), pp * num_chunks)])
    # for every r < pp − 1: first chunks of ranks 0 … r, and last chunks of the ranks after r
    ahead, behind = table[:pp].cumsum(axis=0)[:-1], table[-pp:][::-1].cumsum(axis=0)[::-1][1:]
    least = (ahead + behind).min(axis=0, initial=sum(block_counts), where=True) if pp > 1 else every
    both = np.ones(2, dtype=np.int64)
    return RankClasses(np.stack([np.minimum(least, every), every]), both, both, 0 * both, both)


def spread(values: Floats, classes: RankClasses, embedding: Floats | float = 0.0, head: Floats | float = 0.0) -> Floats:
    """Sum of a per-layer quantity over the layers of each class.

    Args:
        values: (types, n) per block type and candidate.
        embedding, head: the quantity of these ends, (n,), or 0.

    Returns:
        (classes, n).
    """
    ends = classes.has_embedding[:, None] * embedding + classes.has_head[:, None] * head
    total: Floats = classes.layers @ values + ends
    return total


def block_counts(profile: ModelProfile) -> tuple[int, ...]:
    """Layers of every block type in model order (the argument of ``rank_classes``)."""
    return tuple(count for _, count in profile.blocks)


def placement_of(candidates: Candidates, row: int = 0) -> StagePlacement:
    """How the schedule of a candidate places its virtual stages."""
    return SCHEDULES[SCHEDULE_NAMES[int(candidates.schedule[row])]].placement


def pipeline_groups(profile: ModelProfile, candidates: Candidates) -> Iterator[tuple[RankClasses, Ints]]:
    """Yield (classes, row indices) for rows with equal (pp, num_chunks, stage placement), hence equal classes.

    Raises:
        ValueError: more virtual stages than layers; only the two ends of a pipeline may be empty.
    """
    in_v = folded(candidates.schedule)
    key = (candidates.pp * 1_000_003 + candidates.num_chunks) * 2 + in_v
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else []:
        first = rows[0]
        shape = (int(candidates.pp[first]), int(candidates.num_chunks[first]), placement_of(candidates, first))
        yield rank_classes(block_counts(profile), *shape), rows
