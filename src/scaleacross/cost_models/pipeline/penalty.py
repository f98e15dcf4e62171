"""Delay penalties of candidates: bounds in arrays, and exact ones of placed candidates, timed wherever no closed form is exact.

Closed forms are exact for GPipe, for 1F1B with at most one far boundary, and for Interleaved1F1B whose delays all stay
below half of a chunk's forward + backward; in either case as long as no message waits for its link (``pipeline``). All other
schedules, and orders of a plan's own, are timed; what that finds beyond ``overlap.rounds`` without any delay is bubble.

Here all ranks and chunks of a candidate are taken to be alike; ``pipeline.placed`` times a placed decision as it is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from scaleacross.cost_models.messages import Boundary
from scaleacross.cost_models.overlap import computation_s
from scaleacross.cost_models.pipeline.closed_form import BoundaryDelays, lower_bound_s, zero_delay_time_s
from scaleacross.cost_models.pipeline.exact import exact_time_s
from scaleacross.cost_models.pipeline.timed_bounds import CLOSED, bound_s, idle_share
from scaleacross.cost_models.settings import Bools, Floats, Settings
from scaleacross.cost_models.work import Work
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
    shape = (name, settings.pp, settings.num_micro_batches, settings.num_chunks)
    F, B, W = work.forward_s, work.backward_s, work.weight_s
    if (
        name in CLOSED
    ):  # every rank as fast as the fastest, or the busiest rank with the messages of fill and drain alone
        total = lower_bound_s(*shape, F * work.least_share, B * work.least_share, delays)
        return np.maximum(2 * delays.total_s(settings.pp), total - computation_s(settings, work))
    return bound_s(*shape, F, B, W, delays, work.fill_s, work.whole_share) - computation_s(settings, work)


def timed_penalty_s(
    settings: Settings,
    work: Work,
    message: Boundary,
    penalty_s: Floats,
    order: Order = None,
) -> tuple[Floats, Floats]:
    """``penalty_s`` with the rows replaced in which it is only a bound, and the bubble beyond fill, each (n,).

    All ranks and chunks of a candidate are taken to be alike.

    Args:
        order: the order of the single row's own (``PipelineChoice.order``).

    Raises:
        InputError: a pipeline is too long to be timed (``pipeline.exact.MAX_ACTIONS``).
    """
    out, bubble = np.array(penalty_s, dtype=np.float64), np.zeros(len(settings))
    each = settings.pp - 1, settings.num_chunks, idle_share(settings.schedule_names, work.forward_s, work.backward_s)
    equal = (settings.num_micro_batches + each[0] / each[1] * each[2]) * (work.forward_s + work.backward_s)
    here = (settings.pp > 1) & (_needs_timing(settings, work, message) | (order is not None))
    for row in np.flatnonzero(here).tolist():
        name, shape, times = _pipeline_of(settings, work, row)
        delays = tuple(float(np.broadcast_to(part, len(settings))[row]) for part in message)
        if name in CLOSED and order is None:
            alone = float(zero_delay_time_s(name, *shape, *times[:2]))
        else:
            alone = _timed(name, shape, times, NO_DELAYS, order)
            bubble[row] = max(0.0, alone - float(equal[row]))
        out[row] = _timed(name, shape, times, delays, order) - alone
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
    slowest, occupancy = message.slowest_s, message.busiest_s
    queues = occupancy * chunks > np.minimum(work.forward_s, work.backward_s)
    interleaved = settings.schedule == SCHEDULE_NAMES.index("Interleaved1F1B")
    one_f_one_b = settings.schedule == SCHEDULE_NAMES.index("1F1B")
    intolerant = 2 * chunks * slowest > work.forward_s + work.backward_s
    inexact = (interleaved & (queues | intolerant)) | (
        one_f_one_b & (queues | (message.num_far + message.num_between > 1))
    )
    needs: Bools = inexact | ~np.isin(settings.schedule_names, CLOSED)
    return needs


NO_DELAYS: Final = (*(0.0,) * 8, 1.0, 1.0)
"""A ``Boundary`` that costs nothing."""


@lru_cache(maxsize=65536)
def _timed(
    name: ScheduleName,
    shape: tuple[int, ...],
    rank_times: tuple[float, ...],
    boundary: tuple[float, ...],
    order: Order,
) -> float:
    """Seconds of a pipeline of p, m, v = ``shape`` with the delays of a ``Boundary``; F, B, W of a rank: ``rank_times``."""
    p, m, v = shape
    forward_s, backward_s, weight_s = (seconds / v for seconds in rank_times)
    latency, occupancy = boundary_times(p, boundary)
    size = p if v > 1 else p - 1
    delays = (latency[:size], occupancy[:size])
    return exact_time_s(name, p, m, v, forward_s, backward_s, *delays, weight_s=weight_s, order=order)


def boundary_times(pp: int, boundary: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Latency and occupancy between rank r and r+1, the last entry from rank pp−1 back to rank 0, each (pp,).

    Where a boundary is far for some pipelines and near for others, it is as slow as the slower of both and as busy as the busier.
    Boundaries between buildings of a pipeline that also crosses regions are spread over what is left.
    """
    near, between, far, (num_between, num_far, tail, spacing) = boundary[:2], boundary[2:4], boundary[4:6], boundary[6:]
    kinds = np.array([near, _slower(near, between), _slower(near, far)])
    positions = [pp - 1 - int(tail) - int(spacing) * index for index in range(int(num_far))]
    kind = np.zeros(pp, dtype=np.int64)
    kind[[max(0, position) for position in positions]] = 2
    kind[-1] = 2 * bool(positions)  # the way back from the last rank to the first crosses whatever the pipeline crosses
    left = np.flatnonzero(kind == 0)
    some = min(int(num_between), len(left))
    kind[left[(np.arange(some) * len(left) + len(left) // 2) // max(1, some)]] = 1
    latency, occupancy = kinds[kind].T
    return latency, occupancy


def _slower(near: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, float]:
    """Latency and occupancy of a boundary that is near for some pipelines."""
    occupancy = max(near[1], other[1])
    return max(sum(near), sum(other)) - occupancy, occupancy
