"""Move layers between chunks of found decisions as long as the step time falls.

The search knows two layouts of a candidate: equal layers, and the one whose slowest rank is fastest. In both the chunks
of a rank are as equal as possible. With several chunks per rank it matters which rank and chunk holds one layer more.
Light chunks that run in warm-up and cool-down shorten both, and ranks of a faster type hold larger chunks. No bound of
the search covers all such layouts. The neighbours of a layout are

one       one layer of the busiest rank in another chunk, of any rank
columns   one layer in another chunk of the same rank, on the first ranks, or on the last ones, all at once: if one rank
          alone does so, its neighbours still set the step

Layers of the best decisions move first by the seconds of their pipelines (``moved_pipeline``), which take a fraction of
the time of a step. The fastest of them then moves layers by its step time. The result is a local optimum: another
layout may be faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from scaleacross.cost_models.axes import network_of
from scaleacross.cost_models.candidates import candidate_of
from scaleacross.cost_models.differing_ranks import Split
from scaleacross.cost_models.layer_seconds import TimedLayers
from scaleacross.cost_models.layout import Layout, layout_of, types_of_ranks
from scaleacross.cost_models.levels import Levels, build_levels
from scaleacross.cost_models.plan_cost import groups_of, micro_batches_of, step_seconds
from scaleacross.cost_models.step import exact_shapes
from scaleacross.errors import InfeasibleError
from scaleacross.solvers.balance import Balancer
from scaleacross.solvers.moved_pipeline import MovedPipeline
from scaleacross.solvers.network_of_plan import Networked, with_network
from scaleacross.solvers.placed_networks import PlacedNetworks
from scaleacross.solvers.search_state import Placed, Search
from scaleacross.spec.recomputation import rerun_period
from scaleacross.verification.figures import TOLERANCE
from scaleacross.workloads.problem import Problem

MOST_TRIED: Final = 200
"""Most neighbours of each kind that a move times; of more, every second, third, …"""
NEAR: Final = 1.2
"""Largest step over the best that gets moves: a choice. They take 17 % off gpt-oss-120b on two types."""
NEAR_AGAIN: Final = 1.02
"""The same ratio for decisions that were placed after the layers of the best had moved: a choice. Before its own moves the
best was no faster than some of these."""
MOST_NEAR: Final = 12
"""Most decisions whose layers are moved, about half a second each: a choice."""
OF_PIPELINE: Final = 1 / 16
"""Time of a pipeline's seconds over that of a step time, 0.6 of 10 ms, on Qwen3-235B over H200 and B200."""
SHARE: Final = 0.9
"""Share of a limit in seconds after which moves end; the rest is for alternatives."""
WORK: Final = 8
"""Step times of all moves over a limit in step times, which the search may have used up: a choice. At a limit of 150,
Llama 8B on 24 and 70B on 64 and 96 H100 get the steps of any number of moves in half the time. With 4 the first is 1.4
% longer."""
PARTS: Final = 8
"""Parts of what is left of such a limit; each kind of neighbours takes at most one of them per move."""
Timer = Callable[[Split, float], float]
"""Seconds of a layout; inf if they are known to reach the second argument."""


