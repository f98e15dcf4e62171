"""What differs from the best candidate in one choice is placed as long as it is faster."""

from __future__ import annotations

import numpy as np

from instances import plain_job, plain_topology, plain_trunk
from scaleacross.cost_models.candidates import Candidates, concatenate
from scaleacross.solvers.every_placement import placer_on
from scaleacross.solvers.fleets import fleets
from scaleacross.solvers.neighbours import climb
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.priced import Priced
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


def searching() -> tuple[Search, SearchSpace, Placer, list[Candidates]]:
    """A search over two buildings before it has placed anything, and all of its bases."""
    topology = plain_topology(4, 2) | {"trunks": [plain_trunk("b0", "b1", gbyte_per_s=2.0)]}
    problem = problem_of(
        plain_job(topology=topology, recompute=["none", "full"], schedules=["1F1B", "Interleaved1F1B"])
    )
    [fleet] = fleets(problem.topology)
    state = Search(problem, 600.0, 0, 0.0, lambda progress: None)
    placer = placer_on(fleet, problem.job, problem.profile, lambda: state.incumbent_s)
    space = SearchSpace(problem.job, problem.profile, fleet.num_accelerators, fleet.unit)
    return state, space, placer, list(space.bases(Refusals()))


def slowest(space: SearchSpace, placer: Placer, bases: list[Candidates]) -> tuple[Priced, int]:
    """All candidates that fit, and the one with the largest estimate."""
    rows = concatenate([space.expand(one, Refusals()) for one in bases])
    rows = rows.take(placer.pricing.needed_bytes(rows) <= placer.pricing.capacity_bytes)
    priced = placer.pricing.tight(placer.pricing.coarse(rows))
    return priced, int(priced.estimate_s.argmax())


def changes(one: Candidates, other: Candidates) -> int:
    """Choices in which two candidates differ; two degrees count as one, more as many."""
    degrees = sum(int(getattr(one, name)[0] != getattr(other, name)[0]) for name in DEGREES)
    choices = [any(getattr(one, name)[0] != getattr(other, name)[0] for name in names) for names in TOGETHER]
    return sum(choices) + (1 if 1 <= degrees <= 2 else degrees)


def test_the_last_best_is_faster_than_all_of_its_neighbours() -> None:
    state, space, placer, bases = searching()
    priced, row = slowest(space, placer, bases)
    rows, start = priced.candidates, state.place(priced, row, placer)
    assert start is not None
    climb(state, space, placer, bases)
    best = state.best
    assert best is not None and best.step_s < 0.5 * start.step_s
    near = [row for row in range(len(rows)) if changes(rows.take(np.array([row])), best.candidates) == 1]
    assert len(near) > 10
    for row in near:
        placed = placer.unlimited().place(rows.take(np.array([row])), priced.take(np.array([row])).work)
        assert placed is None or float(priced.free_s[row]) + placed.communication_s >= best.step_s * (1 - 1e-9)


def test_each_fleet_climbs_from_its_own_best_alone() -> None:
    state, space, placer, bases = searching()
    climb(state, space, placer, bases)  # nothing is placed yet
    assert not state.pool
    start = state.place(*slowest(space, placer, bases), placer)
    assert start is not None
    another = placer_on(placer.fleet, state.problem.job, state.problem.profile)
    climb(state, space, another, bases)
    assert len(state.pool) == 1
