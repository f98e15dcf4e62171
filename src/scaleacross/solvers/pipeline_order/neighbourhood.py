"""Large-neighbourhood search: free a part of the order, let CP-SAT find a shorter step, keep the rest.

A neighbourhood is a window of time on some neighbouring ranks. What is not free keeps its order on its rank but may
move in time. Each trial asks for a step that is shorter by a *demand*, which grows with success and shrinks with
failure. A large demand that cannot be met is refused quickly. Small ones would shorten the step tick by tick.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from scaleacross.solvers.pipeline_order.bounds import Windows
from scaleacross.solvers.pipeline_order.climb import Found
from scaleacross.solvers.pipeline_order.greedy import ListScheduler
from scaleacross.solvers.pipeline_order.model import OrderModel
from scaleacross.solvers.until import Until

_TRIAL_S: Final = 2.0
_WINDOW_FRACTIONS: Final = (0.1, 0.2, 0.3)
_RANKS: Final = (2, 4, 8, 10**6)


def search_neighbourhoods(
    scheduler: ListScheduler,
    windows: Windows,
    found: Found,
    lower: int,
    until: Until,
    seed: int,
    on_better: Callable[[int], None] = lambda ticks: None,
) -> Found:
    """Return the best order found from ``found`` when ``until`` ends the search, or early when ``lower`` is reached."""
    rng, streams = random.Random(seed), scheduler.streams
    demand = max(1, (found.ticks - lower) // 4)
    while found.ticks > lower and (left := until.left()) > 0:
        free = _neighbourhood(rng, scheduler, found)
        horizon = max(lower, found.ticks - demand)
        model = OrderModel(streams, windows, lower, horizon, found.starts, free)
        result = model.solve(min(_TRIAL_S, left), rng.randrange(2**30), until.stopped)
        if result.starts is None:
            demand = max(1, demand // 2) if rng.random() < 0.5 else demand
            continue
        found = Found(scheduler.step(result.starts), result.starts)
        on_better(found.ticks)
        demand = max(1, min(2 * demand, (found.ticks - lower) // 2))
    return found


def _neighbourhood(rng: random.Random, scheduler: ListScheduler, found: Found) -> Callable[[int, int], bool]:
    """Return a test for computations in a window of time on neighbouring ranks; few ranks get a longer window."""
    num_ranks = scheduler.streams.problem.num_ranks
    count = min(rng.choice(_RANKS), num_ranks)
    first_rank = rng.randint(0, num_ranks - count)
    width = rng.choice(_WINDOW_FRACTIONS) * (1 + 2 * (num_ranks - count) / num_ranks)
    begin = rng.uniform(-0.3 * width, 1 - 0.7 * width) * found.ticks
    end = begin + width * found.ticks

    def free(stream: int, microbatch: int) -> bool:
        in_ranks = first_rank <= scheduler.rank[stream] < first_rank + count
        return in_ranks and begin <= found.starts[stream][microbatch] <= end

    return free
