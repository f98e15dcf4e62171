"""Seconds of computation, collectives and optimizer update of classes of pipeline ranks, summed over their layers.

Arrays are per candidate, (n,), or (classes, n) for all classes of ``stages.RankClasses``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleacross.cost_models.candidates import Candidates, Floats
from scaleacross.cost_models.compute import (
    ELEMENTWISE_BACKWARD_RATIO,
    accumulation_time_s,
    memory_bytes_per_s,
    optimizer_time_s,
)
from scaleacross.cost_models.layer_seconds import StackedTimes, layer_pass_s, recomputed_s, shared_seconds
from scaleacross.cost_models.memory import Held
from scaleacross.cost_models.network.drivers import contention_fraction, least_contention_fraction
from scaleacross.cost_models.network.sm_contention import RING_TOUCHES
from scaleacross.cost_models.offloading import host_update_s, state_share
from scaleacross.cost_models.recomputation import elementwise_again, gathers_again, gathers_once
from scaleacross.cost_models.sharding import reduced_every_pass
from scaleacross.cost_models.stages import RankClasses, block_counts, spread
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.offloading import millionths
from scaleacross.workloads.layer_profile import ModelProfile

RankTimes = tuple[Floats, Floats, Floats, Floats]
"""Forward, backward with recomputation, weight gradients (part of backward), attention; s, (classes, n) each."""


def rank_times(times: StackedTimes, candidates: Candidates, classes: RankClasses) -> RankTimes:
    """Forward, backward (with recomputation), weight gradients and attention of every rank class, each (classes, n)."""
    forward, backward = pass_times(times, candidates, classes)
    return forward, backward, _of_classes(times.weight_s, classes), attention_times(times, classes)


def pass_times(times: StackedTimes, candidates: Candidates, classes: RankClasses) -> tuple[Floats, Floats]:
    """Forward and backward of ``rank_times`` alone."""
    backward = _of_classes(times.backward_s, classes) + spread(recomputed_s(times, candidates)[:-2], classes)
    return _of_classes(times.forward_s, classes), backward


def attention_times(times: StackedTimes, classes: RankClasses) -> Floats:
    """Attention of ``rank_times`` alone."""
    return _of_classes(times.attention_s, classes)


def _of_classes(layers: Floats, classes: RankClasses) -> Floats:
    return spread(layers[:-2], classes, layers[-2], layers[-1])


def passes_by_type(
    times: Sequence[StackedTimes],
    job: Job,
    accelerators: Sequence[Accelerator],
    candidates: Candidates,
    classes: RankClasses,
    held: Floats,
) -> tuple[Floats, ...]:
    """``rank_times`` on every accelerator type, (types, classes, n) each, with gradients of ``held`` parameters
    accumulated over micro-batches; the first of these has nothing to add to."""
    parts = zip(*(rank_times(each, candidates, classes) for each in times), strict=True)
    forward, backward, weight, attention = map(np.stack, parts)
    added = np.stack([added_up_s(job, one, candidates, held) for one in accelerators])
    return forward, backward + added, weight + added, attention


def added_up_s(job: Job, accelerator: Accelerator, candidates: Candidates, held: Floats) -> Floats:
    """Seconds of a backward pass in which gradients of ``held`` parameters are accumulated, mean over micro-batches."""
    added: Floats = (1 - 1 / candidates.num_micro_batches) * accumulation_time_s(accelerator, job.optimizer, held)
    return added


class LayerGathers(NamedTuple):
    """Gathers (= scatters) over tp per block type, each (types, n): those of one forward pass, and those that its
    backward pass repeats."""

    once: Floats
    again: Floats

    @classmethod
    def of(cls, profile: ModelProfile, candidates: Candidates) -> LayerGathers:
        """Gathers of these candidates."""
        laws, of = (gathers_once, gathers_again), profile.of_blocks
        return cls(*(np.stack([law(layer, candidates) for layer in profile.layers])[of] for law in laws))


def layer_counts(
    profile: ModelProfile, layers: LayerGathers, classes: RankClasses, at: NDArray[np.intp]
) -> dict[str, Floats]:
    """Columns ``tp_gathers``, ``tp_forward``, ``layers`` and ``moe_layers`` of ``Work`` for each candidate's class."""
    blocks, here = [block for block, _ in profile.blocks], np.arange(layers.once.shape[1])
    gathers, again = (spread(each, classes)[at, here] for each in layers)
    end_gathers = classes.has_embedding * profile.embedding.tp_gathers + classes.has_head * profile.head.tp_gathers
    return {
        "tp_gathers": 2.0 * (2.0 * gathers + again + 2.0 * end_gathers[at]),
        "tp_forward": (gathers + end_gathers[at]).astype(float),
        "layers": (classes.layers @ np.array([block.exchanges_over_cp for block in blocks]))[at].astype(float),
        "moe_layers": (classes.layers @ np.array([block.routed_tokens > 0 for block in blocks]))[at].astype(float),
    }


