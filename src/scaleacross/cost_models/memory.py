"""Peak memory per accelerator and pipeline rank.

parameters  P/(tp) · parameter_bytes                            ÷ (dp_shard·cp) if parameters are sharded; if not, plus
            the copies of layers' weights that 8- and 4-bit recipes keep (``conversions.kept_weight_bytes``)
gradients   P/(tp) · gradient_bytes                             ÷ (dp_shard·cp) if gradients are sharded
optimizer   P/(tp) · state_bytes                                ÷ (dp_shard·cp) if anything is sharded
activations bytes per token (policy) · tokens of a micro-batch · layers · micro-batches in flight (schedule, rank)
buffers     two gathered layers if parameters are sharded (all layers if they stay gathered until the backward pass), or
            two layers' gradients if only these are sharded; plus one layer's kept activations while it is recomputed,
            plus logits

Gradients and optimizer states count trained parameters only; ``offloading`` says which part of them is on the host. P
counts the parameters of the rank. Replicated parameters are not divided by tp. Routed experts are divided by tp·ep and
sharded over dp_shard·cp/ep, folded ones by tp·cp·ep and over dp_shard/ep. Micro-batches in flight:
``pipeline.max_in_flight``. Rules as in ZeRO (1910.02054) and Korthikanti et al. (2205.05198).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats, Ints
from scaleacross.cost_models.conversions import kept_weight_bytes
from scaleacross.cost_models.offloading import (
    GRADIENT_BYTES,
    activation_share,
    host_room_bytes,
    most_activation_share,
    most_state_share,
    on_the_way_bytes,
    state_share,
)
from scaleacross.cost_models.pipeline.timed_bounds import max_in_flight
from scaleacross.cost_models.recomputation import kept_by_block, kept_bytes, layers_again, rerun_bytes
from scaleacross.cost_models.sharding import pass_gathers, reduced_every_pass
from scaleacross.cost_models.stages import RankClasses, spread
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import SHARD_LEVELS
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile

HALF_BYTES: Final = 2.0
"""Bytes per parameter of a 16-bit copy."""
MASTER_BYTES: Final = 4.0
"""Bytes of an fp32 master copy, part of ``Optimizer.state_bytes``; booked as parameter where there is no other copy."""
PARTS = ("parameters", "gradients", "optimizer", "activations", "buffers")


@dataclass(frozen=True)
class Held:
    """Parameters that one rank holds before any sharding over data parallel, (classes, n)."""

    dense: Floats
    expert: Floats

    @property
    def total(self) -> Floats:
        """Dense and expert parameters together."""
        return self.dense + self.expert

    def divided(self, by: Floats, over: Ints) -> Floats:
        """One rank's share of all parameters, sharded over ``by`` ranks, ``over`` of which already split the
        experts."""
        share: Floats = self.dense / by + self.expert / np.maximum(1.0, by / over)
        return share

    def sharded(self, candidates: Candidates) -> Floats:
        """One rank's share of optimizer states and reduced gradients."""
        whole = candidates.shard == SHARD_LEVELS.index("none")
        return self.divided(np.where(whole, 1.0, candidates.dp_shard * candidates.cp), candidates.experts_over)


def held_parameters(
    profile: ModelProfile, candidates: Candidates, classes: RankClasses, *, frozen: bool = False
) -> Held:
    """Trainable parameters on one rank of every class; with ``frozen`` all of them."""
    dense, expert = _of_blocks(profile, candidates, frozen=frozen)
    embedding, head = (_dense(end, candidates.tp, frozen=frozen) for end in (profile.embedding, profile.head))
    held = spread(dense, classes, embedding, head)
    if profile.num_prediction_layers:  # they look up tokens where the head is
        held = held + (classes.has_head > classes.has_embedding)[:, None] * embedding
    return Held(held, spread(expert, classes))


def _layers_hold(profile: ModelProfile, candidates: Candidates, classes: RankClasses) -> Floats:
    """Parameters of the layers between embedding and head on one rank, frozen ones, norms and routers included."""
    dense, expert = _of_blocks(profile, candidates, frozen=True)
    return spread(dense + expert, classes)


