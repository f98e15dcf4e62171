"""Work of decisions whose pipeline ranks or replicas differ: mixed accelerator types, unequal layers, unequal batches.

A step lasts as long as if every rank were like the one that makes it longest. So one decision becomes *rows*, one for
each kind of rank. A row has the layers of that rank, computed on the slowest type that its replica class has on that
stage, and the micro-batches of its class. Its warm-up and cool-down run through the other ranks of its class, each at
its own pace. Every row is timed like a candidate of equal ranks, and the longest row is the step. What is synchronised
over all ranks at the end is the same in every row: the slowest optimizer update.

Everything is linear in the layers of a rank. ``solvers.partition_stages`` builds on that (``LayerCosts``):

    pass_s(rank, type)  = Σ_k n_k · layer_s[type, k] + ends         forward + backward of one micro-batch
    bytes(rank)         = fixed_bytes[rank] + Σ_k n_k · layer_bytes[rank, k]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.buckets import num_buckets
from scaleacross.cost_models.candidates import Bools, Candidates, Floats, Ints
from scaleacross.cost_models.columns import columns_of, concatenated
from scaleacross.cost_models.layer_seconds import TimedLayers, layer_pass_s
from scaleacross.cost_models.layout import Layout, types_of_ranks
from scaleacross.cost_models.memory import bytes_by_layer, held_parameters
from scaleacross.cost_models.pipeline.timed_bounds import WHOLE, among, idle_share
from scaleacross.cost_models.rank_seconds import (
    LayerGathers,
    columns_of_types,
    layer_counts,
    passes_by_type,
    update_s,
)
from scaleacross.cost_models.recomputation import on_rows, own
from scaleacross.cost_models.stages import (
    block_counts,
    every_rank,
    head_rank,
    layers_of_ranks,
    placement_of,
    virtual_stages,
)
from scaleacross.cost_models.work import NO_WORK, ShardShares, Work

Split = tuple[tuple[int, ...], ...]
"""[pipeline rank][chunk] -> layers."""


class Rows(NamedTuple):
    """Kinds of ranks, (n,): candidate and work of each, and the index of the accelerator type that runs it."""

    candidates: Candidates
    work: Work
    types: Ints

    @classmethod
    def concatenated(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of all parts, one part after another; at least one part."""
        candidates, work, types = zip(*parts, strict=True)
        return cls(concatenated(candidates), concatenated(work), np.concatenate(types))

    def take(self, index: Ints) -> Rows:
        """The rows selected by an index array."""
        return Rows(self.candidates.take(index), self.work.take(index), self.types[index])


@dataclass(frozen=True)
class LayerCosts:
    """Seconds and bytes of one layer of each block type, for one candidate.

    Attributes:
        types: names of the accelerator types.
        counts: layers of each block type, in model order.
        layer_s: forward + backward with recomputation, (types, block types).
        ends_s: forward + backward of embedding and head, (types, 2).
        fixed_bytes, layer_bytes: memory of every pipeline rank, (pp,), and of a layer on it, (pp, block types).
        capacity_bytes: memory that the job may use on each accelerator type, without its headroom, (types,).
        head_rank: the rank that holds the head (``stages.head_rank``); -1 is the last one.
    """

    types: tuple[str, ...]
    counts: tuple[int, ...]
    layer_s: Floats
    ends_s: Floats
    fixed_bytes: Floats
    layer_bytes: Floats
    capacity_bytes: Floats
    head_rank: int = -1

    def pass_s(self, layers: Ints) -> Floats:
        """Forward + backward of a micro-batch on every type and rank, (types, pp); ``layers`` is (pp, block types)."""
        seconds = self.layer_s @ layers.T
        seconds[:, 0] += self.ends_s[:, 0]
        seconds[:, self.head_rank] += self.ends_s[:, 1]
        return seconds

    def slowest_pass_s(self, layers: Ints, types: Sequence[frozenset[str]]) -> Floats:
        """Forward + backward of one micro-batch on the slowest of each rank's ``types``, (pp,)."""
        return np.max(np.where(self._is_on(types), self.pass_s(layers), 0.0), axis=0)

    def least_capacity_bytes(self, types: Sequence[frozenset[str]]) -> Floats:
        """Usable memory of the smallest of each rank's ``types``, (pp,)."""
        return np.min(np.where(self._is_on(types), self.capacity_bytes[:, None], np.inf), axis=0)

    def _is_on(self, types: Sequence[frozenset[str]]) -> Bools:
        return np.array([[name in here for here in types] for name in self.types])

    def bytes(self, layers: Ints) -> Floats:
        """Memory of every rank without the reserve, (pp,); ``layers`` is (pp, block types)."""
        needed: Floats = self.fixed_bytes + (self.layer_bytes * layers).sum(axis=1)
        return needed