@dataclass
class Allowance:
    """How long moves may go on: until ``stopped``, and for ``left`` step times (None: any number)."""

    stopped: Callable[[], bool]
    left: float | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more may be timed."""
        return (self.left is not None and self.left <= 0) or self.stopped()

    def take(self, work: float) -> None:
        """Count something that takes as long as ``work`` step times."""
        self.left = None if self.left is None else self.left - work

    def most(self, work: float) -> int:
        """Return the number of neighbours of a kind that a move may time, ``work`` step times each."""
        return MOST_TRIED if self.left is None else max(1, min(MOST_TRIED, int(self.left / PARTS / work)))


def allowance_of(state: Search) -> Allowance:
    """Return what the limit of a search leaves to moves."""

    def stopped() -> bool:
        late = state.work_limit is None and state.elapsed_s > SHARE * state.time_limit_s
        return late or state.past_limit

    return Allowance(stopped, None if state.work_limit is None else WORK * state.work_limit)


def best_with_moved_layers(
    state: Search,
    best: tuple[Placed, Networked],
    networks: PlacedNetworks,
    allowed: Allowance,
    seen: set[float],
    *,
    alone: bool,
) -> tuple[Placed, Networked]:
    """Return the fastest of the best decisions of a search with layers moved; the best decision comes first.

    Args:
        seen: step times of the decisions whose layers were moved before, which are left out; it grows.
        alone: whether to move only the best decision, whose figure is a score.
    """
    found, again, tried = best, best[0].step_s in seen, 0
    near_s = best[0].step_s * (NEAR_AGAIN if again else NEAR)
    for placed in [best[0], *([] if alone else sorted(state.remembered, key=lambda one: one.step_s))]:
        if allowed.over or tried == MOST_NEAR or placed.step_s > near_s:
            break
        if placed.step_s in seen:
            continue
        seen.add(placed.step_s)
        state.tell("moving layers", tried, MOST_NEAR)
        tried += 1
        try:
            before = best[1] if placed is best[0] else networks.of(placed)
        except InfeasibleError:
            continue
        moved = _moved_by_pipeline(state.problem, before, state.seed, allowed)
        if moved is not None and moved.cost.cost.step_s < found[1].cost.cost.step_s:
            found = placed, moved
    if again and found is best:
        return best
    return found[0], _moved_by_step(state.problem, found[1], state.seed, allowed) or found[1]


def with_moved_layers(problem: Problem, found: Networked, seed: int, allowed: Allowance) -> Networked | None:
    """Return the decision with layers moved and its network; None where no move is allowed or shortens the step.

    Args:
        allowed: asked before every step time; once over, the best result so far is returned.
    """
    first = _moved_by_pipeline(problem, found, seed, allowed)
    return _moved_by_step(problem, first or found, seed, allowed) or first


def _moved_by_step(problem: Problem, found: Networked, seed: int, allowed: Allowance) -> Networked | None:
    return _moved(problem, found, seed, allowed, 1.0, lambda layers: layers.step_s)


def _moved_by_pipeline(problem: Problem, found: Networked, seed: int, allowed: Allowance) -> Networked | None:
    """Return what ``with_moved_layers`` does, with moves chosen by the seconds of the pipeline alone."""
    return _moved(problem, found, seed, allowed, OF_PIPELINE, lambda layers: layers.pipeline_s)


def _moved(
    problem: Problem,
    found: Networked,
    seed: int,
    allowed: Allowance,
    work: float,
    timer: Callable[[_Layers], Timer],
) -> Networked | None:
    """Return the decision with layers moved by ``timer``, whose figures take ``work`` step times each, or None."""
    decision, pipeline = found.decision, found.decision.pipeline
    fixed = problem.job.stages == "equal" or decision.stage_recompute or rerun_period(decision.recompute) > 1
    if fixed or decision.degrees.pp == 1 or pipeline.num_chunks == 1 or pipeline.order is not None:
        return None
    best: Networked | None = None
    while not allowed.over:
        layers = _Layers.of(problem, best or found)
        split = _climbed(layers, timer(layers), allowed, work)
        if split is None:
            break
        moved = with_network(problem, decision.model_copy(update={"layers_per_stage": split}), seed)
        if moved.cost.cost.step_s >= (best or found).cost.cost.step_s * (1 - TOLERANCE):
            break
        best = moved
    return best


@dataclass(frozen=True)
class _Layers:
    """What moves of a decision's layers ask for: seconds by pipeline or by step, and memory."""

    problem: Problem
    found: Networked
    levels: Levels
    layout: Layout
    pipeline: MovedPipeline
    balancer: Balancer

    @classmethod
    def of(cls, problem: Problem, found: Networked) -> _Layers:
        decision, placement = found.decision, found.cost.placement
        levels = build_levels(problem.topology, placement.fill)
        layout = layout_of(problem.topology, decision)
        candidates = candidate_of(decision, problem.job.global_batch_sequences)
        timed = TimedLayers.of(problem.profile, problem.job, levels.accelerators, candidates)
        return cls(problem, found, levels, layout, MovedPipeline.of(found.cost), Balancer(timed))

    @property
    def step_s(self) -> Timer:
        """Step time of a layout on the decision's network."""
        problem, placement = self.problem, self.found.cost.placement
        shapes = exact_shapes(self.found.decision.degrees, placement.axis_order, self.levels)
        groups = groups_of(shapes, self.levels, network_of(self.found.decision))
        where = problem.job, problem.profile, problem.topology

        def seconds(split: Split, limit_s: float) -> float:
            one = self.found.decision.model_copy(update={"layers_per_stage": split})
            return step_seconds(*where, one, groups, self.levels, limit_s=limit_s, layout=self.layout)

        return seconds

    @property
    def pipeline_s(self) -> Timer:
        """Seconds of the pipeline alone, approximately."""
        return lambda split, _: self.pipeline.seconds(split)

    def fit(self, split: Split) -> bool:
        """Return whether the layers fit in memory, for the replicas with most micro-batches."""
        batches = micro_batches_of(self.found.decision, self.balancer.candidates, self.layout)
        return self.balancer.fits(types_of_ranks(self.layout), split, max(batches))


