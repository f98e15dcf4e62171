"""What computation can hide: windows, and the exposed part of the communication that falls into them.

A window has a length (computation that runs meanwhile) and a granularity: of n equal pieces of communication at least
one is exposed, because the first gather has no computation before it and the last reduction none after it:

    exposed = max(t / n + (1 − 1/n) · t · taken, t − window)        (t ≥ 0, n ≥ 1)

because what does run beside computation takes multiprocessors from its products (``network.sm_contention``): for each second of a
collective, computation falls behind by ``taken`` seconds. What its bytes take of HBM does not depend on how long they travel:
``step.hbm_lost_s``.

Rules (Megatron-LM's overlap options and PyTorch FSDP's prefetch, as their documentation describes them):

* gradient_reduce  once per step: layers reduce while earlier layers of the last micro-batch run backward; interleaved
                   schedules finish chunk after chunk, so the other chunks' last pp micro-batches hide it as well
* parameter_gather once per step (optimizer state sharded): the mirror image at the first forward pass
* shard_forward    every micro-batch (parameters sharded): the next layer is gathered while this one runs
* shard_backward   every micro-batch (parameters sharded): gather of the next layer and reduction of the last one

Windows count computation only, never other exposed communication, and hide any axis: traffic of different axes in one
window adds up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.pipeline_timed import WHOLE, among, idle_share
from scaleacross.cost_models.settings import Floats, Settings
from scaleacross.cost_models.work import Work

WINDOW_NAMES = ("gradient_reduce", "parameter_gather", "shard_forward", "shard_backward")


class Window(NamedTuple):
    """Length (s), exposed share at least and how often the window comes on the critical path of a step, each (n,)."""

    length_s: Floats
    least_fraction: Floats
    per_step: Floats


def rounds(settings: Settings, work: Work) -> Floats:
    """Micro-batches that pass the busiest rank in a step, idle ones of fill and drain included: m + (pp − 1)/v · share.

    The share is 1, but less where weight gradients fill the drain (``pipeline_timed.idle_share``).
    """
    bubble: Floats = (settings.pp - 1) / settings.num_chunks
    if not among(settings.schedule, WHOLE).all():
        bubble = bubble * idle_share(settings.schedule_names, work.forward_s, work.backward_s)
    return settings.num_micro_batches + bubble


def occurrences(settings: Settings, work: Work) -> tuple[Floats, ...]:
    """How often each of WINDOW_NAMES comes on the critical path of a step, each (n,)."""
    once, every = np.ones(len(settings)), rounds(settings, work)
    return once, once, every, every


def windows(settings: Settings, work: Work) -> tuple[Window, ...]:
    """The windows in the order of WINDOW_NAMES."""
    pieces, chunks = work.buckets, settings.num_chunks
    waiting = np.minimum(settings.pp, settings.num_micro_batches) * (chunks - 1) / chunks + 1.0 / chunks
    hidden = waiting - 1 / pieces
    taken = work.taken_fraction * (1 - work.elementwise_fraction)
    least = 1 / pieces + (1 - 1 / pieces) * taken
    lengths = (work.backward_s * hidden, work.forward_s * hidden, work.forward_s, work.backward_s)
    return tuple(
        Window(length, least, often) for length, often in zip(lengths, occurrences(settings, work), strict=True)
    )


def exposed_s(time_s: Floats, window: Window) -> Floats:
    """Seconds of a step that ``time_s`` of communication per occurrence of the window leaves exposed."""
    return window.per_step * np.maximum(time_s * window.least_fraction, time_s - window.length_s)
