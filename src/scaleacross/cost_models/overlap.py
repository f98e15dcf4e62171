"""Windows of computation, and the exposed part of the communication that overlaps with them.

A window has a length (computation that runs meanwhile) and a granularity. Of n equal pieces of communication at least
one is exposed, because the first gather has no computation before it and the last reduction none after it:

    exposed = max(s / n + (1 − 1/n) · (s − f) · taken, t − window)        (s ≥ t ≥ 0, s ≥ f ≥ 0, n ≥ 1)

s is the sum of all communicators' seconds of communication. t is the time that they take together, which is less where
several run concurrently (``together_s``); still one piece passes them in turn. Overlapped collectives hold
multiprocessors that products need. For each second of a collective, computation falls behind by ``taken`` seconds
(``network.sm_contention``), except for f seconds that hold none (``network.drivers``). What its bytes take of HBM does
not depend on how long they travel: ``step.hbm_lost_s``.

Rules (Megatron-LM's overlap options and PyTorch FSDP's prefetch, as their documentation describes them):

* gradient_reduce  once per step: layers reduce while earlier layers of the last micro-batch run backward; interleaved
                   schedules finish chunk after chunk, so the other chunks' last pp micro-batches overlap with it, too.
                   In torch's pipelines it does not overlap with the last pass (``buckets.hidden_reductions``)
* parameter_gather once per step (optimizer state or gradients sharded): the mirror image at the first forward pass
* shard_forward    every micro-batch (parameters sharded): the next layer is gathered while this one runs
* shard_backward   every micro-batch (gradients sharded): reduction of the last layer and, where the forward pass did
                   not keep them, gather of the next layer

Traffic of every micro-batch is timed pass by pass once a decision is placed (``pipeline.shard_passes``); bounds use
``least_passes``. Windows count computation alone. Traffic of different axes in one window shares the network
(``together_s``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools, Candidates, Floats, Ints
from scaleacross.cost_models.work import Work

WINDOW_NAMES = ("gradient_reduce", "parameter_gather", "shard_forward", "shard_backward")
GRADIENTS: Final = WINDOW_NAMES.index("gradient_reduce")
PARAMETERS: Final = WINDOW_NAMES.index("parameter_gather")
EVERY_PASS: Final = slice(2, 4)
"""The windows of traffic that comes with every micro-batch (sharded parameters or gradients)."""
TRAFFIC_ROWS: Final = 3 * len(WINDOW_NAMES)
"""Rows of traffic: seconds of calls by window, seconds of these in which networks beyond the scale-up domain are
busy, and seconds that hold no multiprocessors. The last are weighted by how much less drivers other than kernels
hold (``network.drivers``)."""
CALLS: Final = slice(len(WINDOW_NAMES))
BUSY: Final = slice(len(WINDOW_NAMES), 2 * len(WINDOW_NAMES))
FREE: Final = slice(2 * len(WINDOW_NAMES), TRAFFIC_ROWS)


class ChunkWindows(NamedTuple):
    """What overlaps with the buckets of single chunks and of all that follow them, (buckets, n) each
    (``split_backward``).

    ``of_pace`` of the seconds of all communicators together and ``of_calls`` of those one after another are exposed
    where they outlast ``length_s``.
    """

    of_pace: Floats
    of_calls: Floats
    length_s: Floats


class Window(NamedTuple):
    """Computation that communication overlaps with, each (n,).

    Attributes:
        length_s: seconds of the computation.
        first_fraction: 1/n, the share of communication that nothing overlaps with.
        contention_fraction: (1 − 1/n) · taken, seconds by which computation falls behind per second of communication.
        in_a_row: least share of the calls that follow one another (``least_together_s``).
        slowed_s: delay of exposed collectives of the layers, per occurrence; 0 in bounds (``overlap_of_layers``).
        later: whether passes may become longer once a policy is chosen (``Candidates.rerun_open``).
        chunks: windows of chunks, for timed schedules that split the backward; empty in bounds and for other schedules.
    """

    length_s: Floats
    first_fraction: Floats
    contention_fraction: Floats
    in_a_row: Floats
    slowed_s: Floats
    later: Bools
    chunks: ChunkWindows

    def take(self, rows: Ints) -> Window:
        """The rows selected by an index array."""
        chunks = self.chunks
        if len(chunks.length_s):
            chunks = ChunkWindows(*(part[:, rows] for part in chunks))
        length, first, taken, in_a_row, slowed = (part[rows] for part in self[:-2])
        return Window(length, first, taken, in_a_row, slowed, self.later[rows], chunks)


NO_CHUNKS: Final = ChunkWindows(*(np.zeros((0, 1)),) * 3)


def rounds(candidates: Candidates, work: Work) -> Floats:
    """Micro-batches that pass the busiest rank in a step, warm-up and cool-down included: m + ``Work.fill_rounds``."""
    total: Floats = candidates.num_micro_batches + work.fill_rounds
    return total


def computation_s(candidates: Candidates, work: Work) -> Floats:
    """Computation of the busiest rank with warm-up and cool-down, seconds, (n,)."""
    seconds: Floats = candidates.num_micro_batches * (work.forward_s + work.backward_s) + work.fill_s
    return seconds


def occurrences(candidates: Candidates, work: Work) -> tuple[Floats, ...]:
    """How often each of WINDOW_NAMES occurs on the critical path of a step, each (n,)."""
    once, every = np.ones(len(candidates)), rounds(candidates, work)
    return once, once, every, every


def windows(candidates: Candidates, work: Work, *, placed: bool = False) -> tuple[Window, ...]:
    """The windows in the order of WINDOW_NAMES.

    Args:
        placed: whether candidates are a placed decision, whose traffic states which seconds hold no multiprocessors.
            Otherwise gathers use the allowed driver that takes least, as bounds need it.
    """
    pieces, chunks = work.buckets, candidates.num_chunks
    # passes of the other chunks' last pp micro-batches, and one of this chunk, in passes of the whole rank
    waiting = np.minimum(candidates.pp, candidates.num_micro_batches) * (chunks - 1) / chunks + 1.0 / chunks
    hidden = waiting - 1 / pieces
    products = 1 - work.elementwise_fraction
    reducing = work.contention_fraction * products
    moving = reducing if placed else work.least_contention_fraction * products
    first, rest = 1 / pieces, 1 - 1 / pieces
    nothing = np.zeros(len(candidates))
    in_a_row = first + rest / num_communicators(candidates, work.expert_parameters > 0)
    lengths = (work.backward_s * hidden, work.forward_s * hidden, work.forward_s, work.backward_s)
    taken = reducing, moving, moving, moving
    later = candidates.rerun_open
    return tuple(
        Window(length, first, rest * held, in_a_row, nothing, later, NO_CHUNKS)
        for length, held in zip(lengths, taken, strict=True)
    )


def num_communicators(candidates: Candidates, experts: Bools | bool) -> Floats:
    """Number of communicators that gradients travel in, at least 1, (n,).

    Args:
        experts: whether the model's experts have a communicator of their own.
    """
    sharded = (candidates.dp_shard > 1) * (1.0 + np.asarray(experts))
    return np.maximum(1.0, sharded + (candidates.cp > 1) + (candidates.dp_replicate > 1))


def together_s(traffic: Sequence[Floats], pieces: Floats) -> Floats:
    """Seconds of all communicators' traffic in each window, (windows, n), from that of each, (TRAFFIC_ROWS, n).

    Every communicator runs its calls one after another, one bucket after another. A bucket passes the communicators in
    turn, so different buckets are in different ones at the same moment. Then the longest communicator sets the pace,
    with one bucket of all others, unless the network that they share is busy for longer:

        max(max_c T_c + (Σ T − max T) / n, Σ_c N_c)       N_c of T_c seconds without latencies, n buckets
    """
    every = np.stack(traffic)
    seconds, busy = every[:, CALLS], every[:, BUSY]
    longest = seconds.max(axis=0)
    whole = seconds.sum(axis=0)
    together: Floats = np.maximum(longest + (whole - longest) / pieces, busy.sum(axis=0))
    return together


def least_together_s(traffic: Floats, in_a_row: Floats) -> Floats:
    """Lower bound on ``together_s`` from the sum over communicators, (TRAFFIC_ROWS, ..., n) -> (windows, ..., n).

    ``in_a_row`` (..., n) of k communicators is 1/k + (1 − 1/k)/n: the longest has 1/k of all seconds or more.
    """
    seconds: Floats = traffic[CALLS] * in_a_row
    return np.maximum(seconds, traffic[BUSY], out=seconds)


def beyond_windows_s(traffic: Sequence[Floats], pieces: Floats, over: Sequence[Window]) -> Floats:
    """Exposed seconds of all communicators' traffic, each (TRAFFIC_ROWS, n), in ``pieces`` buckets, (n,)."""
    every = sum(traffic[1:], start=traffic[0])
    # seconds that hold no multiprocessors take nothing from products: a negative delay cancels them
    freed = [
        one._replace(slowed_s=one.slowed_s - one.contention_fraction * f)
        for one, f in zip(over, every[FREE], strict=True)
    ]
    return exposed_s(together_s(traffic, pieces), every[CALLS], freed)


def exposed_s(in_windows: Floats, calls_s: Floats, over: Sequence[Window]) -> Floats:
    """Exposed seconds of a step in the two windows of traffic that travels once, (..., n).

    Args:
        in_windows: seconds per occurrence of each window, (windows, ..., n): ``together_s``.
        calls_s: the sum over communicators, likewise: a bucket passes all of them, and each holds multiprocessors.
    """
    gradient, parameter, *_ = zip(in_windows, calls_s, over, strict=True)
    exposed = _longer_s(*gradient)
    exposed += _longer_s(*parameter)
    return exposed


def _longer_s(seconds: Floats, calls: Floats, window: Window) -> Floats:
    """Exposed seconds of one occurrence of a window. It works in place, as bounds evaluate millions of candidates."""
    least: Floats = calls * (window.first_fraction + window.contention_fraction)
    least += window.slowed_s
    longer = seconds - window.length_s
    for of_pace, of_calls, length_s in zip(*window.chunks, strict=True):
        longer = np.maximum(longer, of_pace * seconds + of_calls * calls - length_s)
    return np.maximum(least, longer, out=least)
