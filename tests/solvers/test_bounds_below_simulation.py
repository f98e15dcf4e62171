"""No bound stated for simulated steps exceeds the simulation of a random legal decision in a random placement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from test_bounds_of_straddling_stages import any_allocation, straddling_job

from instances import mixed_job, random_job
from scaleacross.api.evaluation import evaluated
from scaleacross.api.simulating import simulated_step_s
from scaleacross.cost_models.candidates import concatenate
from scaleacross.errors import InputError
from scaleacross.solvers.bounds import arithmetic_bounds
from scaleacross.solvers.fixed_placement import FixedPlacement
from scaleacross.solvers.place_parallelism import axes_of
from scaleacross.solvers.pools import AcceleratorPool, pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.workloads.problem import Problem, problem_of

SLACK = 1 + 1e-9
ROWS, PLACES = 12, 2


def plans(problem: Problem, pool: AcceleratorPool, seed: int) -> list[Plan]:
    """Random legal decisions with estimates, on random accelerators and in random axis orders."""
    rng, out = np.random.default_rng(seed), list[Plan]()
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    rows = space.expand(concatenate(list(space.partials(Refusals()))), Refusals())
    for row in rng.permutation(len(rows))[:ROWS]:
        one = rows.take(row[None])
        active, idle = axes_of(one)
        for _ in range(PLACES):
            allocation, order = (
                any_allocation(pool, int(one.world_size[0]), rng),
                tuple(rng.permutation(active).tolist()),
            )
            if pool.uses_all_types(allocation):
                placed = FixedPlacement.of(pool, allocation, problem.job, problem.profile, network="library")
                try:
                    out.append(evaluated(problem, placed.placed(one, 0, (*idle, *order))))
                except InputError:  # tp across buildings with whole experts, failure domains
                    continue
    return out


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("make", "seeds"),
    [
        pytest.param(straddling_job, range(3), marks=pytest.mark.slow),
        pytest.param(lambda seed: straddling_job(seed, types=2), range(2), marks=pytest.mark.slow),
        pytest.param(random_job, range(14), marks=pytest.mark.slow),
        (mixed_job, range(24)),
    ],
    ids=["straddling", "straddling, two types", "random", "mixed"],
)
def test_no_simulated_step_is_below_the_bounds_that_hold_for_it(make: Callable[[int], Job], seeds: range) -> None:
    simulated, above = 0, []
    for seed in seeds:
        problem = problem_of(make(seed))
        found = plans(problem, pools(problem.topology)[0], seed)
        bounds = {bound.name: bound.step_s for bound in arithmetic_bounds(problem)} if found else {}
        for plan in found:
            step_s, simulated = simulated_step_s(plan), simulated + 1
            stated = bounds | {"stated": plan.report.bound_s}
            above += [(seed, name, bound / step_s) for name, bound in stated.items() if bound > step_s * SLACK]
    assert not above
    assert simulated >= 40
