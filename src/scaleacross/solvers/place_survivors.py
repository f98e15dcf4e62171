"""Step 5 of the joint search (``joint``): place the candidates that bounds left over, the most promising first.

The ratio of step time to estimate of one candidate is expected of all with its pipeline (``beyond``). On an
inter-building link of 1:64 a thousand candidates of 63 stages have estimates below the best step time. Without this
rule they are all placed before the first candidate of 16 stages.

The order decides only when the incumbent is found, and which gap is left where a limit ends the search. Everything with
a bound below the incumbent is placed before the search ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.solvers.beyond import Beyond, Pipeline, pipelines_of
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.search_state import Search

PATIENCE: Final = 128
"""Consecutive candidates without an improvement after which the least bounds go first: a choice.

All that may be faster must be placed anyway, and a limit then leaves a smaller gap.
"""

Block = tuple[Bounded, Placer]


def place_survivors(state: Search, blocks: Sequence[Block], most: int | None = None) -> None:
    """Place candidates: first by corrected estimates, then by corrected bounds, last by bounds alone.

    A figure is corrected by the ratio that other candidates of the same pipeline had.

    Args:
        most: place only so many, by estimates, for an early incumbent; None: all that may be below it.
    """
    rows = [(block, row) for block, (bounded, _) in enumerate(blocks) for row in range(len(bounded.bound_s))]
    estimates = np.concatenate([np.zeros(0), *(bounded.estimate_s for bounded, _ in blocks)])
    bounds = np.concatenate([np.zeros(0), *(bounded.bound_s for bounded, _ in blocks)])
    pipelines = [one for bounded, _ in blocks for one in pipelines_of(bounded.candidates)]
    took: dict[int, float] = {}
    for done, (index, expected_s) in enumerate(islice(in_turn(estimates, pipelines, took), most)):
        if expected_s >= state.target_s or state.out_of_time:
            break
        left: list[float] = [np.inf]
        took[index] = _place(state, blocks, rows[index], left.append)
        # only placements left out by their estimates remain of this candidate, so their bound becomes its own
        bounds[index] = max(bounds[index], min(left))
        if done % 16 == 0:
            state.tell("placing", done, len(rows))
    if most is not None:
        return
    for done, index in enumerate(by_bounds(state, bounds, pipelines, took)):
        if bounds[index] >= state.target_s or state.out_of_time:
            state.drop(bounds[index : index + 1])
            continue
        took[index] = _place(state, blocks, rows[index])
        if done % 16 == 0:
            state.tell("placing", done, len(rows))


def by_bounds(
    state: Search, bounds_s: Floats, pipelines: Sequence[Pipeline], took: Mapping[int, float]
) -> Iterator[int]:
    """Yield every candidate once as ``in_turn`` does; after PATIENCE without an improvement, least bound first."""
    left, best_s, slower = set(range(len(bounds_s))), state.incumbent_s, 0
    for index, _ in in_turn(bounds_s, pipelines, took):
        if slower >= PATIENCE:
            break
        left.remove(index)
        yield index
        slower = 0 if state.incumbent_s < best_s else slower + bool(bounds_s[index] < state.target_s)
        best_s = state.incumbent_s
    yield from sorted(left, key=lambda index: (float(bounds_s[index]), index))


def in_turn(figures_s: Floats, pipelines: Sequence[Pipeline], took: Mapping[int, float]) -> Iterator[tuple[int, float]]:
    """Yield every candidate once with its expected step time in seconds, the least first by what is known then.

    Args:
        figures_s: an estimate or a bound of every candidate.
        pipelines: the pipeline of every candidate.
        took: step times of candidates, or lower bounds on them; it grows meanwhile.
    """
    beyond, seen = Beyond(), 0
    queue = [(float(figure_s), index) for index, figure_s in enumerate(figures_s)]
    heapify(queue)
    while queue:
        for placed in islice(took, seen, None):
            if np.isfinite(figures_s[placed]):  # an infinite bound means that all of it was placed
                beyond.learn(pipelines[placed], float(figures_s[placed]), took[placed])
        seen = len(took)
        believed_s, index = heappop(queue)
        now_s = beyond.of(pipelines[index]) * float(figures_s[index])
        # ratios change while the queue stands, so a figure is brought up to date when it is popped
        if queue and now_s > max(believed_s, queue[0][0]):
            heappush(queue, (now_s, index))
        else:
            yield index, now_s


def _place(
    state: Search, blocks: Sequence[Block], at: tuple[int, int], left: Callable[[float], None] | None = None
) -> float:
    """Place row ``at[1]`` of block ``at[0]``; its step time in seconds, or the incumbent's if it is not faster."""
    bounded, placer = blocks[at[0]]
    placed = state.place(bounded, at[1], placer, below_s=state.incumbent_s, in_time=True, left=left)
    return state.incumbent_s if placed is None else placed.step_s
