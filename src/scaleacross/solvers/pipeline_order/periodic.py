"""The steady state: an order that repeats every micro-batch, found once and unrolled for any number of micro-batches.

Computation j of stream k starts at ``offset[k] + j · period``. In one period a rank runs each of its streams once, so
their places modulo the period must not overlap. The same is true of the messages of a link. A micro-batch is held in
memory for the offset between F and W, so at most ⌈that / period⌉ are held at once. The least period is the busiest
rank's or link's work per micro-batch; memory may demand a longer one. The offsets become a rule of the list scheduler,
which adds warm-up and cool-down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ortools.sat.python import cp_model

from scaleacross.solvers.backends.cpsat import timed_solver
from scaleacross.solvers.pipeline_order.greedy import Rule
from scaleacross.solvers.pipeline_order.streams import Streams

_STRETCHES: Final = (1.0, 1.01, 1.03, 1.1, 1.3)
"""Ratios of the periods that are tried to the least one."""


def steady_rule(streams: Streams, time_limit_s: float, seed: int, stopped: Callable[[], bool]) -> Rule | None:
    """Return the rule of the shortest periodic order found, None when there is none within the limits."""
    least = max(max(streams.work) // streams.count, *_link_work(streams).values(), 1)
    for stretch in _STRETCHES:
        if stopped():
            break
        period = round(least * stretch)
        offsets = _solve(streams, period, time_limit_s / len(_STRETCHES), seed, stopped)
        if offsets:
            return Rule(tuple(start / period for start in offsets), (1.0,) * len(offsets))
    return None


def _link_work(streams: Streams) -> dict[tuple[int, int], int]:
    """Return the ticks that the messages of one micro-batch occupy each directed link."""
    work: dict[tuple[int, int], int] = {}
    for arc in streams.arcs:
        if arc.link:
            work[arc.link] = work.get(arc.link, 0) + arc.occupancy
    return work


def _solve(
    streams: Streams, period: int, time_limit_s: float, seed: int, stopped: Callable[[], bool]
) -> list[int] | None:
    """Return the offsets of all streams with the least time of one micro-batch through the pipeline, if any."""
    cp = cp_model.CpModel()
    longest = sum(s.ticks for s in streams.streams) + sum(a.occupancy + a.latency for a in streams.arcs)
    horizon = 2 * longest + period
    start = [cp.new_int_var(0, horizon, "") for _ in streams.streams]
    for row in streams.on_rank:
        _no_overlap_modulo(cp, [(start[k], streams.streams[k].ticks) for k in row], period, horizon)
    on_link: dict[tuple[int, int], list[tuple[Any, int]]] = {}
    for arc in streams.arcs:
        end = start[arc.source] + streams.streams[arc.source].ticks
        if arc.link and arc.occupancy:
            leave = cp.new_int_var(0, horizon, "")
            cp.add(leave >= end)
            on_link.setdefault(arc.link, []).append((leave, arc.occupancy))
            end = leave + arc.occupancy
        cp.add(start[arc.target] >= end + arc.latency)
    for jobs in on_link.values():
        _no_overlap_modulo(cp, jobs, period, horizon)
    for rank, limit in enumerate(streams.limit):
        stages = [x for x in range(streams.problem.num_virtual_stages) if streams.streams[x].rank == rank]
        held = []
        for x in stages:
            last, count = streams.weight(x), cp.new_int_var(0, streams.count, "")
            cp.add(start[last] + streams.streams[last].ticks - start[x] <= count * period)
            held.append(count)
        cp.add(sum(held) <= limit)
    end = cp.new_int_var(0, horizon, "")
    for k, stream in enumerate(streams.streams):
        cp.add(end >= start[k] + stream.ticks)
    cp.minimize(end)
    solver = timed_solver(time_limit_s, seed)
    if solver.solve_within(cp, time_limit_s, stopped=stopped) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return [solver.value(variable) for variable in start]
    return None


def _no_overlap_modulo(cp: Any, jobs: list[tuple[Any, int]], period: int, horizon: int) -> None:
    """Keep jobs that repeat every ``period`` from overlapping, in one period and with those of the next."""
    busy = [(start, ticks) for start, ticks in jobs if ticks]
    if len(busy) < 2:
        return
    intervals = []
    for start, ticks in busy:
        place, turn = cp.new_int_var(0, period - 1, ""), cp.new_int_var(0, horizon // period + 1, "")
        cp.add(start == place + turn * period)
        intervals.append(cp.new_fixed_size_interval_var(place, ticks, ""))
        # the copy one period later catches jobs that run over the end of the period
        intervals.append(cp.new_fixed_size_interval_var(place + period, ticks, ""))
    cp.add_no_overlap(intervals)
