"""Lower bounds on what the pipeline of a candidate waits for, whatever stages its ranks and chunks hold.

A placed decision is timed with every stage's own computation and waits (``pipeline.placed``). One path of that timing
is certain: the first micro-batch passes the stages before the busiest rank; that rank runs all its actions; and where
the backward is whole, the last micro-batch passes the same stages back:

    step ≥ Σ_{s<r} (F+B+waits)_s + 2·Σ_{s<r} delay_s + m·(F+B+waits)_r     (forward and one way alone where it is split)

``overlap.computation_s`` is m·(F+B)_r + Σ (F+B)_s of it. This module adds the waits of both and the delays. The waits
of a rank are a sum over its chunks, and each chunk overlaps with its own computation only. So the sum is never less
than the waits of all chunks together.

Three other paths contain other stages than the rank's, so that their delays may overlap its waits. The bound is the
longest of the four paths, not their sum (``Waits.alone_s``, ``longest_s``):

     all stages as long as the least of them                          ``pipeline.lower_bound_s``
     one round of forwards, every forward message of all micro-batches over the busiest link one by one, and the
     backward of the last of them through all stages; or the mirror image             ``_carried_s``
     one micro-batch through all stages, with all that it waits for   ``Waits.passed_s``
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats
from scaleacross.cost_models.compute import ATTENTION_BACKWARD_RATIO
from scaleacross.cost_models.early_gradients import BOTH_WAYS, early_backwards
from scaleacross.cost_models.messages import Boundary
from scaleacross.cost_models.overlap import computation_s
from scaleacross.cost_models.pipeline.closed_form import lower_bound_s
from scaleacross.cost_models.pipeline.delay import BoundaryDelays
from scaleacross.cost_models.pipeline.timed_bounds import CLOSED, SPLIT, WHOLE, among, folded
from scaleacross.cost_models.traffic import Volumes
from scaleacross.spec.parallelism import SCHEDULE_NAMES

Passes = tuple[Floats, Floats]
"""Seconds of a forward and of a backward pass of one micro-batch, (n,) each."""


class Waits(NamedTuple):
    """Lower bounds on what any pipeline of a candidate waits for one axis's collectives or messages, seconds, (n,)
    each.

    Attributes:
        waited_s: on the path of the busiest rank.
        early_s: the part of ``waited_s`` before any stage has its gradients.
        passed_s: beyond ``computation_s`` on the path of one micro-batch through all stages. For messages it is the
            whole path, negative where that is short; for other axes it is their part of the path.
        alone_s: for messages, what pipelines take beyond ``computation_s`` where nothing else waits, 0 or more; else
            None.
    """

    waited_s: Floats
    early_s: Floats
    passed_s: Floats
    alone_s: Floats | None = None


def _waits(candidates: Candidates, rank: Passes, ahead: Passes, every: Passes) -> Waits:
    """``Waits`` from the passes of one micro-batch on the busiest rank, on the stages before it, and on all stages."""
    drained = np.where(among(candidates.schedule, WHOLE), ahead[1], 0.0)
    return Waits(
        candidates.num_micro_batches * (rank[0] + rank[1]) + ahead[0] + drained,
        candidates.num_micro_batches * rank[0] + early_backwards(candidates) * rank[1] + ahead[0],
        every[0] + every[1],
    )


def tp_waits(volumes: Volumes, gather_s: Floats) -> Waits:
    """Waits for exposed gathers and scatters over tp; ``gather_s`` is half the time of a gather with its scatter."""
    work, pair = volumes.work, 2 * gather_s
    return _waits(
        volumes.candidates,
        _tp_waits_s(volumes, pair, work.tp_forward, work.tp_gathers, work.weight_s),
        _tp_waits_s(volumes, pair, work.ahead_tp_forward, work.ahead_tp_gathers, np.full_like(pair, np.inf)),
        _tp_waits_s(volumes, pair, work.every_tp_forward, work.every_tp_gathers, work.every_weight_s),
    )


def _tp_waits_s(volumes: Volumes, pair: Floats, forward: Floats, gathers: Floats, weight_s: Floats) -> Passes:
    """Lower bounds on forward and backward waits of chunks with ``forward`` gathers in the forward pass and ``gathers``
    gathers and scatters in both passes.

    A chunk overlaps with the larger of two shares: ``tp_fraction`` of its backward pairs, or its reductions concurrent
    with weight gradients. Passes that run twice have 2 backward pairs for each forward pair; ends and other layers have
    one. The bound assumes the larger overlapped share of either kind.
    """
    overlap, contention, back = volumes.job.overlap, volumes.work.contention_fraction, gathers / 2 - forward
    share = overlap.tp_fraction
    hidden = share * back * pair
    if overlap.tp_reduce:
        overlapped = (1 - contention) * (1.0 if volumes.all_reduced else 0.5)
        # backward pairs beyond one per forward pair belong to layers that run their forward pass again
        twice = back - forward
        most = (np.maximum(2 * share, overlapped) * twice + np.maximum(share, overlapped) * (forward - twice)) * pair
        most = np.minimum(most, hidden + (1 - contention) * 0.5 * weight_s)
        hidden = np.where(among(volumes.candidates.schedule, SPLIT), hidden, most)
    return (1 - share) * forward * pair, back * pair - hidden


def cp_waits(volumes: Volumes, gather_s: Floats, both_s: Floats, heads_s: Floats | None) -> Waits:
    """Waits for keys and values beyond the attention of the same layers. ``both_s`` is the time of a gather and a
    scatter, ``heads_s`` that of an all-to-all of heads; every pass waits for two of these."""
    work = volumes.work

    def waits_s(layers: Floats, attention_s: Floats) -> Passes:
        return cp_waits_s(volumes, gather_s, both_s, heads_s, layers, attention_s, volumes.keys_again)

    return _waits(
        volumes.candidates,
        waits_s(work.layers, work.attention_s),
        waits_s(work.ahead_layers, work.ahead_attention_s),
        waits_s(work.every_layers, work.every_attention_s),
    )


def cp_waits_s(
    volumes: Volumes,
    gather_s: Floats,
    both_s: Floats,
    heads_s: Floats | None,
    layers: Floats,
    attention_s: Floats,
    again: Floats,
) -> tuple[Floats, Floats]:
    """Seconds that one micro-batch waits over cp, forward and backward, in layers with so much attention; arrays alike.

    Keys and values travel concurrently with attention; all-to-alls of heads, ``heads_s`` each, do not.

    Args:
        again: share of the forward pass's exchanges that the backward pass repeats.
    """
    swapped_s = 0.0 if heads_s is None else 2 * heads_s
    hiding = volumes.overlaps_attention * attention_s
    forward = np.maximum(0.0, gather_s * layers - hiding) + swapped_s * layers
    back = np.maximum(0.0, both_s * layers - ATTENTION_BACKWARD_RATIO * hiding) + swapped_s * layers
    return forward, back + again * forward


def expert_waits_s(
    volumes: Volumes, exchange_s: Floats, hidden_s: Floats, again: Floats, shared: Passes, layers: Floats, own: Passes
) -> tuple[Passes, Passes]:
    """Seconds that one micro-batch waits for all-to-alls of ``layers`` expert layers; seconds overlapped; arrays alike.

    All-to-alls overlap with the ``shared`` experts of their layer. A stated share also overlaps with another
    micro-batch, as far as its computation ``own`` is long enough.

    Args:
        again: share of the forward pass's exchanges that the backward pass repeats.
    """
    forward, back = (layers * np.maximum(0.0, 2 * exchange_s - each) for each in shared)
    overlapped = 2 * volumes.job.experts.overlap_fraction * layers * hidden_s
    hidden = np.minimum(overlapped, own[0]), np.minimum((1 + again) * overlapped, own[1])
    return (forward - hidden[0], back + again * forward - hidden[1]), hidden


def hidden_exchange_s(volumes: Volumes, exchange_s: Floats, held_s: Floats) -> Floats:
    """Seconds by which overlapping one all-to-all with computation shortens its wait, (n,).

    That is its time minus what concurrent products lose to it: ``held_s`` of its seconds hold multiprocessors
    (``network.drivers``). T seconds concurrent with C seconds of computation that loses the share h of its speed take
    the longer of T and C + h·T.
    """
    work = volumes.work
    hidden: Floats = exchange_s - work.contention_fraction * (1 - work.elementwise_fraction) * held_s
    return hidden


def expert_waits(volumes: Volumes, exchange_s: Floats, hidden_s: Floats) -> Waits:
    """Waits for all-to-alls that do not overlap with other micro-batches: dispatch and combine of every expert layer.

    The last backward pass overlaps with what its input gradients can hide, whole or not (``pipeline.placed``). So where
    the backward is whole, weight gradients may overlap with some more in every micro-batch.

    Args:
        exchange_s: seconds of one dispatch or combine.
        hidden_s: ``hidden_exchange_s`` of it.
    """
    candidates, work, share = volumes.candidates, volumes.work, volumes.job.experts.overlap_fraction
    m, again, ways = candidates.num_micro_batches, volumes.tokens_again, 2 + 2 * volumes.tokens_again
    shared, nothing = (work.shared_s, work.shared_backward_s), np.zeros(1)
    law = partial(expert_waits_s, volumes, exchange_s, hidden_s, again, shared)
    (forward, back), _ = law(np.ones(1), (nothing, nothing))
    overlapped = share * work.moe_layers * hidden_s
    hidden = np.minimum(overlapped * (2 + ways), work.forward_s + work.backward_s)
    weights = np.where(among(candidates.schedule, SPLIT), 0.0, np.minimum(overlapped * ways, work.weight_s))
    drained = np.where(among(candidates.schedule, WHOLE), back - share * ways * hidden_s, 0.0)
    each = work.moe_layers * (forward + back)
    waited = m * each - (m - 1) * hidden - weights + work.ahead_moe_layers * (forward + drained)
    (ahead, behind), _ = law(work.moe_layers, (work.forward_s, work.backward_s))
    passed, _ = law(work.every_moe_layers, (work.every_forward_s, work.every_backward_s))
    return Waits(waited, m * ahead + early_backwards(candidates) * behind, passed[0] + passed[1])


def message_waits(volumes: Volumes, message: Boundary) -> Waits:
    """Waits for pipeline messages beyond computation."""
    delays, whole = boundary_delays(message), among(volumes.candidates.schedule, WHOLE)
    first = _first_delay_s(volumes, message, delays)
    waited = np.where(whole, 2.0, 1.0) * first + blocked_s(volumes, np.asarray(delays.inner_s))
    return Waits(waited, first, _passed_s(volumes, delays), _alone_s(volumes, delays))


def _first_delay_s(volumes: Volumes, message: Boundary, delays: BoundaryDelays) -> Floats:
    """Delay of the messages by which the first micro-batch reaches the busiest rank, (n,), at least."""
    candidates, work = volumes.candidates, volumes.work
    boundaries = np.maximum(0.0, candidates.pp - 1 - work.ranks_after)
    # the others may all lie after the rank
    crossing = np.clip(message.num_crossing - work.ranks_after, 0.0, boundaries)
    return np.asarray((boundaries - crossing) * np.asarray(delays.inner_s) + crossing * np.asarray(delays.slow_s))


def _alone_s(volumes: Volumes, delays: BoundaryDelays) -> Floats:
    """``Waits.alone_s``, (n,)."""
    alone = np.zeros(len(volumes.candidates))
    rows = np.flatnonzero((volumes.candidates.pp > 1) & (np.asarray(delays.slow_s) > 0))
    if len(rows):
        some, between = volumes.take(rows), delays.take(rows)
        longest = np.maximum(_alike_s(some, between), _carried_s(some, between))
        alone[rows] = np.maximum(0.0, longest - computation_s(some.candidates, some.work))
    return alone


def longest_s(waited_s: Floats, alone_s: Floats | None) -> Floats:
    """Lower bound on what a pipeline takes beyond ``computation_s``: waits of all axes added up, or its messages
    only."""
    return waited_s if alone_s is None else np.maximum(waited_s, alone_s)


def _carried_s(volumes: Volumes, delays: BoundaryDelays) -> Floats:
    """Seconds in which the busiest link carries all messages of one direction, with what comes before and after, (n,).

    Forwards of the first chunk precede the first message. The last message is followed by forwards of the last chunk at
    least, and by the backward of its micro-batch through all stages. That holds where the backward is whole; otherwise
    the messages alone count.

    Messages back to the first rank may pass the link, too. Then the forward of a first chunk on all ranks precedes the
    first message up. The backward of a first chunk follows the last message down, where that is whole.
    """
    candidates, work = volumes.candidates, volumes.work
    m, v, whole = candidates.num_micro_batches, candidates.num_chunks, among(candidates.schedule, WHOLE)
    across, once = delays.total_s(candidates.pp), np.asarray(delays.occupancy_s)
    carried = m * v * once
    passes = np.maximum(work.round_forward_s + work.every_backward_s, work.round_backward_s + work.every_forward_s)
    delayed = (1 + v) * across - once + (v - 1) * np.asarray(delays.loop_s)
    one_way = carried + np.where(whole, passes + delayed, 0.0)
    every = messages_one_way(volumes, np.asarray(delays.back))
    ends = np.maximum(work.round_forward_s, np.where(whole, work.round_backward_s, 0.0)) + across
    both = m * every * once + ends + np.asarray(delays.slow_s) - once
    return np.asarray(np.where(every > v, np.maximum(one_way, both), one_way))


def _passed_s(volumes: Volumes, delays: BoundaryDelays) -> Floats:
    """Seconds beyond ``computation_s`` in which one micro-batch passes all stages and back, with its messages, (n,).

    The first forward pass of the last stage follows that of a micro-batch through all stages before it. Then this stage
    runs all micro-batches. Its last backward pass precedes that of the same micro-batch through all stages before it:

        step ≥ Σ_s (F+B+waits)_s + (m − 1)·(F+B)_last + delays  F + B without weight gradients where backwards are split

    The path is the sum with ``Waits.passed_s`` of all other axes.
    """
    candidates, work = volumes.candidates, volumes.work
    m, v, whole = candidates.num_micro_batches, candidates.num_chunks, among(candidates.schedule, WHOLE)
    twice = candidates.schedule == BOTH_WAYS  # its chunks are two copies of the model
    every = work.every_forward_s + work.every_backward_s - np.where(whole, 0.0, work.every_weight_s)
    last = (work.least_forward_s + np.where(whole, work.least_backward_s, 0.0)) / v
    path = every + np.where(twice, 0.0, (m - 1) * last) + 2 * way_s(candidates, delays)
    return np.asarray(path - computation_s(candidates, work))


def way_s(candidates: Candidates, delays: BoundaryDelays) -> Floats:
    """Delays of the messages with which one micro-batch passes all stages, one way, s, (n,)."""
    v = np.where(candidates.schedule == BOTH_WAYS, 1, candidates.num_chunks)
    loops = np.where(folded(candidates.schedule), 0, v - 1) * np.asarray(delays.loop_s)
    return np.where(candidates.pp > 1, v * delays.total_s(candidates.pp) + loops, 0.0)


def boundary_delays(message: Boundary) -> BoundaryDelays:
    """Delays between neighbouring pipeline ranks, the same as ``messages.boundary_times`` computes."""
    near = message.near_latency_s + message.near_occupancy_s
    crossing = message.crossing_latency_s + message.crossing_occupancy_s
    crosses = message.num_crossing > 0
    slow = np.where(crosses, np.maximum(near, crossing), near)
    return BoundaryDelays(
        inner_s=near,
        slow_s=slow,
        num_slow=message.num_crossing.astype(np.int64),
        slow_tail=message.tail.astype(np.int64),
        slow_spacing=message.spacing.astype(np.int64),
        loop_s=slow,
        occupancy_s=np.where(crosses, message.busiest_s, message.near_occupancy_s),
        back=np.where(crosses, message.back, 0.0),
    )


def messages_one_way(volumes: Volumes, back: Floats) -> Floats:
    """Messages of a micro-batch that pass a slow boundary's link in one direction, (n,).

    There is one for every chunk, but one in all for ``DualPipe``, whose chunks are copies of the model. Where the way
    ``back`` to rank 0 passes the link, too, there is another one for every chunk but the first. Forwards over the
    boundary and backwards from rank 0 to rank p−1 go down the pipeline. Where a sender waits until its message has
    arrived, the two do not share the link.
    """
    candidates = volumes.candidates
    twice = candidates.schedule == BOTH_WAYS  # its chunks are two copies of the model
    loops = (back > 0) & ~folded(candidates.schedule) & ~twice & volumes.job.overlap.messages(chunked=True)
    v = np.where(twice, 1, candidates.num_chunks)
    return np.asarray(v + np.where(loops, v - 1, 0), dtype=np.float64)


def _alike_s(volumes: Volumes, delays: BoundaryDelays) -> Floats:
    """Seconds of pipelines without waits whose stages are all as short as the shortest, (n,); 0 without closed form."""
    candidates, work = volumes.candidates, volumes.work
    out = np.zeros(len(candidates))
    for name in CLOSED:
        rows = np.flatnonzero(candidates.schedule == SCHEDULE_NAMES.index(name))
        if len(rows):
            shape = candidates.pp[rows], candidates.num_micro_batches[rows], candidates.num_chunks[rows]
            least = work.least_forward_s[rows], work.least_backward_s[rows]
            out[rows] = lower_bound_s(name, *shape, *least, delays.take(rows))
    return out


def blocked_s(volumes: Volumes, near_s: Floats) -> Floats:
    """Lower bound on seconds for which ranks stand still while messages travel, (n,); 0 where the job overlaps the two.

    Otherwise a sender waits until its message has arrived. The last rank of a loop waits for one message in each chunk
    and micro-batch. The last of these is left out, because it also drains the pipeline.
    """
    candidates = volumes.candidates
    overlap, chunked = volumes.job.overlap, candidates.num_chunks > 1
    travel = np.where(chunked, overlap.messages(chunked=True), overlap.messages(chunked=False))
    waiting = (candidates.pp > 1) & ~travel
    return np.where(waiting, (candidates.num_micro_batches * candidates.num_chunks - 1) * near_s, 0.0)