def layer_costs(timed: TimedLayers) -> LayerCosts:
    """``LayerCosts`` of a single candidate on every accelerator type."""
    profile, job, accelerators, candidates, times = timed
    seconds = np.stack([layer_pass_s(each, candidates)[:, 0] for each in times])
    ranks, head = np.arange(candidates.pp[0]), head_rank_of(candidates)
    ends = (ranks == 0).astype(np.int64), (ranks == head).astype(np.int64)
    fixed, per_layer = (of_all[..., 0] for of_all in bytes_by_layer(profile, job, candidates, ranks, *ends))
    usable = np.array([accelerator.room_bytes(job.memory_headroom_fraction) for accelerator in accelerators])
    names = tuple(accelerator.name for accelerator in accelerators)
    counts = block_counts(profile)
    return LayerCosts(names, counts, seconds[:, :-2], seconds[:, -2:], fixed, per_layer, usable, head)


def head_rank_of(candidates: Candidates) -> int:
    """The pipeline rank that holds the head of a single candidate."""
    return head_rank(int(candidates.pp[0]), int(candidates.num_chunks[0]), placement_of(candidates))


def differing_rows(timed: TimedLayers, layout: Layout, split: Split, micro_batches: Sequence[int]) -> Rows:
    """The distinct rows of ``rank_rows``."""
    return SplitRanks.of(timed, split).differing_rows(layout, micro_batches)


def rank_rows(timed: TimedLayers, layout: Layout, split: Split, micro_batches: Sequence[int]) -> Rows:
    """One row for every pipeline rank of every replica class of one decision, class after class.

    Args:
        micro_batches: of every class of ``layout``.

    Raises:
        ValueError: the split does not hold the layers of the model.
    """
    return SplitRanks.of(timed, split).rows(layout, micro_batches)


