"""Move layers between chunks of found decisions as long as the step time falls.

The search knows two layouts of a candidate: equal layers, and the one whose slowest rank is fastest. In both the chunks
of a rank are as equal as possible. With several chunks per rank it matters which rank and chunk holds one layer more.
Light chunks that run in warm-up and cool-down shorten both, and ranks of a faster type hold larger chunks. No bound of
the search covers all such layouts. The neighbours of a layout are

one       one layer of the busiest rank in another chunk, of any rank
columns   one layer in another chunk of the same rank, on the first ranks, or on the last ones, all at once: if one rank
          alone does so, its neighbours still set the step

The result is a local optimum: another layout may be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from scaleacross.cost_models.axes import network_of
from scaleacross.cost_models.layout import layout_of
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.plan_cost import groups_of, plan_cost, step_seconds
from scaleacross.cost_models.step import exact_shapes
from scaleacross.errors import InfeasibleError
from scaleacross.solvers.network_of_plan import Networked, with_network
from scaleacross.solvers.placed_networks import PlacedNetworks
from scaleacross.solvers.search_state import Placed, Search
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import rerun_period
from scaleacross.verification.figures import TOLERANCE
from scaleacross.workloads.problem import Problem

Split = tuple[tuple[int, ...], ...]
MOST_TRIED: Final = 200
"""Most neighbours of each kind that a move times, 10 ms each; of more, every second, third, …"""
NEAR: Final = 1.1
"""Largest step over the best that gets moves: a choice. They take 17 % off gpt-oss-120b on two types."""
MOST_NEAR: Final = 4
"""Most decisions whose layers are moved: a choice."""
SHARE: Final = 0.9
"""Share of a limit in seconds after which moves end; the rest is for alternatives."""
WORK: Final = 8
"""Step times of all moves over a limit in step times, which the search may have used up: a choice. At a limit of 150,
Llama 8B on 24 and 70B on 64 and 96 H100 get the steps of any number of moves in half the time. With 4 the first is 1.4
% longer."""
PARTS: Final = 8
"""Parts of what is left of such a limit; each kind of neighbours takes at most one of them per move."""


@dataclass
class Allowance:
    """How long moves may go on: until ``stopped``, and for ``left`` step times (None: any number)."""

    stopped: Callable[[], bool]
    left: int | None = None

    @property
    def over(self) -> bool:
        """Whether no more step times may be computed."""
        return self.left == 0 or self.stopped()

    def take(self) -> None:
        """Count one step time."""
        self.left = None if self.left is None else self.left - 1

    def most(self) -> int:
        """Return the number of neighbours of a kind that a move may time."""
        return MOST_TRIED if self.left is None else max(1, min(MOST_TRIED, self.left // PARTS))


def allowance_of(state: Search) -> Allowance:
    """Return what the limit of a search leaves to moves."""

    def stopped() -> bool:
        late = state.work_limit is None and state.elapsed_s > SHARE * state.time_limit_s
        return late or state.past_limit

    return Allowance(stopped, None if state.work_limit is None else WORK * state.work_limit)


def best_with_moved_layers(
    state: Search, best: tuple[Placed, Networked], networks: PlacedNetworks, allowed: Allowance, *, alone: bool
) -> tuple[Placed, Networked]:
    """Return the fastest of the best decisions of a search with layers moved; the best decision comes first.

    ``alone``: whether to move only the best decision, whose figure is a score.
    """
    found, seen = best, set[float]()
    for placed in [best[0], *([] if alone else sorted(state.remembered, key=lambda one: one.step_s))]:
        if allowed.over or len(seen) == MOST_NEAR or placed.step_s > best[0].step_s * NEAR:
            break
        if placed.step_s in seen:
            continue
        seen.add(placed.step_s)
        state.tell("moving layers", len(seen) - 1, MOST_NEAR)
        try:
            before = best[1] if placed is best[0] else networks.of(placed)
        except InfeasibleError:
            continue
        moved = with_moved_layers(state.problem, before, state.seed, allowed)
        if moved is not None and moved.cost.cost.step_s < found[1].cost.cost.step_s:
            found = placed, moved
    return found


def with_moved_layers(problem: Problem, found: Networked, seed: int, allowed: Allowance) -> Networked | None:
    """Return the decision with layers moved and its network; None where no move is allowed or shortens the step.

    Args:
        allowed: asked before every step time; once over, the best result so far is returned.
    """
    decision, pipeline = found.decision, found.decision.pipeline
    fixed = problem.job.stages == "equal" or decision.stage_recompute or rerun_period(decision.recompute) > 1
    if fixed or decision.degrees.pp == 1 or pipeline.num_chunks == 1 or pipeline.order is not None:
        return None
    best: Networked | None = None
    while (split := _climbed(problem, best or found, allowed)) is not None:
        moved = with_network(problem, decision.model_copy(update={"layers_per_stage": split}), seed)
        if moved.cost.cost.step_s >= (best or found).cost.cost.step_s * (1 - TOLERANCE):
            break
        best = moved
    return best


def _climbed(problem: Problem, found: Networked, allowed: Allowance) -> Split | None:
    """Return the layout that moves lead to on a decision's network, None without a move.

    Each move goes to the fastest neighbour that fits.
    """
    job, profile, topology = problem.job, problem.profile, problem.topology
    placement, degrees = found.cost.placement, found.decision.degrees
    levels = build_levels(topology, placement.fill)
    layout = layout_of(topology, placement.fill, degrees, placement.axis_order)
    shapes = exact_shapes(degrees, placement.axis_order, levels)
    groups, cost, split = groups_of(shapes, levels, network_of(found.decision)), found.cost, None
    while True:
        least_s, timed = cost.cost.step_s * (1 - TOLERANCE), list[tuple[float, Decision]]()
        for layouts in (
            list(_one_moved(cost.layers_per_stage, cost.pipeline.rank)),
            list(_columns_moved(cost.layers_per_stage)),
        ):
            for other in layouts[:: -(-len(layouts) // allowed.most()) or 1]:
                if allowed.over:
                    break
                allowed.take()
                one = found.decision.model_copy(update={"layers_per_stage": other})
                step_s = step_seconds(job, profile, topology, one, groups, levels, limit_s=least_s, layout=layout)
                timed.append((step_s, one))
        # full figures are needed for the memory test, so they are computed lazily, fastest layout first
        faster = (one for step_s, one in sorted(timed, key=lambda pair: pair[0]) if step_s < least_s)
        costs = (plan_cost(job, profile, topology, one, shapes=shapes, levels=levels, layout=layout) for one in faster)
        fitting = next((one for one in costs if all(stage.fits for stage in one.memory)), None)
        if fitting is None:
            return split
        cost, split = fitting, fitting.layers_per_stage


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
