"""Seconds of one micro-batch in every layer of a model: block types, embedding and head, by candidate and accelerator type.

Layers take the same time on every rank that holds them, so that they are priced once for all candidates with equal (tp, cp, ep,
micro-batch) and then put together (``rank_seconds``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from scaleacross.cost_models.compute import LayerTimes, Shards, layer_times, runtime_of
from scaleacross.cost_models.settings import Floats, Ints, Settings
from scaleacross.cost_models.stragglers import slowest_ratio
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile


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


def times_by_type(
    profile: ModelProfile, job: Job, accelerators: Sequence[Accelerator], settings: Settings
) -> list[StackedTimes]:
    """Layer times of every candidate on every accelerator type.

    Raises:
        KeyError: an accelerator states no peak for the job's precision.
    """
    distinct, rows_to_distinct = distinct_shards(settings)
    times = ((one, stacked_times(profile, job, one, distinct)) for one in accelerators)
    return [at_pace(each.take(rows_to_distinct), settings, one) for one, each in times]


def distinct_shards(settings: Settings) -> tuple[Shards, Ints]:
    """The distinct (tp, cp, ep, micro_batch) and the row -> distinct map."""
    key = ((settings.tp * 65536 + settings.cp) * 65536 + settings.ep) * 4096 + settings.micro_batch
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return Shards(settings.tp[first], settings.cp[first], settings.ep[first], settings.micro_batch[first]), inverse


def stacked_times(profile: ModelProfile, job: Job, accelerator: Accelerator, shards: Shards) -> StackedTimes:
    """Layer times of every row of ``shards`` on an accelerator of mean speed. Raises KeyError as ``times_by_type`` does."""
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


def at_pace(times: StackedTimes, settings: Settings, accelerator: Accelerator) -> StackedTimes:
    """The times on the slowest of all accelerators that a candidate uses."""
    spread_fraction = accelerator.speed_spread_fraction
    return times.slowed(slowest_ratio(spread_fraction, settings.world_size)) if spread_fraction else times


def layer_pass_s(times: StackedTimes, settings: Settings) -> Floats:
    """Forward + backward with recomputation of [block types..., embedding, head], (types + 2, n)."""
    again = np.choose(settings.recompute, [np.zeros_like(times.forward), times.selective, times.full])
    again[-2:] = 0.0  # embedding and head keep what they need, whatever the policy
    total: Floats = times.forward + times.backward + again
    return total