@dataclass(frozen=True)
class SplitRanks:
    """Pipeline ranks of one candidate under one split of its layers, whatever types they are on.

    Attributes:
        candidates: a row for every rank, or one row that holds for all.
        forward, backward, weight, attention: seconds of a pass, (types, ranks) each.
        longest: backward seconds of the longest chunk, (types, ranks).
        update: seconds of the optimizer update, (types, ranks).
        columns: those columns of ``Work`` that do not depend on a rank's type, (ranks,) each.
    """

    types: tuple[str, ...]
    candidates: Candidates
    forward: Floats
    backward: Floats
    weight: Floats
    attention: Floats
    longest: Floats
    update: Floats
    columns: Mapping[str, Floats]

    @classmethod
    def of(cls, timed: TimedLayers, split: Split) -> SplitRanks:
        """The ranks of one candidate. Raises ValueError as ``rank_rows`` does."""
        profile, job, accelerators, candidates, times = timed
        table = layers_of_ranks(block_counts(profile), split, placement_of(candidates))
        classes, of_all = every_rank(table, head_rank_of(candidates)), candidates.take(np.zeros(1, dtype=np.int64))
        held = held_parameters(profile, of_all, classes)  # policies of stages do not change it
        ranks, same = np.arange(len(split)), np.ones(len(split))
        of_types = passes_by_type(times, job, accelerators, candidates, classes, held.total)
        shares = ShardShares.of(profile, of_all, held, classes)
        of_all_ranks = shares.columns(of_all, held, classes)
        of_all_ranks |= columns_of_types(profile, job, accelerators, candidates, times)
        columns = {
            **layer_counts(profile, LayerGathers.of(profile, candidates), classes, ranks),
            **{name: column * same for name, column in of_all_ranks.items()},
            "dense_parameters": held.dense[:, 0],
            "expert_parameters": held.expert[:, 0],
            "buckets": num_buckets(job.overlap, of_all, table.sum(axis=1).astype(float), held.total[:, 0]),
            "ranks_after": (len(split) - 1 - ranks) * same,
            "own_layer_share": shares.own[:, 0],
        }
        update = update_s(job, accelerators, of_all, held.dense[:, 0], held.expert[:, 0])
        names = tuple(accelerator.name for accelerator in accelerators)
        forward, backward, weight, attention = map(own, of_types)
        longest = _longest_chunk_s(timed, split)
        return cls(names, candidates, forward, backward, weight, attention, longest, update, columns)

    def differing_rows(self, layout: Layout, micro_batches: Sequence[int]) -> Rows:
        """The distinct ones of ``rows``."""
        rows = self.rows(layout, micro_batches)
        candidates, work = rows.candidates, columns_of(rows.work)
        columns = np.stack([candidates.num_micro_batches, candidates.recompute, rows.types, *work], axis=1)
        _, distinct = np.unique(columns, axis=0, return_index=True)
        return rows.take(distinct)

    def rows(self, layout: Layout, micro_batches: Sequence[int]) -> Rows:
        """``rank_rows`` on one layout."""
        num_ranks = self.forward.shape[1]
        rank = np.tile(np.arange(num_ranks), len(layout))
        passes_s = self.forward + self.backward
        kinds = np.array([_slowest(one.types, self.types, passes_s) for one in layout]).ravel()
        of_all = enumerate(types_of_ranks(layout))
        slowest_update = max(self.update[self.types.index(one), r] for r, here in of_all for one in here)
        candidates, forward, backward = (
            on_rows(self.candidates, rank),
            self.forward[kinds, rank],
            self.backward[kinds, rank],
        )
        passes = passes_s[kinds, rank].reshape(len(layout), -1)
        # with a split backward only the forwards of the ranks before are certain to precede a rank's actions
        certain = passes if among(candidates.schedule, WHOLE).all() else forward.reshape(len(layout), -1)
        # a rank's first of several chunks may be shorter than its mean chunk, so the time before it has no lower bound here
        one_chunk = int(candidates.num_chunks[0]) == 1
        before = one_chunk * (certain.cumsum(axis=1) - certain).ravel()
        forward_before = forward.reshape(len(layout), -1)
        forward_before = one_chunk * (forward_before.cumsum(axis=1) - forward_before).ravel()
        # in warm-up and cool-down ranks wait for one another, so the rank with most rounds decides
        idle = float(idle_share(candidates.schedule_names, forward, backward).max())
        work = replace(  # columns ``ahead_*``, ``least_*_s``, ``round_*`` and ``every_*`` serve bounds only and stay 0
            NO_WORK.take(np.zeros(len(rank), dtype=np.int64)),
            forward_s=forward,
            backward_s=backward,
            weight_s=self.weight[kinds, rank],
            fill_s=before,
            fill_backward_s=before - forward_before,
            chunk_backward_s=self.longest[kinds, rank],
            fill_rounds=np.full(len(rank), idle * (num_ranks - 1) / candidates.num_chunks[0]),
            attention_s=self.attention[kinds, rank],
            optimizer_s=np.full(len(rank), slowest_update),
            whole_share=passes.sum(axis=1).repeat(num_ranks) / passes.ravel(),
            **{name: column[rank] for name, column in self.columns.items()},
        )
        batches = np.repeat(np.array(micro_batches, dtype=np.int64), num_ranks)
        rows = candidates if len(candidates) > 1 else candidates.take(np.zeros(len(batches), dtype=np.int64))
        return Rows(replace(rows, num_micro_batches=batches), work, kinds)


def _longest_chunk_s(timed: TimedLayers, split: Split) -> Floats:
    """Backward seconds of the longest chunk of every rank on every type, (types, ranks)."""
    profile, job, accelerators, candidates, times = timed
    stages, rank = virtual_stages(block_counts(profile), split, placement_of(candidates))
    candidates = on_rows(candidates, rank)
    held = held_parameters(profile, candidates, stages)
    out = np.zeros((len(split), len(accelerators)))
    _, backward, *_ = passes_by_type(times, job, accelerators, candidates, stages, held.total)
    np.maximum.at(out, rank, own(backward).T)
    return out.T


def _slowest(types: Sequence[frozenset[str]], names: Sequence[str], seconds: Floats) -> list[int]:
    """Index of the slowest of each rank's ``types``, one per rank; ``seconds`` is (types, ranks)."""
    return [
        max((names.index(one) for one in sorted(here)), key=lambda kind: float(seconds[kind, rank]))
        for rank, here in enumerate(types)
    ]