def _of_blocks(profile: ModelProfile, candidates: Candidates, *, frozen: bool) -> tuple[Floats, Floats]:
    """Dense and expert parameters of a layer of every block on one rank, (blocks, n) each."""
    dense = np.stack([_dense(layer, candidates.tp, frozen=frozen) for layer in profile.layers])
    expert = np.array([_expert(layer, frozen=frozen) for layer in profile.layers])[:, None]
    of = profile.of_blocks
    return dense[of], (expert / (candidates.tp * candidates.experts_over))[of]


def _converted_weights(profile: ModelProfile, job: Job, candidates: Candidates, classes: RankClasses) -> Floats:
    """Bytes of 16-bit weight copies that autocast makes and the backward pass reads, for all layers and the head.

    Uncompiled operators leave the copies in autocast's cache. A compiled layer keeps them as saved tensors, unless it
    is recomputed. Where recomputed layers are not known yet, all layers count as recomputed, which is a lower bound.
    """
    if not job.kept.autocast:
        return np.zeros((len(classes.first_rank), 1))
    known = np.where(candidates.rerun_open, 1.0, layers_again(candidates))
    again = known if "model" in job.kept.compiled else 0.0
    layers = _layers_hold(profile, candidates, classes) * (1 - again)
    held: Floats = HALF_BYTES * (layers + classes.has_head[:, None] * _output_weights(profile, candidates))
    return held


def _output_weights(profile: ModelProfile, candidates: Candidates) -> Floats:
    """Weights of the output projection on one rank, tied ones too, (n,)."""
    whole: Floats = sum(gemm.in_features * gemm.out_features for gemm in profile.head.gemms) / candidates.tp
    return whole


def _dense(layer: LayerProfile, tp: Ints, *, frozen: bool) -> Floats:
    total, replicated = layer.num_parameters, layer.num_replicated_parameters
    if not frozen:
        total, replicated = total - layer.num_frozen_parameters, replicated - layer.num_frozen_replicated_parameters
    return (total - replicated) / tp + replicated


def _expert(layer: LayerProfile, *, frozen: bool) -> int:
    return layer.num_expert_parameters - (0 if frozen else layer.num_frozen_expert_parameters)


def memory_parts(
    profile: ModelProfile, job: Job, candidates: Candidates, classes: RankClasses, in_flight: Ints | None = None
) -> dict[str, Floats]:
    """Bytes of every one of PARTS on every rank class, for candidates that share their classes, each (classes, n).

    Args:
        in_flight: chunk activations held by each class, (classes,), where the schedule's name does not determine them.
    """
    held, all_held = (held_parameters(profile, candidates, classes, frozen=frozen) for frozen in (False, True))
    group = candidates.dp_shard * candidates.cp
    of_parameters = np.where(pass_gathers(candidates) > 0, group, 1.0)
    of_gradients = np.where(reduced_every_pass(candidates), group, 1.0)
    optimizer = job.optimizer
    master = optimizer.gathered_from_master & (pass_gathers(candidates) > 0)
    resident = np.where(master, MASTER_BYTES, optimizer.parameter_bytes)
    kept_gathered = np.where(pass_gathers(candidates) == 1, optimizer.parameter_bytes, 0.0)

    return {
        "parameters": all_held.divided(of_parameters, candidates.experts_over) * resident
        + kept_weight_bytes(job) * (pass_gathers(candidates) == 0) * _layers_hold(profile, candidates, classes)
        + _converted_weights(profile, job, candidates, classes),
        "gradients": held.divided(of_gradients, candidates.experts_over) * optimizer.gradient_bytes,
        "optimizer": held.sharded(candidates)
        * (optimizer.state_bytes - MASTER_BYTES * master)
        * (1 - most_state_share(job, candidates)),
        "activations": _activations(profile, job, candidates, classes, in_flight),
        "buffers": _buffers(profile, job, candidates, classes)
        + kept_gathered * all_held.total
        + on_the_way_bytes(profile, candidates, _tokens(job, candidates)),
    }


