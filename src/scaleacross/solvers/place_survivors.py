"""Step 5 of the joint search (``joint``): place the candidates that bounds left over, the most promising first.

What one of them took beyond its estimate is expected of all with its pipeline (``beyond``). On a trunk of 1:64 a thousand
candidates of 63 stages have estimates below the best step time; without this they are all placed before the first of 16 stages.

The order decides nothing but when the incumbent is found, and which gap is left where a limit ends the search: whatever has a
bound below the incumbent is placed before the search ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.solvers.beyond import Beyond, Pipeline, pipelines_of
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.priced import Priced
from scaleacross.solvers.search_state import Search

PATIENCE: Final = 128
"""Candidates placed one after another, none of them faster, after which the next have the least bounds: all must be placed that
may be faster, and a limit then leaves a smaller gap. A choice."""

Block = tuple[Priced, Placer]


def place_survivors(state: Search, blocks: Sequence[Block], most: int | None = None) -> None:
    """By estimates first, then by the bounds of what those left out, each corrected by what others of the same pipeline took;
    last by bounds alone.

    Args:
        most: so many by their estimates, for an early incumbent; None: all that may be below it.
    """
    rows = [(block, row) for block, (priced, _) in enumerate(blocks) for row in range(len(priced.bound_s))]
    estimates = np.concatenate([np.zeros(0), *(priced.estimate_s for priced, _ in blocks)])
    bounds = np.concatenate([np.zeros(0), *(priced.bound_s for priced, _ in blocks)])
    pipelines = [one for priced, _ in blocks for one in pipelines_of(priced.candidates)]
    took: dict[int, float] = {}
    for done, (index, expected_s) in enumerate(islice(in_turn(estimates, pipelines, took), most)):
        if expected_s >= state.target_s or state.out_of_time:
            break
        left: list[float] = [np.inf]
        took[index] = _place(state, blocks, rows[index], left.append)
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
    """Every candidate once: in the order of ``in_turn``, and once PATIENCE of them were not faster, the least bound first."""
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
    """Every candidate once with its expected step time, the least first, as far as that is known by then.

    Args:
        figures_s: an estimate or a bound of every candidate.
        pipelines: the pipeline of every candidate.
        took: what candidates took, or what they do not stay below; it grows meanwhile.
    """
    beyond, seen = Beyond(), 0
    queue = [(float(figure_s), index) for index, figure_s in enumerate(figures_s)]
    heapify(queue)
    while queue:
        for placed in islice(took, seen, None):
            if np.isfinite(figures_s[placed]):  # else all of it was placed, and its bound is one on nothing
                beyond.learn(pipelines[placed], float(figures_s[placed]), took[placed])
        seen = len(took)
        believed_s, index = heappop(queue)
        now_s = beyond.of(pipelines[index]) * float(figures_s[index])
        if queue and now_s > max(believed_s, queue[0][0]):
            heappush(queue, (now_s, index))
        else:
            yield index, now_s


def _place(
    state: Search, blocks: Sequence[Block], at: tuple[int, int], left: Callable[[float], None] | None = None
) -> float:
    """Place row ``at[1]`` of a block: its step time, or that of the incumbent, if it is not below that."""
    priced, placer = blocks[at[0]]
    placed = state.place(priced, at[1], placer, below_s=state.incumbent_s, in_time=True, left=left)
    return state.incumbent_s if placed is None else placed.step_s
