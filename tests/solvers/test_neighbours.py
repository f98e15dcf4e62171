"""The search places candidates that differ from the best in one choice as long as they are faster."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import count

import numpy as np
import pytest

from instances import plain_job, plain_topology, plain_trunk
from scaleacross.cost_models.candidates import Candidates, concatenate
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.every_placement import placer_on
from scaleacross.solvers.neighbours import KIND, PLACED, Climber
from scaleacross.solvers.place_parallelism import Placer, never
from scaleacross.solvers.pool_blocks import place_ties
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Search
from scaleacross.workloads.problem import problem_of

DEGREES = ("tp", "cp", "pp", "dp")
TOGETHER = (
    ("micro_batch",),
    ("schedule", "num_chunks"),
    ("ep", "expert_lanes"),
    ("recompute", "activation_offload", "optimizer_offload"),
    ("shard", "dp_replicate"),
    ("context", "cp_inner"),
)


def searching(fast: str = "fast") -> tuple[Search, SearchSpace, Placer, list[Candidates]]:
    """A search over two buildings of one or two types, before any placement.

    Also returns the space, the placer of all accelerators and its partial candidates.
    """
    topology = plain_topology(2, 1) | {"trunks": [plain_trunk("b0", "b1", gbyte_per_s=2.0)]}
    for building, name, peak in zip(topology["regions"][0]["buildings"], ("slow", fast), (20.0, 50.0), strict=True):
        if fast != "slow":
            building["accelerator"] |= {"name": name, "peak_tflop_per_s": {"bf16": peak}}
    job = plain_job(
        topology=topology,
        degrees={"cp": 1},
        recompute=["none", "full"],
        schedules=["1F1B", "Interleaved1F1B"],
        num_chunks=[1, 2],
        micro_batch_sequences=[1, 2],
    )
    problem = problem_of(job)
    pool = pools(problem.topology)[0]
    state = Search(problem, 600.0, 0, 0.0, lambda progress: None)
    placer = placer_on(pool, problem.job, problem.profile, lambda: state.incumbent_s)
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    return state, space, placer, list(space.partials(Refusals()))


@cache
def all_that_fit() -> Bounded:
    _, space, placer, partials = searching()
    rows = concatenate([space.expand(one, Refusals()) for one in partials])
    rows = rows.take(placer.bounder.needed_bytes(rows) <= placer.bounder.capacity_bytes)
    return placer.bounder.tight(placer.bounder.coarse(rows))


def slowest(state: Search, placer: Placer) -> Bounded:
    """Place the candidate with the largest estimate among all that fit and can be placed."""
    bounded = all_that_fit()
    assert any(state.place(bounded, row, placer) for row in np.argsort(-bounded.estimate_s).tolist())
    return bounded


def changes(one: Candidates, other: Candidates) -> int:
    """Number of choices in which two candidates differ. Two or more degrees count as one."""
    degrees = sum(int(getattr(one, name)[0] != getattr(other, name)[0]) for name in DEGREES)
    choices = [any(getattr(one, name)[0] != getattr(other, name)[0] for name in names) for names in TOGETHER]
    return sum(choices) + (1 if 1 <= degrees <= 2 else degrees)


def test_the_last_best_is_faster_than_all_of_its_neighbours_and_none_is_placed_twice() -> None:
    state, space, placer, partials = searching()
    bounded, [start] = slowest(state, placer), state.remembered
    rows = bounded.candidates
    climber = Climber(state, space, partials)
    climber.climb(start)
    placed_once = len(state.remembered)
    climber.climb(start)
    assert placed_once > 2 and len(state.remembered) == placed_once
    best = state.best
    assert best is not None and best.step_s < 0.5 * start.step_s
    near = [row for row in range(len(rows)) if changes(rows.take(np.array([row])), best.candidates) == 1]
    hopeful = [row for row in near if bounded.estimate_s[row] < best.step_s]
    assert 0 < len(hopeful) <= len(near) <= PLACED
    for row in hopeful:
        placed = placer.unlimited().place(rows.take(np.array([row])), bounded.take(np.array([row])).work)
        assert placed is None or float(bounded.free_s[row]) + placed.communication_s >= best.step_s * (1 - 1e-9)


def test_a_climb_goes_on_below_its_own_start_whatever_the_incumbent() -> None:
    """A climb compares neighbours with its own start, not with the incumbent.

    A slow start may lead to the best plan within a step or two. A placer limited by the incumbent places nothing on the
    way.
    """
    state, space, placer, partials = searching()
    slowest(state, placer)
    [start] = state.remembered
    state.remember(replace(start, step_s=0.01 * start.step_s))
    Climber(state, space, partials).climb(start)
    assert len(state.remembered) == 2
    Climber(state, space, partials).climb(replace(start, placer=placer.unlimited()))
    assert min(one.step_s for one in state.remembered[2:]) < 0.5 * start.step_s


def test_without_a_start_nothing_is_placed() -> None:
    state, space, _, partials = searching()
    Climber(state, space, partials).climb(None)
    assert not state.remembered


def test_ties_are_the_best_of_other_kinds_however_little_slower() -> None:
    state, space, placer, partials = searching()
    slowest(state, placer)
    [start] = state.remembered
    climber = Climber(state, space, partials)
    climber.climb(replace(start, placer=placer.unlimited()))
    best = state.best
    assert best is not None
    before, below_s = len(state.remembered), 2 * best.step_s
    climber.place_ties(best, below_s, never)
    tied = state.remembered[before:]
    kinds = [tuple(int(getattr(one.candidates, name)[0]) for name in KIND) for one in (best, *tied)]
    assert len(tied) > 1 and len(set(kinds)) == len(kinds)
    assert all(best.step_s <= one.step_s < below_s and changes(one.candidates, best.candidates) == 1 for one in tied)
    assert state.best is best
    climber.place_ties(best, below_s, lambda: True)
    assert len(state.remembered) == before + len(tied)


@pytest.mark.parametrize(("each_s", "places"), [(0.0, True), (1.0, True), (101.0, False)])
def test_ties_take_a_tenth_of_a_limit_beyond_it(each_s: float, places: bool) -> None:
    """Ties are placed for a tenth of the limit after it has passed.

    The limit is 1,000 s, and each read of the clock takes ``each_s``.
    """
    state, _, placer, _ = searching()
    slowest(state, placer)
    [best] = state.remembered
    now = count(2000.0, each_s)
    state.began, state.time_limit_s, state.clock = 0.0, 1000.0, lambda: next(now)
    place_ties(state, best, 2 * best.step_s)
    assert (len(state.remembered) > 1) is places