def bytes_by_layer(
    profile: ModelProfile, job: Job, candidates: Candidates, ranks: Ints, has_embedding: Ints, has_head: Ints
) -> tuple[Floats, Floats]:
    """Memory of pipeline ``ranks`` without layers, (ranks, n), and of a layer of each type, (ranks, types, n)."""
    # memory is linear in layers: the difference to a rank without layers is one layer
    probes = np.eye(1 + len(profile.blocks), dtype=np.int64)[:, 1:]  # no layer, and one of each type
    times = len(probes)
    ends = (np.repeat(each, times) for each in (has_embedding, has_head, ranks, np.ones_like(ranks)))
    parts = memory_parts(profile, job, candidates, RankClasses(np.tile(probes, (len(ranks), 1)), *ends))
    needed = sum(parts.values(), start=np.zeros(1)).reshape(len(ranks), times, -1)
    return needed[:, 0], needed[:, 1:] - needed[:, :1]


def _tokens(job: Job, candidates: Candidates) -> Floats:
    return candidates.micro_batch * (job.sequence_length / candidates.cp)


def _activations(
    profile: ModelProfile, job: Job, candidates: Candidates, classes: RankClasses, in_flight: Ints | None
) -> Floats:
    """Bytes of kept activations: bytes per token · tokens · micro-batches in flight; the head's for one micro-batch."""
    per_layer = kept_by_block(profile, candidates)
    embedding = kept_bytes(profile.embedding, candidates)
    kept = spread(per_layer * (1 - most_activation_share(job, candidates)), classes, embedding) / candidates.num_chunks
    held = _held_chunks(job, candidates, classes, in_flight)
    head = classes.has_head[:, None] * kept_bytes(profile.head, candidates)
    return (kept * held + head) * _tokens(job, candidates)


def host_bytes(
    profile: ModelProfile, job: Job, candidates: Candidates, classes: RankClasses, in_flight: Ints | None = None
) -> Floats:
    """Host memory used per accelerator of every rank class, (classes, n): layers' activations, states and gradients."""
    per_layer = kept_by_block(profile, candidates)
    flight = _held_chunks(job, candidates, classes, in_flight)
    layers = spread(per_layer * activation_share(candidates), classes) / candidates.num_chunks * flight
    updated = held_parameters(profile, candidates, classes).sharded(candidates) * state_share(candidates)
    filled: Floats = layers * _tokens(job, candidates) + updated * (job.optimizer.state_bytes + GRADIENT_BYTES)
    return filled


def fullest_bytes(
    profile: ModelProfile,
    job: Job,
    candidates: Candidates,
    classes: RankClasses,
    accelerators: Sequence[Accelerator],
    room_bytes: float,
) -> Floats:
    """Bytes on the fullest rank of candidates with equal classes, (n,); above ``room_bytes`` if hosts lack memory."""
    parts = memory_parts(profile, job, candidates, classes)
    needed: Floats = sum(parts.values(), start=np.zeros(1)).max(axis=0)
    if not (candidates.activation_offload.any() or candidates.optimizer_offload.any()):
        return needed
    lacking = host_bytes(profile, job, candidates, classes).max(axis=0) - host_room_bytes(accelerators)
    return np.where(lacking > 0, np.maximum(needed, room_bytes) + lacking, needed)


def _held_chunks(job: Job, candidates: Candidates, classes: RankClasses, in_flight: Ints | None) -> Ints:
    """Chunk activations held at once, (classes, n).

    Where all-to-alls overlap with another micro-batch, a forward pass is concurrent with a backward pass whose chunk is
    still held. That is one chunk more (Megatron-Core, schedules.py: one more warm-up chunk).
    """
    held = _most_in_flight(candidates, classes) if in_flight is None else in_flight[:, None]
    overlaps = (candidates.expert_ranks > 1) & (job.experts.overlap_fraction > 0)
    return np.asarray(
        np.where(overlaps, np.minimum(held + 1, candidates.num_micro_batches * candidates.num_chunks), held)
    )


def _most_in_flight(candidates: Candidates, classes: RankClasses) -> Ints:
    """Chunk activations held by the fullest rank of every class, (classes, n).

    That rank is the first or the last of the class: every form falls, rises or stays along the ranks.
    """
    shape = (candidates.schedule_names, candidates.pp, candidates.num_micro_batches, candidates.num_chunks)
    last = classes.first_rank if classes.last_rank is None else classes.last_rank
    return np.maximum(*(max_in_flight(*shape, rank[:, None]) for rank in (classes.first_rank, last)))


