"""Delay penalties of candidates: bounds in arrays, and exact ones of placed candidates, timed wherever no closed form is exact.

Closed forms are exact for GPipe, for 1F1B with at most one far boundary, and for Interleaved1F1B whose delays all stay
below half of a chunk's forward + backward; in either case as long as no message waits for its link (``pipeline``). All other
schedules, and orders of a plan's own, are timed; what that finds beyond ``overlap.rounds`` without any delay is bubble.

Where a rank holds several chunks they are not alike: layers may not divide over the virtual stages, and the last one has the
head. Ranks wait for the longest chunk in every round, so such pipelines are timed, without delays, with each stage's own share of
layers, and what that takes longer than equal chunks is bubble too. (Replays of plans with chunks of 1 or 2 layers take 10 %
longer than the price of equal chunks.)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from scaleacross.cost_models.messages import Boundary
from scaleacross.cost_models.overlap import rounds
from scaleacross.cost_models.pipeline import BoundaryDelays, delay_penalty_s, zero_delay_time_s
from scaleacross.cost_models.pipeline_exact import exact_time_s
from scaleacross.cost_models.pipeline_timed import CLOSED, bound_s
from scaleacross.cost_models.settings import Bools, Floats, Settings
from scaleacross.cost_models.stages import equal_stages
from scaleacross.cost_models.work import Work
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.parallelism import SCHEDULE_NAMES, ScheduleName

Order = tuple[str, ...] | None


def bound_penalty_s(settings: Settings, work: Work, delays: BoundaryDelays) -> Floats:
    """Seconds that delays add at least to ``overlap.rounds`` of computation, (n,); 0 without a pipeline.

    All fields of ``delays`` are arrays of shape (n,). Schedules are priced one after another, each on its own rows.
    """
    penalty = np.zeros(len(settings))
    for code, name in enumerate(SCHEDULE_NAMES):
        rows = np.flatnonzero((settings.schedule == code) & (settings.pp > 1))
        if len(rows):
            penalty[rows] = _bound_penalty_s(name, settings.take(rows), work.take(rows), delays.take(rows))
    return penalty


def _bound_penalty_s(name: ScheduleName, settings: Settings, work: Work, delays: BoundaryDelays) -> Floats:
    shape = (name, settings.pp, settings.num_micro_batches, settings.num_chunks, work.forward_s, work.backward_s)
    if name in CLOSED:
        return delay_penalty_s(*shape, delays)
    return bound_s(*shape, work.weight_s, delays) - rounds(settings, work) * (work.forward_s + work.backward_s)


def timed_penalty_s(
    settings: Settings,
    work: Work,
    message: Boundary,
    penalty_s: Floats,
    order: Order = None,
    num_layers: int | None = None,
) -> tuple[Floats, Floats]:
    """``penalty_s`` with the rows replaced in which it is only a bound, and the bubble beyond ``overlap.rounds``, each (n,).

    Args:
        order: the order of the single row's own (``PipelineChoice.order``).
        num_layers: of the model, spread equally where ``work.layer_share`` says so; None: chunks are taken to be alike.

    Raises:
        InputError: a pipeline is too long to be timed (``pipeline_exact.MAX_ACTIONS``).
    """
    out, bubble = np.array(penalty_s, dtype=np.float64), np.zeros(len(settings))
    computed = rounds(settings, work) * (work.forward_s + work.backward_s)
    here = (settings.pp > 1) & (_needs_timing(settings, work, message) | (order is not None))
    for row in np.flatnonzero(here).tolist():
        name, shape, times = _pipeline_of(settings, work, row)
        delays = tuple(float(np.broadcast_to(part, len(settings))[row]) for part in message)
        if name in CLOSED and order is None:
            alone = float(zero_delay_time_s(name, *shape, *times[:2]))
        else:
            alone = _timed(name, shape, times, _NO_DELAYS, order)
            bubble[row] = alone - computed[row]
        out[row] = _timed(name, shape, times, delays, order) - alone
    if num_layers is not None:
        several = (settings.pp > 1) & (settings.num_chunks > 1) & (work.layer_share > 0)
        for row in np.flatnonzero(several).tolist():
            name, shape, times = _pipeline_of(settings, work, row)
            ends = (float(work.layer_share[row]), float(work.head_share[row]))
            bubble[row] += _unevenness_s(name, shape, times, order, stage_shares(name, num_layers, *shape[::2], *ends))
    return out, bubble


def _pipeline_of(
    settings: Settings, work: Work, row: int
) -> tuple[ScheduleName, tuple[int, int, int], tuple[float, ...]]:
    """Schedule, (p, m, v) and seconds of a rank (F, B, W) of one candidate."""
    p, m, v = (int(part[row]) for part in (settings.pp, settings.num_micro_batches, settings.num_chunks))
    times = tuple(float(part[row]) for part in (work.forward_s, work.backward_s, work.weight_s))
    return SCHEDULE_NAMES[int(settings.schedule[row])], (p, m, v), times


def _needs_timing(settings: Settings, work: Work, message: Boundary) -> Bools:
    chunks = settings.num_chunks
    near, far = message.near_latency_s + message.near_occupancy_s, message.far_latency_s + message.far_occupancy_s
    occupancy = np.maximum(message.near_occupancy_s, message.far_occupancy_s)
    queues = occupancy * chunks > np.minimum(work.forward_s, work.backward_s)
    interleaved = settings.schedule == SCHEDULE_NAMES.index("Interleaved1F1B")
    one_f_one_b = settings.schedule == SCHEDULE_NAMES.index("1F1B")
    intolerant = 2 * chunks * np.maximum(near, far) > work.forward_s + work.backward_s
    inexact = (interleaved & (queues | intolerant)) | (one_f_one_b & (queues | (message.num_far > 1)))
    needs: Bools = inexact | ~np.isin(settings.schedule_names, CLOSED)
    return needs


_NO_DELAYS: Final = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
"""A ``Boundary`` that costs nothing."""


@lru_cache(maxsize=65536)
def _unevenness_s(
    name: ScheduleName, shape: tuple[int, int, int], times: tuple[float, ...], order: Order, shares: tuple[float, ...]
) -> float:
    """Seconds that chunks which are not alike add to a pipeline without delays."""
    alike = _timed(name, shape, times, _NO_DELAYS, order)
    return max(0.0, _timed(name, shape, times, _NO_DELAYS, order, shares) - alike)


@lru_cache(maxsize=4096)
def stage_shares(
    name: ScheduleName, num_layers: int, pp: int, num_chunks: int, layer_share: float, head_share: float
) -> tuple[float, ...]:
    """Computation of every virtual stage over that of the busiest rank, layers spread as equally as can be."""
    placement = SCHEDULES[name].placement
    split = equal_stages(num_layers, pp, num_chunks, placement)
    places = (locate(placement, pp, stage) for stage in range(pp * num_chunks))
    shares = [split[rank][chunk] * layer_share for rank, chunk in places]
    return (*shares[:-1], shares[-1] + head_share)


@lru_cache(maxsize=65536)
def _timed(
    name: ScheduleName,
    shape: tuple[int, ...],
    rank_times: tuple[float, ...],
    boundary: tuple[float, ...],
    order: Order,
    shares: tuple[float, ...] | None = None,
) -> float:
    """Seconds of a pipeline of p, m, v = ``shape`` with the delays of a ``Boundary``; F, B, W of a rank: ``rank_times``,
    spread over its chunks equally or by the ``shares`` of virtual stages."""
    p, m, v = shape
    spread = np.array(shares) if shares is not None else 1 / v
    forward_s, backward_s, weight_s = (seconds * spread for seconds in rank_times)
    latency, occupancy = boundary_times(p, boundary)
    size = p if v > 1 else p - 1
    delays = (latency[:size], occupancy[:size])
    return exact_time_s(name, p, m, v, forward_s, backward_s, *delays, weight_s=weight_s, order=order)


def boundary_times(pp: int, boundary: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Latency and occupancy between rank r and r+1, the last entry from rank pp−1 back to rank 0, each (pp,)."""
    near_latency, near_occupancy, far_latency, far_occupancy, num_far, tail, spacing = boundary
    far = [pp - 1 - int(tail) - int(spacing) * index for index in range(int(num_far))]
    crosses = np.zeros(pp, dtype=bool)
    crosses[[max(0, position) for position in far]] = True
    crosses[-1] = bool(far)  # the loop-back from the last rank to the first crosses whatever the pipeline crosses
    return np.where(crosses, far_latency, near_latency), np.where(crosses, far_occupancy, near_occupancy)
