"""Seconds of any pipeline schedule, action by action, over links with latency and limited bandwidth.

Model. A rank runs its actions one at a time in the schedule's order. A forward (backward) that ends at time t on
virtual stage x sends one message to stage x+1 (x−1). The message waits until the directed link between the two ranks is
free, occupies it for ``occupancy_s`` (= bytes / bandwidth), and arrives ``latency_s`` after that. All chunks share the
link from one rank to the next, and messages leave in the order in which they are produced. Receives are posted ahead:
computation never waits for a send. A boundary between two stages of the same rank adds nothing.

Two options refine links: ``link_s`` has links that the collectives of all ranks share (``pipeline.shared_links``), and
with ``crossing`` all messages between two buildings in one direction queue on one link. Speed: about nine million
actions per second, a tenth of that where the schedule is not compiled yet (one core).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.pipeline.compiled import KINDS, CompiledSchedule, compile_schedule
from scaleacross.cost_models.pipeline.own_traffic import OwnTraffic, run_with_traffic
from scaleacross.cost_models.pipeline.shared_links import NO_WAY, run_sharing, ways
from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import Kind, PipelineSchedule

_F, _B, _I, _W = (KINDS[kind] for kind in (Kind.F, Kind.B, Kind.I, Kind.W))


@dataclass(frozen=True)
class PipelineTimes:
    """When everything happens, seconds from the start of the step.

    Attributes:
        total_s: end of the last action of any rank.
        start_s, finish_s: [rank] -> array over the actions of that rank in schedule order.
        arrival_s: arrival of each action's message at its receiver, likewise; the action's end if it sends none.
        own_s: end of every rank's ``OwnTraffic``, (p,); 0 without.
    """

    total_s: float
    start_s: tuple[Floats, ...]
    finish_s: tuple[Floats, ...]
    arrival_s: tuple[Floats, ...]
    own_s: Floats | float = 0.0


def time_schedule(
    schedule: PipelineSchedule | CompiledSchedule,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    latency_s: ArrayLike,
    occupancy_s: ArrayLike,
    *,
    weight_s: ArrayLike | None = None,
    input_s: ArrayLike | None = None,
    outer_s: ArrayLike = 0.0,
    link_s: Floats | None = None,
    crossing: Bools | None = None,
    own_traffic: OwnTraffic | None = None,
) -> PipelineTimes:
    """Start and finish of every action.

    Args:
        schedule: the schedule, or its compiled form, which callers keep that time it repeatedly.
        forward_s: seconds of F per virtual stage, shape (p·v,) or scalar.
        backward_s: seconds of the full backward B, same shapes. An I takes ``input_s``, or ``backward_s - weight_s`` if
            None.
        latency_s: seconds that a message travels after its last byte left, per boundary between consecutive virtual
            stages (entry x between stages x and x+1), shape (p·v−1,) or scalar. Every p-th entry is the loop-back from
            rank p−1 to rank 0, or unused where the placement keeps both stages on one rank. Shape (2, p·v−1) has
            forward messages in row 0 and backward ones in row 1.
        occupancy_s: seconds that a message occupies the directed link, same shapes.
        weight_s: seconds of W per virtual stage; needed when the schedule splits its backward.
        outer_s: further seconds of the forward of the first (row 0) and the backward of the last micro-batch (row 1),
            which overlap with no other micro-batch, shape (2, p·v) or scalar.
        link_s: seconds for which F, B, I and W of every virtual stage keep links busy that all ranks share, (4, p·v);
            None: no links are shared.
        crossing: whether messages cross buildings, per boundary between virtual stages, (p·v−1,); None: none does.
        own_traffic: traffic over links of each rank's own, which slows its actions; only without ``link_s``.

    Raises:
        InputError: wrong shape, a negative or non-finite time, or a split backward without ``weight_s``.
    """
    compiled = schedule if isinstance(schedule, CompiledSchedule) else compile_schedule(schedule)
    num_stages = compiled.schedule.num_virtual_stages
    duration = np.zeros((len(KINDS), num_stages))
    duration[_F] = _times("forward_s", forward_s, num_stages)
    duration[_B] = _times("backward_s", backward_s, num_stages)
    if weight_s is not None:
        duration[_W] = _times("weight_s", weight_s, num_stages)
        alone = ("backward_s - weight_s", duration[_B] - duration[_W]) if input_s is None else ("input_s", input_s)
        duration[_I] = _times(*alone, num_stages)
    elif (compiled.kind >= _I).any():
        raise InputError(
            f"{compiled.schedule.name} splits its backward: give weight_s, the seconds of the weight gradient"
        )
    # one entry more, for actions that send nothing or stay on their rank
    latency = np.pad(_times("latency_s", latency_s, 2, num_stages - 1), ((0, 0), (0, 1)))
    occupancy = np.pad(_times("occupancy_s", occupancy_s, 2, num_stages - 1), ((0, 0), (0, 1)))
    seconds = duration[compiled.kind, compiled.stage] + _outermost(compiled, _times("outer_s", outer_s, 2, num_stages))
    p, message = compiled.schedule.num_ranks, ((compiled.kind != _F).astype(np.int64), compiled.boundary)
    travel, busy = latency[message], occupancy[message]
    own_s = np.zeros(())
    if own_traffic is not None:
        start, finish, arrival, own_s = run_with_traffic(compiled, seconds, travel, busy, own_traffic)
    elif link_s is None:
        start, arrival = _run(compiled, seconds, travel, busy)
        if crossing is not None:
            start, arrival = _queued(compiled, seconds, travel, busy, ways(compiled, crossing), start, arrival)
        finish = start + seconds
    else:
        shared = link_s[compiled.kind, compiled.stage]
        start, finish, arrival = run_sharing(compiled, seconds, shared, travel, busy, crossing)
    by_rank = np.argsort(compiled.rank, kind="stable")
    ends = np.cumsum(np.bincount(compiled.rank, minlength=p))[:-1]
    return PipelineTimes(
        total_s=float(finish.max()),
        start_s=tuple(np.split(start[by_rank], ends)),
        finish_s=tuple(np.split(finish[by_rank], ends)),
        arrival_s=tuple(np.split(arrival[by_rank], ends)),
        own_s=own_s,
    )


def _outermost(compiled: CompiledSchedule, outer_s: Floats) -> Floats:
    """Further seconds of the first forward and the last backward of every stage, per action."""
    first = (compiled.kind == _F) & (compiled.microbatch == 0)
    last = np.isin(compiled.kind, (_B, _I)) & (compiled.microbatch == compiled.schedule.num_microbatches - 1)
    longer: Floats = first * outer_s[0, compiled.stage] + last * outer_s[1, compiled.stage]
    return longer


def _run(compiled: CompiledSchedule, duration: Floats, latency: Floats, occupancy: Floats) -> tuple[Floats, Floats]:
    """Start of every action and arrival of its message, in the compiled order."""
    from scaleacross.cost_models.pipeline import action_loop as loop  # late: it brings the compiler

    columns = compiled.rank, compiled.needs, compiled.fills, compiled.link, duration, occupancy, latency
    return loop.time_actions(*columns, compiled.schedule.num_ranks, compiled.num_slots)


def _queued(
    compiled: CompiledSchedule,
    duration: Floats,
    latency: Floats,
    occupancy: Floats,
    way: Ints,
    start: Floats,
    arrival: Floats,
) -> tuple[Floats, Floats]:
    """``_run`` with messages of all ranks in one queue per way.

    If no two messages are on a way at the same moment, ``start`` and ``arrival`` are returned unchanged.
    """
    from scaleacross.cost_models.pipeline import action_loop as loop  # late: it brings the compiler

    sent = np.flatnonzero((way != NO_WAY) & (occupancy > 0))
    ended = arrival[sent] - latency[sent]
    order = np.lexsort((ended, way[sent]))
    begins, ended, on = (ended - occupancy[sent])[order], ended[order], way[sent][order]
    if not ((begins[1:] < ended[:-1]) & (on[1:] == on[:-1])).any():
        return start, arrival
    ranks = compiled.schedule.num_ranks
    # ways get numbers after those of the links between ranks
    lane = np.where(way != NO_WAY, ranks * ranks + way, compiled.link)
    columns = compiled.rank, compiled.needs, compiled.fills, lane, duration, occupancy, latency
    return loop.time_queued(*columns, *compiled.by_rank, int(lane.max()) + 1, compiled.num_slots)


def _times(name: str, values: ArrayLike, *shape: int) -> Floats:
    """``values`` broadcast to ``shape``, finite and not negative."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in ((), shape, shape[1:] or shape):
        raise InputError(f"{name} has shape {array.shape}, expected a scalar or {shape[1:] or shape}")
    if not np.isfinite(array).all() or (array < 0).any():
        raise InputError(
            f"{name} must be finite and not negative, got {array[~(np.isfinite(array) & (array >= 0))].ravel()[0]}"
        )
    return np.broadcast_to(array, shape)