def _buffers(profile: ModelProfile, job: Job, candidates: Candidates, classes: RankClasses) -> Floats:
    """Bytes of two layers that every pass gathers or reduces, and of one layer's activations while recomputed."""
    if job.kept.by == "pytorch":
        return _pytorch_buffers(profile, job, candidates, classes)
    layer = max((block for block, _ in profile.blocks), key=lambda block: block.total_parameters)
    held = _dense(layer, candidates.tp, frozen=True) + layer.num_expert_parameters / (
        candidates.tp * candidates.experts_over
    )
    gathers = pass_gathers(candidates)
    alone = reduced_every_pass(candidates) & (gathers == 0)
    each = np.where(gathers == 2, job.optimizer.parameter_bytes, np.where(alone, job.optimizer.gradient_bytes, 0.0))
    full = rerun_bytes(layer, candidates)
    return (2 * held * each + full * _tokens(job, candidates)) * np.ones((len(classes.first_rank), 1))


def _pytorch_buffers(profile: ModelProfile, job: Job, candidates: Candidates, classes: RankClasses) -> Floats:
    """Bytes of temporaries of FSDP2, autograd and the loss, the most of three moments, plus receive buffers of a stage.

    A layer's backward pass holds this layer and the next gathered, its 16-bit gradient, and what is recomputed. An fp32
    copy comes on top where gradients are reduced in every pass or autocast's parameters ask for one. The head's kept
    tensors are free by then. The head's backward pass holds the same for its weights, with nothing gathered ahead.
    The loss takes 8 bytes per token and entry of the vocabulary, or 12 per entry of a rank where tp divides it. 2 bytes
    for the 16-bit logits come on top. Under a pipeline these are the stage's output; else they stay in the allocator's
    cache, because the next request is twice as large.
    A chunked loss takes 12 bytes per entry of a piece, or with tp 18 per entry of a rank and 4 per entry of all. The
    gathered head with its gradients and the stage's output come on top. A compiled loss makes only the 16-bit gradient,
    2 bytes per entry, of the logits that it keeps; with tp it counts like an uncompiled one.
    Counted with tests/oracles/torch_counts.py and compiled_counts.py, except for the cache. Gradients are assumed to
    exist, as from the second micro-batch on.
    """
    optimizer, tokens, tp = job.optimizer, _tokens(job, candidates), candidates.tp
    gathered = optimizer.parameter_bytes * ((pass_gathers(candidates) == 2) & (not job.kept.autocast))
    of_layer = optimizer.parameter_bytes + 2 * gathered
    of_layer = of_layer + optimizer.gradient_bytes * (reduced_every_pass(candidates) | job.kept.autocast)
    largest = max((block for block, _ in profile.blocks), key=lambda block: block.total_parameters)
    again = rerun_bytes(largest, candidates)
    held = _dense(largest, tp, frozen=True) + largest.num_expert_parameters / (tp * candidates.experts_over)
    layer = of_layer * held + again * tokens

    chunks, entries = job.kept.loss_chunks, profile.vocabulary_size / tp
    if chunks > 1:
        per_entry = np.where(tp > 1, 18.0 + 4.0 * tp, 12.0) / chunks + 2.0 * (candidates.pp > 1)
    elif "loss" in job.kept.compiled:
        per_entry = np.where(tp > 1, 12.0 + 2.0 + 2.0, 2.0)  # with tp as below: 2 are kept less
    else:
        per_entry = np.where(tp > 1, 12.0, 8.0) + 2.0
    loss = per_entry * entries * tokens
    of_head = (of_layer - gathered) * _output_weights(profile, candidates)  # nothing is prefetched
    if chunks > 1:
        loss = loss + of_head + 2.0 * profile.head.hidden_size * tokens
    at_end = np.maximum(loss, np.maximum(of_head, layer) - kept_bytes(profile.head, candidates) * tokens)

    ends = (classes.first_rank == 0)[:, None] * 1.0 + classes.has_head[:, None]
    received = tokens * profile.head.hidden_size * 2.0 / tp * candidates.num_micro_batches
    messages = np.where(candidates.pp > 1, received * (2.0 * candidates.num_chunks - ends), 0.0)
    buffers: Floats = np.where(classes.has_head[:, None], at_end, layer) + messages
    return buffers
