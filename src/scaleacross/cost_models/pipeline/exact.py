"""Exact times of one pipeline, for placed decisions: all actions timed, or a beginning that provably repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.cost_models.candidates import Bools, Floats
from scaleacross.cost_models.pipeline.compiled import CompiledSchedule, compile_schedule
from scaleacross.cost_models.pipeline.delay import microbatches_per_round
from scaleacross.cost_models.pipeline.own_traffic import OwnTraffic
from scaleacross.cost_models.pipeline.stage_ends import StageEnds, stage_ends
from scaleacross.cost_models.pipeline.timing import PipelineTimes, time_schedule
from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import SCHEDULES, chosen
from scaleacross.schedules.pipeline.stage_placement import StagePlacement
from scaleacross.spec.parallelism import PipelineChoice, ScheduleName

MAX_ACTIONS = 4_000_000  # actions timed one by one at most, a few seconds
_DIRECT_ACTIONS = 60_000  # up to here timing all of them is quicker than looking for a steady state
_REMEMBERED = 48  # compiled schedules of up to _DIRECT_ACTIONS: a search times the same one with many delays
# larger schedules, of about 200 bytes per action, are remembered up to this size: compiling one takes ten times as long
# as timing it, and a plan that is found is timed again and again
_LARGE_ACTIONS = 500_000
_LARGE_REMEMBERED = 3
_RELATIVE_TOLERANCE = 1e-12  # of the total: starts that differ by less are equal
_MIN_WINDOW = 8  # actions per rank; any action waits only for actions of the last 4 positions


def exact_ends(
    choice: PipelineChoice,
    num_ranks: int,
    num_microbatches: int,
    seconds: Iterable[ArrayLike],
    boundary_latency_s: ArrayLike,
    boundary_occupancy_s: ArrayLike,
    link_s: Floats | None = None,
    crossing: Bools | None = None,
    own_traffic: OwnTraffic | None = None,
) -> StageEnds:
    """When every stage of a schedule begins and ends, exact for ranks and boundaries of any kind.

    All actions are timed one by one; of a long run only the beginning where it provably repeats (``_period``).

    Args:
        seconds: (p·v,) in model order each: forward, whole backward, input gradient alone, weight gradient, and further
            seconds of the first forward and of the last backward (``pipeline.timing.time_schedule``).
        boundary_latency_s, boundary_occupancy_s: per boundary between rank r and r+1, shape (p−1,) or scalar. With v >
            1 the shape is (p,) and the last entry is the loop-back from rank p−1 to rank 0. ``pipeline.timing`` defines
            both.
        link_s, own_traffic: as of ``pipeline.timing.time_schedule``.
        crossing: whether messages cross buildings, per boundary between ranks; None: none does.

    Raises:
        InputError: the schedule refuses the shape, an array has the wrong shape or a negative entry, or the run has
            more than ``MAX_ACTIONS`` actions and does not become periodic.
    """
    forward, backward, alone, weight, first, last = seconds
    shared: dict[str, Any] = {"link_s": link_s, "own_traffic": own_traffic}
    shared["outer_s"] = np.stack([first, last])
    if crossing is not None:
        shape = num_ranks, choice.num_chunks, SCHEDULES[choice.schedule].placement
        shared["crossing"] = virtual_boundaries("crossing", crossing, *shape) > 0
    messages = boundary_latency_s, boundary_occupancy_s
    timed = _timer(choice, num_ranks, forward, backward, *messages, weight_s=weight, input_s=alone, **shared)
    num_timed, skipped_s = _without_repeats(timed, choice, num_ranks, num_microbatches)
    return stage_ends(compiled_schedule(choice, num_ranks, num_timed), timed(num_timed)).after(skipped_s)


def _timer(
    choice: PipelineChoice,
    num_ranks: int,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    latency_s: ArrayLike,
    occupancy_s: ArrayLike,
    **others: Any,
) -> Callable[[int], PipelineTimes]:
    """Function that times a run of a given number of micro-batches with these messages."""
    shape = num_ranks, choice.num_chunks, SCHEDULES[choice.schedule].placement
    latency = virtual_boundaries("boundary_latency_s", latency_s, *shape)
    occupancy = virtual_boundaries("boundary_occupancy_s", occupancy_s, *shape)

    def timed(microbatches: int) -> PipelineTimes:
        compiled = compiled_schedule(choice, num_ranks, microbatches)
        return time_schedule(compiled, forward_s, backward_s, latency, occupancy, **others)

    return timed


def _without_repeats(
    timed: Callable[[int], PipelineTimes], choice: PipelineChoice, p: int, m: int
) -> tuple[int, float]:
    """Micro-batches of a shorter run with the same beginning and end, and the seconds that it leaves out.

    A run is shortened if it is long and provably repeats; else these are m and 0.

    Raises:
        InputError: the run is too long to time and does not provably repeat.
    """
    name, v = choice.schedule, choice.num_chunks
    num_actions = 2 * p * m * v
    if num_actions > _DIRECT_ACTIONS and choice.order is None and name in ("1F1B", "Interleaved1F1B"):
        a_round = int(microbatches_per_round(p, m)) if v > 1 else 1
        beginning = 8 * (a_round if v > 1 else p)  # fewer rounds of R micro-batches are rounds of R too
        while 4 * p * beginning * v <= num_actions:
            if found := _period(timed(beginning), beginning, v, unit=a_round):
                period, period_s = found
                skipped = (m - beginning) // period
                return m - skipped * period, skipped * period_s
            beginning *= 2
    _refuse_long(name, p, m, v)
    return m, 0.0


def _refuse_long(name: ScheduleName, num_ranks: int, num_microbatches: int, num_chunks: int) -> None:
    num_actions = 2 * num_ranks * num_microbatches * num_chunks
    if num_actions > MAX_ACTIONS:
        raise InputError(
            f"{name} with {num_microbatches} micro-batches on {num_ranks} ranks of {num_chunks} chunks has {num_actions:,} "
            f"actions and its first half shows no period; at most {MAX_ACTIONS:,} are timed: use at most "
            f"{MAX_ACTIONS // (2 * num_ranks * num_chunks)} micro-batches"
        )


def compiled_schedule(choice: PipelineChoice, num_ranks: int, num_microbatches: int) -> CompiledSchedule:
    """The compiled schedule of a choice, remembered unless it is huge. Raises InputError as
    ``schedules.pipeline.chosen``."""
    size = 2 * num_ranks * num_microbatches * choice.num_chunks
    made = _small if size <= _DIRECT_ACTIONS else _large if size <= _LARGE_ACTIONS else _compiled
    return made(choice.schedule, choice.num_chunks, choice.order, num_ranks, num_microbatches)


def _compiled(
    name: ScheduleName, num_chunks: int, order: tuple[str, ...] | None, num_ranks: int, num_microbatches: int
) -> CompiledSchedule:
    choice = PipelineChoice(schedule=name, num_chunks=num_chunks, order=order)
    return compile_schedule(chosen(choice, num_ranks, num_microbatches))


_small, _large = lru_cache(_REMEMBERED)(_compiled), lru_cache(_LARGE_REMEMBERED)(_compiled)


def _period(times: PipelineTimes, num_microbatches: int, num_chunks: int, unit: int) -> tuple[int, float] | None:
    """(micro-batches, seconds) of the period in which the schedule provably repeats before it drains, or None.

    ``unit`` micro-batches, 2·v·unit actions per rank, repeat the order of the actions. In the steady part an action
    waits only for actions at the last few indices of any rank. Suppose that over one window of indices, on all ranks,
    every start and arrival is later than one period earlier by the same seconds. Then all later ones do, and so does
    the cool-down.
    """
    when = np.stack([np.stack(times.start_s), np.stack(times.arrival_s)])
    row = 2 * num_chunks * num_microbatches
    ahead = (num_chunks - 1) * unit + 2 * len(times.start_s)  # ≥ forwards of any warm-up
    end, tolerance = row - ahead, _RELATIVE_TOLERANCE * times.total_s
    for repeats in range(1, num_microbatches // unit):
        shift = 2 * num_chunks * unit * repeats
        window = max(shift, _MIN_WINDOW)
        if end - window - shift < ahead:
            return None
        later = when[:, :, end - window : end] - when[:, :, end - window - shift : end - shift]
        if np.ptp(later) <= tolerance:
            return unit * repeats, float(later.mean())
    return None


def virtual_boundaries(
    name: str, values: ArrayLike, num_ranks: int, num_chunks: int, placement: StagePlacement
) -> Floats:
    """Spread ``values`` of boundaries between ranks (as in ``exact_ends``) over the p·v−1 between virtual stages.

    Raises:
        InputError: wrong shape.
    """
    array = np.asarray(values, dtype=np.float64)
    size = num_ranks - 1 if num_chunks == 1 else num_ranks
    if array.shape == ():
        array = np.full(num_ranks, float(array))
    elif array.shape != (size,):
        loop = "" if num_chunks == 1 else f", the last for the loop-back from rank {num_ranks - 1} to rank 0"
        raise InputError(
            f"{name} has shape {array.shape}, expected a scalar or one entry for each of {size} boundaries{loop}"
        )
    elif num_chunks == 1:
        array = np.append(array, 0.0)
    if placement == "v":  # up the ranks the same boundaries in reverse; nothing is sent at the turns
        down = np.append(array[:-1], 0.0)
        up = np.append(array[-2::-1], 0.0)
        return np.concatenate([down if chunk % 2 == 0 else up for chunk in range(num_chunks)])[:-1]
    return np.tile(array, num_chunks)[: num_ranks * num_chunks - 1]
