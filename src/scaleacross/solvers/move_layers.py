"""Layers of a found decision, moved one at a time from its busiest rank to other chunks while the step falls.

The search knows two layouts of a candidate: equal layers, and those whose slowest rank is fastest. In both the chunks of a rank
are as equal as possible. With several chunks per rank it matters which rank and chunk holds a layer more, and no bound of the
search is one on all such layouts. Here a decision gets what neighbours of its layout offer; nothing says that no other is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from scaleacross.cost_models.axes import network_of
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.plan_cost import groups_of, step_seconds
from scaleacross.cost_models.step import exact_shapes
from scaleacross.solvers.network_of_plan import Networked, with_network
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import rerun_period
from scaleacross.verification.figures import TOLERANCE
from scaleacross.workloads.problem import Problem

Split = tuple[tuple[int, ...], ...]
MOST_MOVES: Final = 4
"""Layers that are moved at most: a choice. Llama 3.1 70B in 40 chunks needs one."""
MOST_TRIED: Final = 200
"""Layouts that are timed for one of them, 10 ms each; of more every second, third, …"""


def with_moved_layers(problem: Problem, found: Networked, seed: int, stopped: Callable[[], bool]) -> Networked | None:
    """The decision with layers moved and the network for that; None where no move makes the step shorter, or may be tried.

    Args:
        stopped: asked between moves; once true, what was found by then comes out.
    """
    decision, pipeline = found.decision, found.decision.pipeline
    fixed = problem.job.stages == "equal" or decision.stage_recompute or rerun_period(decision.recompute) > 1
    if fixed or decision.degrees.pp == 1 or pipeline.num_chunks == 1 or pipeline.order is not None:
        return None
    best = found
    for _ in range(MOST_MOVES):
        moved = _moved(problem, best, seed, stopped)
        if moved is None:
            break
        best = moved
    return None if best is found else best


def _moved(problem: Problem, found: Networked, seed: int, stopped: Callable[[], bool]) -> Networked | None:
    """The fastest decision that differs by one layer and fits, if it is faster."""
    placement, least_s = found.cost.placement, found.cost.cost.step_s * (1 - TOLERANCE)
    levels = build_levels(problem.topology, placement.fill)
    shapes = exact_shapes(found.decision.degrees, placement.axis_order, levels)
    groups, timed = groups_of(shapes, levels, network_of(found.decision)), list[tuple[float, Decision]]()
    layouts = list(_neighbours(found.cost.layers_per_stage, found.cost.pipeline.rank))
    for split in layouts[:: -(-len(layouts) // MOST_TRIED) or 1]:
        if stopped():
            break
        decision = found.decision.model_copy(update={"layers_per_stage": split})
        timed.append((step_seconds(problem.job, problem.profile, problem.topology, decision, groups, levels), decision))
    for step_s, decision in sorted(timed, key=lambda one: one[0]):
        if step_s >= least_s:
            break
        other = with_network(problem, decision, seed)
        if other.cost.cost.step_s < least_s and all(stage.fits for stage in other.cost.memory):
            return other
    return None


def _neighbours(split: Split, busiest: int) -> Iterator[Split]:
    """The layouts with one layer of a rank in another chunk; no chunk is emptied."""
    places = [(rank, chunk) for rank, chunks in enumerate(split) for chunk in range(len(chunks))]
    for chunk, layers in enumerate(split[busiest]):
        for place in places if layers > 1 else ():
            if place != (busiest, chunk):
                held = [list(chunks) for chunks in split]
                held[busiest][chunk] -= 1
                held[place[0]][place[1]] += 1
                yield tuple(map(tuple, held))
