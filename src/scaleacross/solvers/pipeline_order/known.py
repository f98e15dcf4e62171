"""Generated schedules that fit a problem: orders to start from, and to compare an optimised order with."""

from __future__ import annotations

from collections.abc import Iterator

from scaleacross.schedules.pipeline import SCHEDULES, Kind, PipelineSchedule, generate, refusal
from scaleacross.solvers.pipeline_order.streams import Streams


def fitting_schedules(streams: Streams) -> Iterator[PipelineSchedule]:
    """Yield the generated schedules of the problem's shape, placement and kind of backward that fit in memory."""
    problem = streams.problem
    shape = (problem.num_ranks, problem.num_microbatches, problem.num_chunks)
    for name in SCHEDULES:
        if refusal(name, *shape):
            continue
        schedule = generate(name, *shape)
        same_stages = schedule.num_copies == 1 and schedule.num_chunks == problem.num_chunks
        if problem.num_chunks > 1:
            same_stages = same_stages and schedule.placement == problem.placement
        is_split = all(action.kind is not Kind.B for row in schedule.actions for action in row)
        if same_stages and is_split is streams.split and fits(streams, schedule):
            yield schedule


def fits(streams: Streams, schedule: PipelineSchedule) -> bool:
    """Return whether no rank ever holds more activations than its limit."""
    for rank, row in enumerate(schedule.actions):
        held = 0
        for action in row:
            held += (action.kind is Kind.F) - (action.kind is (Kind.W if streams.split else Kind.B))
            if held > streams.limit[rank]:
                return False
    return True
