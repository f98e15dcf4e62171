"""Exact delay penalties of placed candidates: the schedule is timed wherever no closed form is exact.

Closed forms are exact for GPipe, for 1F1B with at most one far boundary, and for Interleaved1F1B whose delays all stay
below half of a chunk's forward + backward; in either case as long as no message waits for its link (``pipeline``).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from scaleacross.cost_models.collectives import Boundary
from scaleacross.cost_models.pipeline import zero_delay_time_s
from scaleacross.cost_models.pipeline_exact import exact_time_s
from scaleacross.cost_models.settings import Bools, Floats, Settings
from scaleacross.cost_models.work import Work
from scaleacross.spec.parallelism import SCHEDULE_NAMES, ScheduleName


def timed_penalty_s(settings: Settings, work: Work, message: Boundary, penalty_s: Floats) -> Floats:
    """``penalty_s`` with the rows replaced in which the closed form is only a bound, (n,).

    Raises:
        InputError: a pipeline is too long to be timed (``pipeline_exact.MAX_ACTIONS``).
    """
    out = np.array(penalty_s, dtype=np.float64)
    for row in np.flatnonzero(_needs_timing(settings, work, message)):
        out[row] = _timed(
            SCHEDULE_NAMES[int(settings.schedule[row])],
            int(settings.pp[row]),
            int(settings.num_micro_batches[row]),
            int(settings.num_chunks[row]),
            float(work.forward_s[row]),
            float(work.backward_s[row]),
            tuple(float(np.broadcast_to(part, len(settings))[row]) for part in message),
        )
    return out


def _needs_timing(settings: Settings, work: Work, message: Boundary) -> Bools:
    chunks = settings.num_chunks
    near, far = message.near_latency_s + message.near_occupancy_s, message.far_latency_s + message.far_occupancy_s
    occupancy = np.maximum(message.near_occupancy_s, message.far_occupancy_s)
    queues = occupancy * chunks > np.minimum(work.forward_s, work.backward_s)
    interleaved = settings.schedule == SCHEDULE_NAMES.index("Interleaved1F1B")
    one_f_one_b = settings.schedule == SCHEDULE_NAMES.index("1F1B")
    intolerant = 2 * chunks * np.maximum(near, far) > work.forward_s + work.backward_s
    inexact = (interleaved & (queues | intolerant)) | (one_f_one_b & (queues | (message.num_far > 1)))
    needs: Bools = inexact & (settings.pp > 1)
    return needs


@lru_cache(maxsize=65536)
def _timed(
    name: ScheduleName, pp: int, m: int, chunks: int, forward_s: float, backward_s: float, boundary: tuple[float, ...]
) -> float:
    """Seconds that the delays of a ``Boundary`` add to one pipeline."""
    near_latency, near_occupancy, far_latency, far_occupancy, num_far, tail, spacing = boundary
    far = [pp - 1 - int(tail) - int(spacing) * index for index in range(int(num_far))]
    crosses = np.zeros(pp, dtype=bool)
    crosses[[max(0, position) for position in far]] = True
    crosses[-1] = bool(far)  # the loop-back from the last rank to the first crosses whatever the pipeline crosses
    latency, occupancy = np.where(crosses, far_latency, near_latency), np.where(crosses, far_occupancy, near_occupancy)
    size = pp if chunks > 1 else pp - 1
    times = (forward_s / chunks, backward_s / chunks)
    total = exact_time_s(name, pp, m, chunks, *times, latency[:size], occupancy[:size])
    return total - float(zero_delay_time_s(name, pp, m, chunks, forward_s, backward_s))
