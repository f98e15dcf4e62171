"""Pipeline schedules of runtimes that receive right before they compute.

A receive is posted only when its action is the next of its rank. Then the message sets out when both sides are ready, and the
receiver waits for all of occupancy and latency. A link is never busy when its receiver asks, since the receiver takes one message
after the other.
"""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.pipeline.compiled import compile_schedule
from scaleacross.schedules.pipeline import Kind, PipelineSchedule


def starts_s(
    schedule: PipelineSchedule, seconds: dict[Kind, float], latency_s: np.ndarray, occupancy_s: np.ndarray
) -> tuple[list[list[float]], float]:
    """Starts of every rank's actions, and the end of the last; ``seconds`` per kind, delays per boundary of virtual stages."""
    compiled = compile_schedule(schedule)
    num_slots = 2 * schedule.num_virtual_stages * schedule.num_microbatches + 2
    sent, delay = [0.0] * num_slots, [0.0] * num_slots
    free, starts = [0.0] * schedule.num_ranks, [[] for _ in range(schedule.num_ranks)]
    travel = np.append(latency_s + occupancy_s, 0.0)[compiled.boundary].tolist()
    for at, rank in enumerate(compiled.rank.tolist()):
        need, fill = compiled.needs[at], compiled.fills[at]
        start = max(free[rank], sent[need]) + delay[need]
        action = schedule.actions[rank][len(starts[rank])]
        starts[rank].append(start)
        free[rank] = sent[fill] = start + seconds[action.kind]
        delay[fill] = travel[at]
    return starts, max(free)
