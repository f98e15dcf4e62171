"""Computation of the busiest pipeline rank per micro-batch, and the figures that its communication depends on.

The busiest rank has the longest computation, that of the ranks before it included. Every rank is assumed to be as slow,
because a step waits for the busiest one. Collectives are counted for the layers of that rank. Where accelerator types
differ, the slowest type sets the time, and of every type the slowest accelerator of the job (``stragglers``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleacross.cost_models.buckets import num_buckets
from scaleacross.cost_models.candidates import Bools, Candidates, Floats, Ints
from scaleacross.cost_models.columns import column_names, columns_of
from scaleacross.cost_models.layer_seconds import StackedTimes, at_pace, distinct_shards, stacked_times
from scaleacross.cost_models.memory import Held, held_parameters
from scaleacross.cost_models.pipeline.timed_bounds import WHOLE, among, idle_share
from scaleacross.cost_models.rank_seconds import (
    LayerGathers,
    added_up_s,
    attention_times,
    columns_of_types,
    layer_counts,
    pass_times,
    passes_by_type,
    rank_times,
    update_s,
)
from scaleacross.cost_models.stages import RankClasses, block_counts, one_pass, pipeline_groups, stage_classes
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.workloads.layer_profile import ModelProfile


@dataclass(frozen=True)
class Work:
    """Work of every candidate, shape (n,). Times are seconds per micro-batch on the busiest rank, all chunks together.

    Attributes:
        forward_s, backward_s: computation; ``backward_s`` includes recomputation.
        weight_s: weight gradients, part of ``backward_s``.
        fill_s: one micro-batch through the first chunk of every rank before this one: warm-up and cool-down at least.
            Backward counts only where it is whole.
        fill_backward_s: the backward part of ``fill_s``, which the last micro-batch adds.
        chunk_backward_s: upper bound on the backward of one chunk of this rank.
        fill_rounds: warm-up and cool-down of a pipeline of equal ranks, in passes of a micro-batch
            (``overlap.rounds``).
        ahead_*: the columns of these names for the first chunks that ``fill_s`` counts (``least_waits``).
        ranks_after: lower bound on the number of pipeline ranks after this one.
        attention_s: fused attention forward, part of ``forward_s``; exchanges over cp can overlap with it.
        tp_gathers: gathers plus scatters over tp, forward and backward.
        tp_forward: gathers of the forward pass, which has as many scatters; part of ``tp_gathers``.
        shared_s, shared_backward_s: upper bounds on a layer's shared experts that run concurrently with all-to-alls.
        layers, moe_layers: layers with attention, layers with routed experts.
        dense_parameters, expert_parameters: held by the fullest rank before sharding over data parallel. They and
            ``buckets`` are those of each rank where rows are ranks (``differing_ranks``).
        mean_held_share, least_held_share: parameters of the mean and of the emptiest rank, over those of the fullest.
        own_layer_share, fullest_layer_share, mean_shard_share: fields of ``ShardShares``, ``own`` that of this rank.
        least_layers: layers of the rank that has fewest.
        optimizer_s: the update at the end of the step.
        buckets: pieces in which gradients and parameters of the fullest rank travel (``buckets.num_buckets``).
        contention_fraction: share of their speed that products lose while a collective is concurrent with them.
        least_contention_fraction: the same for a gather, with the allowed driver that takes least.
        elementwise_fraction: share of computation that moves bytes only, which loses no speed to held multiprocessors.
        hbm_s_per_byte: delay of computation per byte received concurrently, because such bytes pass through HBM.
        whole_share: forward and backward of one micro-batch through all ranks, over that of this one.
        least_forward_s, least_backward_s: through the shortest virtual stage, times the chunks of a rank.
        round_forward_s, round_backward_s: through first chunks of ranks 0 … r and last chunks of the others, least r.
        every_*: through all layers; like ``round_*`` without gradient accumulation. Where accelerator types differ,
            counts of collectives are 0, and weight gradients and attention are those of the type with most.
    """

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    fill_s: Floats
    fill_backward_s: Floats
    chunk_backward_s: Floats
    fill_rounds: Floats
    ahead_tp_gathers: Floats
    ahead_tp_forward: Floats
    ahead_layers: Floats
    ahead_moe_layers: Floats
    ahead_attention_s: Floats
    ranks_after: Floats
    attention_s: Floats
    shared_s: Floats
    shared_backward_s: Floats
    tp_gathers: Floats
    tp_forward: Floats
    layers: Floats
    moe_layers: Floats
    dense_parameters: Floats
    expert_parameters: Floats
    mean_held_share: Floats
    least_held_share: Floats
    own_layer_share: Floats
    fullest_layer_share: Floats
    mean_shard_share: Floats
    least_layers: Floats
    optimizer_s: Floats
    buckets: Floats
    contention_fraction: Floats
    least_contention_fraction: Floats
    elementwise_fraction: Floats
    hbm_s_per_byte: Floats
    whole_share: Floats
    least_forward_s: Floats
    least_backward_s: Floats
    round_forward_s: Floats
    round_backward_s: Floats
    every_forward_s: Floats
    every_backward_s: Floats
    every_weight_s: Floats
    every_attention_s: Floats
    every_tp_gathers: Floats
    every_tp_forward: Floats
    every_layers: Floats
    every_moe_layers: Floats

    def take(self, rows: Ints | Bools) -> Work:
        """The rows selected by an index or mask array."""
        return Work(*[column[rows] for column in columns_of(self)])


STATE_COLUMNS: Final = ("optimizer_s", "buckets")

NO_WORK: Final = Work(*(np.zeros(1) for _ in column_names(Work)))
"""One candidate that computes nothing."""


@dataclass(frozen=True)
class LayerWaits:
    """Lower bounds on waits of one micro-batch, forward and backward, seconds per candidate (n,): ``expert_s`` of one
    expert layer, ``gather_s`` of one gather or scatter of activations over tp."""

    expert_s: Floats
    gather_s: Floats

    def take(self, rows: Ints) -> LayerWaits:
        """The candidates selected by an index array."""
        return LayerWaits(self.expert_s[rows], self.gather_s[rows])


def work_of(
    profile: ModelProfile,
    job: Job,
    accelerators: Sequence[Accelerator],
    candidates: Candidates,
    waits: LayerWaits | None = None,
) -> Work:
    """Work of every candidate, on the rank whose computation, with that of the ranks before it, takes longest.

    Args:
        waits: collectives that count as well when the longest rank is looked for; None counts computation alone.

    Raises:
        KeyError: an accelerator states no peak for the job's precision.
        ValueError: more virtual stages than layers; only the two ends of a pipeline may be empty.
    """
    distinct, rows_to_distinct = distinct_shards(candidates)
    times = [stacked_times(profile, job, accelerator, distinct) for accelerator in accelerators]
    columns = {name: np.empty(len(candidates)) for name in column_names(Work)}
    for classes, rows in pipeline_groups(profile, candidates):
        at = rows_to_distinct[rows]
        of_group = candidates.take(rows)
        paced = [at_pace(t.take(at), profile, job, of_group, one) for t, one in zip(times, accelerators, strict=True)]
        waited = waits.take(rows) if waits else None
        here = _group_work(profile, job, accelerators, paced, of_group, classes, waited)
        for name, values in here.items():
            columns[name][rows] = values
    return Work(**columns)


def _group_work(
    profile: ModelProfile,
    job: Job,
    accelerators: Sequence[Accelerator],
    times: list[StackedTimes],
    candidates: Candidates,
    classes: RankClasses,
    waits: LayerWaits | None,
) -> dict[str, Floats]:
    """Columns of ``Work`` for candidates that share their rank classes."""
    here = np.arange(len(candidates))
    held = held_parameters(profile, candidates, classes)
    fullest = _fullest(held)
    passes = passes_by_type(times, job, accelerators, candidates, classes, held.total)
    gathers, totals = LayerGathers.of(profile, candidates), passes[0] + passes[1]
    fills = [_fill_s(each, candidates, classes) for each in times]
    fill, fill_backward = (np.max([each[part] for each in fills], axis=0) for part in range(2))
    # a rank that computes less may still end last, because more ranks run before it
    longest = candidates.num_micro_batches * (totals + _waited_s(profile, gathers, classes, waits)) + fill
    slowest, busiest = np.unravel_index(
        longest.reshape(-1, len(candidates)).argmax(axis=0), (len(accelerators), len(classes.first_rank))
    )
    forward, backward, weight, attention = (part[slowest, busiest, here] for part in passes)
    least = _least_stage(profile, times, candidates)
    added = np.max([added_up_s(job, one, candidates, held.total[fullest.at, here]) for one in accelerators], axis=0)
    fill_rounds = idle_share(candidates.schedule_names, forward, backward) * (candidates.pp - 1) / candidates.num_chunks
    fill_rounds = np.where(candidates.rerun_open, 0.0, fill_rounds)  # longer passes hide more in every round
    shares = ShardShares.of(profile, candidates, held, classes)
    ranks = classes.num_ranks[:, None]  # a product of matrices rounds one candidate otherwise than many
    return {
        "forward_s": forward,
        "backward_s": backward,
        "weight_s": weight,
        "fill_s": fill[busiest, here],
        "fill_backward_s": fill_backward[busiest, here],
        "fill_rounds": fill_rounds,
        **_ahead(profile, times, candidates, gathers, classes, busiest),
        "attention_s": attention,
        **layer_counts(profile, gathers, classes, busiest),
        "dense_parameters": fullest.dense,
        "expert_parameters": fullest.expert,
        **_of_states(job, accelerators, candidates, classes, fullest),
        **shares.columns(candidates, held, classes),
        # with a policy another rank may be the busiest
        "own_layer_share": np.where(candidates.rerun_open, shares.own.min(axis=0), shares.own[busiest, here]),
        **columns_of_types(profile, job, accelerators, candidates, times),
        "whole_share": (ranks * totals.max(axis=0)).sum(axis=0) / (forward + backward),
        **least | {"chunk_backward_s": np.minimum(backward, least["chunk_backward_s"] + added)},
        **_passes(profile, times, candidates, gathers),
    }


def state_work(
    profile: ModelProfile, job: Job, accelerators: Sequence[Accelerator], candidates: Candidates
) -> dict[str, Floats]:
    """Columns STATE_COLUMNS of ``work_of`` alone: those that depend on how states are sharded."""
    columns = {name: np.empty(len(candidates)) for name in STATE_COLUMNS}
    for classes, rows in pipeline_groups(profile, candidates):
        of_group = candidates.take(rows)
        held = _fullest(held_parameters(profile, of_group, classes))
        for name, values in _of_states(job, accelerators, of_group, classes, held).items():
            columns[name][rows] = values
    return columns


class _Fullest(NamedTuple):
    """The rank class ``at`` with most parameters of every candidate, and how many it holds, (n,) each."""

    at: NDArray[np.intp]
    dense: Floats
    expert: Floats


def _fullest(held: Held) -> _Fullest:
    at, here = held.total.argmax(axis=0), np.arange(held.total.shape[1])
    return _Fullest(at, held.dense[at, here], held.expert[at, here])


class ShardShares(NamedTuple):
    """Lower bounds on the parameters of one call, relative to those of the fullest rank's mean layer; at most 1.

    Each is the lesser of two shares: that of dense parameters and that of experts.

    Attributes:
        own: of the layers of every rank class, (classes, n), mean over its chunks; a chunk without layers counts as 0.
        fullest: of every layer of the fullest rank, (n,).
        mean: parameters of the mean rank over those of the fullest, (n,).
    """

    own: Floats
    fullest: Floats
    mean: Floats

    @classmethod
    def of(cls, profile: ModelProfile, candidates: Candidates, held: Held, classes: RankClasses) -> ShardShares:
        """Shares for ``classes``. A layer counts as its chunk's mean layer, with the chunk's embedding and head."""
        kinds, here = len(profile.blocks), np.arange(len(candidates))
        units = RankClasses(np.eye(kinds, dtype=np.int64), *(np.zeros(kinds, dtype=np.int64),) * 4)
        layer, at = held_parameters(profile, candidates, units), held.total.argmax(axis=0)
        layers, ranks = np.maximum(1, classes.num_layers)[:, None], classes.num_ranks[:, None]
        own, mean = [], []
        for unit, whole in ((layer.dense, held.dense), (layer.expert, held.expert)):
            # one of several chunks may have layers of the rank's leanest kind alone; a single chunk is the whole rank
            leanest = np.where(classes.layers[:, :, None] > 0, unit, np.inf).min(axis=1)
            least = np.where(candidates.num_chunks == 1, whole / layers, np.minimum(leanest, whole / layers))
            own.append(_over(least, (whole / layers)[at, here]))
            mean.append(_over((ranks * whole).sum(axis=0) / ranks.sum(), whole[at, here]))
        shares = np.minimum(1.0, np.min(own, axis=0))
        # the first and the last stage may have no layers (``split_layers``), and one rank may hold both
        empty = np.minimum(2, candidates.pp * candidates.num_chunks - sum(block_counts(profile)))
        kept = 1 - np.where(candidates.num_chunks > 1, np.clip(empty / candidates.num_chunks, 0.0, 1.0), 0.0)
        return cls(kept * shares, shares[at, here], np.minimum(1.0, np.min(mean, axis=0)))

    def columns(self, candidates: Candidates, held: Held, classes: RankClasses) -> dict[str, Floats]:
        """Columns of ``Work`` that compare what ``classes`` hold and are the same on all ranks, (n,) each."""
        most, mean = held.total.max(axis=0), (classes.num_ranks[:, None] * held.total).sum(axis=0) / candidates.pp
        return {
            "mean_held_share": mean / most,
            "least_held_share": held.total.min(axis=0) / most,
            "fullest_layer_share": self.fullest,
            "mean_shard_share": self.mean,
            "least_layers": np.full(len(candidates), float(classes.num_layers.min())),
        }


def _over(one: Floats, of: Floats) -> Floats:
    """Element-wise ``one / of``; 1 where ``of`` is 0."""
    return np.divide(one, of, out=np.ones(np.broadcast_shapes(one.shape, of.shape)), where=of > 0)


def _of_states(
    job: Job, accelerators: Sequence[Accelerator], candidates: Candidates, classes: RankClasses, held: _Fullest
) -> dict[str, Floats]:
    """Columns STATE_COLUMNS for candidates that share their rank classes."""
    return {
        "optimizer_s": update_s(job, accelerators, candidates, held.dense, held.expert).max(axis=0),
        "buckets": num_buckets(
            job.overlap, candidates, classes.num_layers[held.at].astype(np.float64), held.dense + held.expert
        ),
    }


def _fill_s(times: StackedTimes, candidates: Candidates, classes: RankClasses) -> tuple[Floats, Floats]:
    """``Work.fill_s`` and ``Work.fill_backward_s`` for the last rank of every class, (classes, n) each."""
    forward, backward = pass_times(times, candidates, classes.before)
    back = np.where(among(candidates.schedule, WHOLE), backward, 0.0)
    return forward + back, back


def _waited_s(profile: ModelProfile, gathers: LayerGathers, classes: RankClasses, waits: LayerWaits | None) -> Floats:
    """Seconds per micro-batch that every class waits for collectives, (classes, n); zeros (1, n) without ``waits``."""
    if waits is None:
        return np.zeros((1, gathers.once.shape[1]))
    counts = layer_counts(profile, gathers, classes, np.arange(len(classes.first_rank))[:, None])
    total: Floats = counts["moe_layers"] * waits.expert_s + counts["tp_gathers"] * waits.gather_s
    return total


def _ahead(
    profile: ModelProfile,
    times: Sequence[StackedTimes],
    candidates: Candidates,
    gathers: LayerGathers,
    classes: RankClasses,
    at: NDArray[np.intp],
) -> dict[str, Floats]:
    """Columns ``ahead_*`` and ``ranks_after`` for rank class ``at`` of every candidate."""
    before = classes.before
    counts = layer_counts(profile, gathers, before, at)
    counts["attention_s"] = np.max(
        [attention_times(each, before)[at, np.arange(len(candidates))] for each in times], axis=0
    )
    columns = {f"ahead_{name}": values for name, values in counts.items()}
    return columns | {"ranks_after": candidates.pp - 1.0 - np.asarray(classes.last_rank)[at]}


def _least_stage(profile: ModelProfile, times: Sequence[StackedTimes], candidates: Candidates) -> dict[str, Floats]:
    """Columns ``least_*_s`` and (without accumulation) ``chunk_backward_s`` of candidates with equal virtual stages."""
    pp, chunks = int(candidates.pp[0]), int(candidates.num_chunks[0])
    stages = stage_classes(block_counts(profile), pp * chunks)
    passes = [pass_times(each, candidates, stages) for each in times]
    forward, backward = (np.min([each[part] for each in passes], axis=(0, 1)) for part in range(2))
    longest = np.max([each[1] for each in passes], axis=(0, 1))
    return {
        "least_forward_s": chunks * forward,
        "least_backward_s": chunks * backward,
        "chunk_backward_s": np.where(candidates.rerun_open, np.inf, longest),  # what comes again is not known
    }


def _passes(
    profile: ModelProfile, times: Sequence[StackedTimes], candidates: Candidates, gathers: LayerGathers
) -> dict[str, Floats]:
    """Columns ``round_*`` and ``every_*`` for candidates that share their virtual stages."""
    classes = one_pass(block_counts(profile), int(candidates.pp[0]), int(candidates.num_chunks[0]))
    passes = [rank_times(each, candidates, classes) for each in times]
    forward, backward = (np.min([each[part] for each in passes], axis=0) for part in range(2))
    weight, attention = (np.max([each[part] for each in passes], axis=0) for part in range(2, 4))
    known = len(times) == 1  # which collectives other types run is not known
    counts = layer_counts(profile, gathers, classes, np.ones(len(candidates), dtype=np.intp))
    return {
        "round_forward_s": forward[0],
        "round_backward_s": backward[0],
        "every_forward_s": forward[1],
        "every_backward_s": backward[1],
        "every_weight_s": weight[1],
        "every_attention_s": attention[1],
        **{f"every_{name}": known * values for name, values in counts.items()},
    }