def elementwise_fraction(profile: ModelProfile, times: Sequence[StackedTimes], candidates: Candidates) -> Floats:
    """Share of the passes through all layers that is element-wise, for the accelerator type with most of it, (n,).

    Where the recompute policy is still to be chosen, it is an upper bound.
    """
    counts = np.array(block_counts(profile))
    again = np.stack([elementwise_again(layer, candidates) for layer in profile.layers]) + candidates.rerun_open
    passes = 1.0 + again[profile.of_blocks] + ELEMENTWISE_BACKWARD_RATIO
    shares = [
        (counts @ (each.elementwise_s[:-2] * passes)) / (counts @ layer_pass_s(each, candidates)[:-2]) for each in times
    ]
    return np.minimum(1.0, np.max(shares, axis=0))


def hbm_s_per_byte(accelerators: Sequence[Accelerator], candidates: Candidates, elementwise: Floats) -> Floats:
    """``Work.hbm_s_per_byte`` for the share of computation that is element-wise.

    It is 0 where the policy is still to be chosen, because recomputed work may not be element-wise.
    """
    each = RING_TOUCHES / min(memory_bytes_per_s(one) for one in accelerators)
    return np.where(candidates.rerun_open, 0.0, elementwise * each)


def columns_of_types(
    profile: ModelProfile,
    job: Job,
    accelerators: Sequence[Accelerator],
    candidates: Candidates,
    times: Sequence[StackedTimes],
) -> dict[str, Floats]:
    """Columns of ``Work`` that follow from layers and accelerator types, whatever a rank holds, (n,) each."""
    elementwise, one = elementwise_fraction(profile, times, candidates), np.ones(len(candidates))
    shared, shared_backward = shared_seconds(job, times)
    return {
        "shared_s": shared,
        "shared_backward_s": shared_backward,
        "contention_fraction": contention_fraction(accelerators) * one,
        "least_contention_fraction": least_contention_fraction(accelerators, job.network.drivers) * one,
        "elementwise_fraction": elementwise,
        "hbm_s_per_byte": hbm_s_per_byte(accelerators, candidates, elementwise),
    }


def update_s(
    job: Job, accelerators: Sequence[Accelerator], candidates: Candidates, dense: Floats, expert: Floats
) -> Floats:
    """Seconds of the optimizer update of a rank's parameters, by accelerator type, (types, n).

    Where the offload is still to be chosen, it is a lower bound. It includes the check of gradients before they are
    reduced, one read of them all (``_check_s``).
    """
    if (later := candidates.policy_open).any():
        chosen = replace(candidates, recompute=np.where(later, 0, candidates.recompute))
        shares = (np.where(later, millionths(share), chosen.optimizer_offload) for share in job.optimizer_offload)
        every = (replace(chosen, optimizer_offload=share) for share in shares)
        return np.asarray(np.min([update_s(job, accelerators, one, dense, expert) for one in every], axis=0))
    updated = Held(dense, expert).sharded(candidates)
    moved = 2 * job.optimizer.state_bytes + job.optimizer.gradient_bytes + job.optimizer.parameter_bytes
    here = updated * (1 - state_share(candidates))
    each = (
        np.maximum(optimizer_time_s(one, here, moved), host_update_s(job, one, candidates, updated))
        + _check_s(job, one, candidates, dense + expert)
        for one in accelerators
    )
    return np.stack(list(each))


def _check_s(job: Job, accelerator: Accelerator, candidates: Candidates, held: Floats) -> Floats:
    """Seconds of the norm of every bucket's local gradients, once in a step.

    It reads gradient_bytes per parameter at memory speed (megatron/core/distributed/param_and_grad_buffer.py:
    check_grads). The host's wait for every bucket is not counted. Gradients that are reduced in every pass belong to
    Megatron-FSDP, which has no such check.
    """
    read = job.optimizer.gradient_bytes * held / memory_bytes_per_s(accelerator)
    return np.where(reduced_every_pass(candidates) | (not job.checks_gradients), 0.0, read)