def _climbed(layers: _Layers, seconds: Timer, allowed: Allowance, work: float) -> Split | None:
    """Return the layout that moves lead to, None without a move. Each move goes to the fastest neighbour that fits."""
    start = split = layers.found.cost.layers_per_stage
    allowed.take(work)
    least_s = seconds(split, math.inf) * (1 - TOLERANCE)
    while True:
        timed = list[tuple[float, Split]]()
        for layouts in (list(_one_moved(split, layers.pipeline.busiest(split))), list(_columns_moved(split))):
            for other in layouts[:: -(-len(layouts) // allowed.most(work)) or 1]:
                if allowed.over:
                    break
                allowed.take(work)
                timed.append((seconds(other, least_s), other))
        faster = (one for one in sorted(timed, key=lambda pair: pair[0]) if one[0] < least_s)
        fitting = next((one for one in faster if layers.fit(one[1])), None)
        if fitting is None:
            return None if split == start else split
        least_s, split = fitting[0] * (1 - TOLERANCE), fitting[1]


def _one_moved(split: Split, busiest: int) -> Iterator[Split]:
    """Yield the layouts with one layer of a rank in another chunk; no chunk is emptied."""
    places = [(rank, chunk) for rank, chunks in enumerate(split) for chunk in range(len(chunks))]
    for chunk, layers in enumerate(split[busiest]):
        for place in places if layers > 1 else ():
            if place != (busiest, chunk):
                yield _with_moves(split, [((busiest, chunk), place)])


def _columns_moved(split: Split) -> Iterator[Split]:
    """Yield the layouts with one layer of each of the first, or last, ranks in another chunk there; none is emptied."""
    pp = len(split)
    runs = [range(end) for end in range(1, pp + 1)] + [range(start, pp) for start in range(1, pp)]
    for source, sink in permutations(range(len(split[0])), 2):
        for ranks in runs:
            if all(split[rank][source] > 1 for rank in ranks):
                yield _with_moves(split, [((rank, source), (rank, sink)) for rank in ranks])


def _with_moves(split: Split, moves: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> Split:
    held = [list(chunks) for chunks in split]
    for (source, chunk), (sink, other) in moves:
        held[source][chunk] -= 1
        held[sink][other] += 1
    return tuple(map(tuple, held))
