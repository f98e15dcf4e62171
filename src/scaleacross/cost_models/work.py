"""The computation of the busiest pipeline rank, and the sizes that its communication has.

The busiest rank is the one with most computation per micro-batch; every rank is taken to be as slow (a step waits for
it), and its layers are the ones whose collectives are counted. Where accelerator types differ, the slowest type sets
the time, and of every type the slowest accelerator of the job (``stragglers``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleacross.cost_models.buckets import num_buckets
from scaleacross.cost_models.compute import (
    ELEMENTWISE_BACKWARD_RATIO,
    LayerTimes,
    Shards,
    accumulation_time_s,
    layer_times,
    memory_bytes_per_s,
    optimizer_time_s,
    runtime_of,
)
from scaleacross.cost_models.memory import held_parameters
from scaleacross.cost_models.network.sm_contention import hbm_s, held_fraction
from scaleacross.cost_models.pipeline_timed import FOLDED, WHOLE, among, idle_share
from scaleacross.cost_models.settings import Bools, Floats, Ints, Settings
from scaleacross.cost_models.stages import RankClasses, rank_classes, spread, stage_classes
from scaleacross.cost_models.stragglers import slowest_ratio
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.schedules.pipeline.stage_placement import StagePlacement
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import RECOMPUTES, SCHEDULE_NAMES, SHARD_LEVELS
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile


@dataclass(frozen=True)
class Work:
    """Per candidate, shape (n,). Times are seconds per micro-batch on the busiest rank, all its chunks together.

    Attributes:
        forward_s, backward_s: computation; recomputation is part of backward.
        weight_s: weight gradients, part of backward_s.
        fill_s: forward and backward of one micro-batch through the first chunk of every rank before this one: what fill and
            drain add at least, forward alone where weight gradients fill the drain.
        fill_rounds: micro-batches' worth of passes in which ranks fill and drain, were all alike (``overlap.rounds``).
        ahead_*: what those first chunks have of the columns of these names (``least_waits``).
        ranks_behind: pipeline ranks behind this one, at least.
        attention_s: fused attention forward, part of forward_s (what context parallelism can hide behind).
        tp_gathers: gathers plus scatters over tp, forward and backward.
        tp_forward: gathers (and as many scatters) of the forward pass, part of tp_gathers.
        layers, moe_layers: layers with attention, layers with routed experts.
        dense_parameters, expert_parameters: held by the fullest rank before sharding over data parallel.
        optimizer_s: the update at the end of the step.
        buckets: pieces in which the rank's gradients and parameters travel (``buckets.num_buckets``).
        taken_fraction: of their speed that products lose while a collective runs beside them.
        elementwise_fraction: share of computation that moves bytes only, which loses no speed to held multiprocessors.
        hbm_s_per_byte: by which such computation falls behind per byte received beside it, which passes through HBM.
        whole_share: forward and backward of one micro-batch through all ranks over that of this one.
        least_share: the same through the rank that computes least.
        least_forward_s, least_backward_s: through the virtual stage that takes least, times the chunks of a rank.
    """

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    fill_s: Floats
    fill_rounds: Floats
    ahead_tp_gathers: Floats
    ahead_tp_forward: Floats
    ahead_layers: Floats
    ahead_moe_layers: Floats
    ahead_attention_s: Floats
    ranks_behind: Floats
    attention_s: Floats
    tp_gathers: Floats
    tp_forward: Floats
    layers: Floats
    moe_layers: Floats
    dense_parameters: Floats
    expert_parameters: Floats
    optimizer_s: Floats
    buckets: Floats
    taken_fraction: Floats
    elementwise_fraction: Floats
    hbm_s_per_byte: Floats
    whole_share: Floats
    least_share: Floats
    least_forward_s: Floats
    least_backward_s: Floats

    def take(self, rows: Ints | Bools) -> Work:
        """The rows selected by an index or mask array."""
        return Work(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


NO_WORK: Final = Work(*(np.zeros(1) for _ in fields(Work)))
"""One candidate that computes nothing."""


def pipeline_groups(profile: ModelProfile, settings: Settings) -> Iterator[tuple[RankClasses, Ints]]:
    """Rows that share (pp, num_chunks, stage placement) and so their rank classes, as (classes, row indices).

    Raises:
        ValueError: more virtual stages than layers, but for two empty ends.
    """
    folded = among(settings.schedule, FOLDED)
    key = (settings.pp * 1_000_003 + settings.num_chunks) * 2 + folded
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else []:
        first = rows[0]
        shape = (int(settings.pp[first]), int(settings.num_chunks[first]), placement_of(settings, first))
        yield rank_classes(block_counts(profile), *shape), rows


def placement_of(settings: Settings, row: int = 0) -> StagePlacement:
    """Where the schedule of a candidate has its virtual stages."""
    return SCHEDULES[SCHEDULE_NAMES[int(settings.schedule[row])]].placement


def block_counts(profile: ModelProfile) -> tuple[int, ...]:
    """Layers of every block type in model order (the argument of ``stages.rank_classes``)."""
    return tuple(count for _, count in profile.blocks)


@dataclass(frozen=True)
class LayerWaits:
    """Seconds at least that one micro-batch waits, forward and backward, per candidate (n,): for an expert layer, and for one
    gather of activations over tp."""

    expert_s: Floats
    gather_s: Floats

    def take(self, rows: Ints) -> LayerWaits:
        """The candidates selected by an index array."""
        return LayerWaits(self.expert_s[rows], self.gather_s[rows])


def work_of(
    profile: ModelProfile,
    job: Job,
    accelerators: Sequence[Accelerator],
    settings: Settings,
    waits: LayerWaits | None = None,
) -> Work:
    """Work of every candidate, on the rank whose computation, with what comes before it, is longest.

    Args:
        waits: collectives that count as well when the longest rank is looked for.

    Raises:
        KeyError: an accelerator states no peak for the job's precision.
        ValueError: more virtual stages than layers, but for two empty ends.
    """
    distinct, rows_to_distinct = _distinct_shards(settings)
    times = [_stacked_times(profile, job, accelerator, distinct) for accelerator in accelerators]
    columns = {f.name: np.empty(len(settings)) for f in fields(Work)}
    for classes, rows in pipeline_groups(profile, settings):
        at = rows_to_distinct[rows]
        of_group = settings.take(rows)
        paced = [_at_pace(t.take(at), of_group, one) for t, one in zip(times, accelerators, strict=True)]
        waited = waits.take(rows) if waits else None
        here = _group_work(profile, job, accelerators, paced, of_group, classes, waited)
        for name, values in here.items():
            columns[name][rows] = values
    return Work(**columns)


RankTimes = tuple[Floats, Floats, Floats, Floats]
"""Forward, backward with recomputation, weight gradients (part of backward) and attention of rank classes."""


@dataclass(frozen=True)
class StackedTimes:
    """Layer times stacked over [block types..., embedding, head], (types + 2, n)."""

    forward: Floats
    backward: Floats
    weight: Floats
    selective: Floats
    full: Floats
    attention: Floats
    elementwise: Floats

    def take(self, rows: Ints) -> StackedTimes:
        """The candidates selected by an index array."""
        return StackedTimes(*(getattr(self, f.name)[:, rows] for f in fields(self)))

    def slowed(self, ratio: Floats) -> StackedTimes:
        """All times longer by a ratio per candidate."""
        return StackedTimes(*(getattr(self, f.name) * ratio for f in fields(self)))


def _distinct_shards(settings: Settings) -> tuple[Shards, Ints]:
    """The distinct (tp, cp, ep, micro_batch) and the row -> distinct map."""
    key = ((settings.tp * 65536 + settings.cp) * 65536 + settings.ep) * 4096 + settings.micro_batch
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return Shards(settings.tp[first], settings.cp[first], settings.ep[first], settings.micro_batch[first]), inverse


def times_by_type(
    profile: ModelProfile, job: Job, accelerators: Sequence[Accelerator], settings: Settings
) -> list[StackedTimes]:
    """Layer times of every candidate on every accelerator type.

    Raises:
        KeyError: an accelerator states no peak for the job's precision.
    """
    distinct, rows_to_distinct = _distinct_shards(settings)
    times = ((one, _stacked_times(profile, job, one, distinct)) for one in accelerators)
    return [_at_pace(each.take(rows_to_distinct), settings, one) for one, each in times]


def _at_pace(times: StackedTimes, settings: Settings, accelerator: Accelerator) -> StackedTimes:
    """The times on the slowest of all accelerators that a candidate uses."""
    spread_fraction = accelerator.speed_spread_fraction
    return times.slowed(slowest_ratio(spread_fraction, settings.world_size)) if spread_fraction else times


def _stacked_times(profile: ModelProfile, job: Job, accelerator: Accelerator, shards: Shards) -> StackedTimes:
    runtime = runtime_of(job)
    layers: list[LayerProfile] = [*(block for block, _ in profile.blocks), profile.embedding, profile.head]
    each: list[LayerTimes] = [
        layer_times(layer, profile.num_experts, accelerator, job.precision, shards, job.sequence_length, runtime)
        for layer in layers
    ]
    return StackedTimes(
        np.stack([t.forward_s for t in each]),
        np.stack([t.backward_s for t in each]),
        np.stack([t.weight_s for t in each]),
        np.stack([t.selective_s for t in each]),
        np.stack([t.forward_s * layer.full_recompute_fraction for t, layer in zip(each, layers, strict=True)]),
        np.stack([t.attention_s for t in each]),
        np.stack([t.elementwise_s for t in each]),
    )


def _group_work(
    profile: ModelProfile,
    job: Job,
    accelerators: Sequence[Accelerator],
    times: list[StackedTimes],
    settings: Settings,
    classes: RankClasses,
    waits: LayerWaits | None,
) -> dict[str, Floats]:
    """Work of candidates that share their rank classes."""
    here = np.arange(len(settings))
    held = held_parameters(profile, settings, classes)
    per_type = [
        with_accumulation(rank_times(each, settings, classes), job, accelerator, settings, held.total)
        for accelerator, each in zip(accelerators, times, strict=True)
    ]
    totals = np.stack([forward + backward for forward, backward, _, _ in per_type])  # (types, classes, n)
    fill = np.max([_fill_s(each, settings, classes) for each in times], axis=0)
    longest = settings.num_micro_batches * (totals + _waited_s(profile, settings, classes, waits)) + fill
    slowest, busiest = np.unravel_index(
        longest.reshape(-1, len(settings)).argmax(axis=0), (len(accelerators), len(classes.first_rank))
    )
    forward, backward, weight, attention = (
        np.stack([rank[part] for rank in per_type])[slowest, busiest, here] for part in range(4)
    )
    fullest = held.total.argmax(axis=0)
    dense, expert = held.dense[fullest, here], held.expert[fullest, here]
    elementwise = elementwise_fraction(profile, times, settings)
    return {
        "forward_s": forward,
        "backward_s": backward,
        "weight_s": weight,
        "fill_s": fill[busiest, here],
        "fill_rounds": idle_share(settings.schedule_names, forward, backward) * (settings.pp - 1) / settings.num_chunks,
        **_ahead(profile, times, settings, classes, busiest),
        "attention_s": attention,
        **layer_counts(profile, settings, classes, busiest),
        "dense_parameters": dense,
        "expert_parameters": expert,
        "optimizer_s": update_s(job, accelerators, settings, dense, expert).max(axis=0),
        "buckets": num_buckets(job.overlap, settings, classes.num_layers[fullest], dense + expert),
        "taken_fraction": np.full(len(settings), taken_fraction(accelerators)),
        "elementwise_fraction": elementwise,
        "hbm_s_per_byte": elementwise * hbm_s(1.0, min(memory_bytes_per_s(one) for one in accelerators)),
        "whole_share": classes.num_ranks @ totals.max(axis=0) / (forward + backward),
        "least_share": totals.max(axis=0).min(axis=0) / (forward + backward),
        **_least_stage(profile, times, settings),
    }


def _fill_s(times: StackedTimes, settings: Settings, classes: RankClasses) -> Floats:
    """``Work.fill_s`` of the last rank of every class, (classes, n)."""
    forward, backward, _, _ = rank_times(times, settings, classes.before)
    return forward + np.where(among(settings.schedule, WHOLE), backward, 0.0)


def _waited_s(profile: ModelProfile, settings: Settings, classes: RankClasses, waits: LayerWaits | None) -> Floats:
    """Seconds per micro-batch that every class waits, (classes, n)."""
    if waits is None:
        return np.zeros((1, len(settings)))
    counts = layer_counts(profile, settings, classes, np.arange(len(classes.first_rank))[:, None])
    total: Floats = counts["moe_layers"] * waits.expert_s + counts["tp_gathers"] * waits.gather_s
    return total


def _ahead(
    profile: ModelProfile, times: Sequence[StackedTimes], settings: Settings, classes: RankClasses, at: NDArray[np.intp]
) -> dict[str, Floats]:
    """Columns ``ahead_*`` and ``ranks_behind`` of the class ``at`` of every candidate."""
    counts = layer_counts(profile, settings, classes.before, at)
    counts["attention_s"] = np.max(
        [rank_times(each, settings, classes.before)[3][at, np.arange(len(settings))] for each in times], axis=0
    )
    columns = {f"ahead_{name}": values for name, values in counts.items()}
    return columns | {"ranks_behind": settings.pp - 1.0 - np.asarray(classes.last_rank)[at]}


def _least_stage(profile: ModelProfile, times: Sequence[StackedTimes], settings: Settings) -> dict[str, Floats]:
    """Columns ``least_forward_s`` and ``least_backward_s`` of candidates that share their virtual stages."""
    pp, chunks = int(settings.pp[0]), int(settings.num_chunks[0])
    stages = stage_classes(block_counts(profile), pp * chunks)
    passes = [rank_times(each, settings, stages)[:2] for each in times]
    forward, backward = (np.min([each[part] for each in passes], axis=(0, 1)) for part in range(2))
    return {"least_forward_s": chunks * forward, "least_backward_s": chunks * backward}


def taken_fraction(accelerators: Sequence[Accelerator]) -> float:
    """Of the accelerator type that loses most: share of their speed that products have not beside a collective."""
    return max(float(held_fraction(one.collective_multiprocessors, one.num_multiprocessors)) for one in accelerators)


def elementwise_fraction(profile: ModelProfile, times: Sequence[StackedTimes], settings: Settings) -> Floats:
    """Share of the passes through all layers that is element-wise, of the accelerator type that has most of it, (n,)."""
    counts = np.array(block_counts(profile))
    passes = np.where(settings.recompute == RECOMPUTES.index("none"), 1.0, 2.0) + ELEMENTWISE_BACKWARD_RATIO
    shares = [
        (counts @ each.elementwise[:-2]) * passes / (counts @ layer_pass_s(each, settings)[:-2]) for each in times
    ]
    return np.minimum(1.0, np.max(shares, axis=0))


def with_accumulation(
    times: RankTimes, job: Job, accelerator: Accelerator, settings: Settings, held: Floats
) -> RankTimes:
    """``rank_times`` with gradients added up over micro-batches; the first of them has nothing to add to."""
    forward, backward, weight, attention = times
    added = (1 - 1 / settings.num_micro_batches) * accumulation_time_s(accelerator, job.optimizer, held)
    return forward, backward + added, weight + added, attention


def layer_counts(
    profile: ModelProfile, settings: Settings, classes: RankClasses, at: NDArray[np.intp]
) -> dict[str, Floats]:
    """``tp_gathers``, ``tp_forward``, ``layers`` and ``moe_layers`` of ``Work`` for the rank class ``at`` of every candidate."""
    blocks = [block for block, _ in profile.blocks]
    gathers = (classes.layers @ np.array([block.tp_gathers for block in blocks]))[at]
    end_gathers = classes.has_embedding * profile.embedding.tp_gathers + classes.has_head * profile.head.tp_gathers
    passes = np.where(settings.recompute == RECOMPUTES.index("full"), 3.0, 2.0)
    return {
        "tp_gathers": 2.0 * (passes * gathers + 2.0 * end_gathers[at]),
        "tp_forward": (gathers + end_gathers[at]).astype(float),
        "layers": (classes.layers @ np.array([block.attention is not None for block in blocks]))[at].astype(float),
        "moe_layers": (classes.layers @ np.array([block.routed_tokens > 0 for block in blocks]))[at].astype(float),
    }


def rank_times(times: StackedTimes, settings: Settings, classes: RankClasses) -> RankTimes:
    """Forward, backward (with recomputation), weight gradients and attention of every rank class, each (classes, n)."""
    forward, backward, weight, attention = (
        spread(part[:-2], classes, part[-2], part[-1])
        for part in (times.forward, times.backward, times.weight, times.attention)
    )
    nothing = np.zeros(len(settings))  # embedding and head keep what they need, whatever the policy
    selective, again = (spread(part[:-2], classes, nothing, nothing) for part in (times.selective, times.full))
    extra = np.choose(settings.recompute, [np.zeros_like(forward), selective, again])
    return forward, backward + extra, weight, attention


def layer_pass_s(times: StackedTimes, settings: Settings) -> Floats:
    """Forward + backward with recomputation of [block types..., embedding, head], (types + 2, n)."""
    again = np.choose(settings.recompute, [np.zeros_like(times.forward), times.selective, times.full])
    again[-2:] = 0.0  # embedding and head keep what they need, whatever the policy
    total: Floats = times.forward + times.backward + again
    return total


def update_s(
    job: Job, accelerators: Sequence[Accelerator], settings: Settings, dense: Floats, expert: Floats
) -> Floats:
    """The optimizer update of what a rank holds, by accelerator type, (types, n)."""
    group = np.where(settings.shard == SHARD_LEVELS.index("none"), 1.0, settings.dp_shard * settings.cp)
    updated = dense / group + expert / np.maximum(1.0, group / settings.ep)
    moved = 2 * job.optimizer.state_bytes + job.optimizer.gradient_bytes + job.optimizer.parameter_bytes
    return np.stack([optimizer_time_s(accelerator, updated, moved) for accelerator in accelerators])
