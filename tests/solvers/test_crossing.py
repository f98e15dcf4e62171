"""Bounds from degrees alone never exceed any placement of a candidate.

Each is the tightest one when its resource is scarce.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases import each
from instances import instance, plain_job, plain_topology, plain_trunk
from scaleacross.cost_models.levels import CAMPUS, REGION
from scaleacross.solvers.bounds import search_bounds
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.crossing import Crossing
from scaleacross.solvers.every_placement import placer_on
from scaleacross.solvers.joint import search
from scaleacross.solvers.pools import AcceleratorPool, pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.workloads.problem import Problem, problem_of


def crossing_of(problem: Problem) -> tuple[AcceleratorPool, Crossing]:
    """The largest pool of one accelerator type, and its crossing bounds."""
    pool = next(pool for pool in pools(problem.topology) if len(pool.accelerators) == 1)
    return pool, Crossing.of(Bounder.on(pool, problem.job, problem.profile))


@each("seed", (*range(100, 110), 223), heavy=(*range(110, 118), 306, 312), size=1)
def test_no_candidate_is_below_its_bounds(seed: int) -> None:
    problem = instance(seed)
    pool, crossing = crossing_of(problem)
    placer = placer_on(pool, problem.job, problem.profile)
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    for rows in space.batches(Refusals()):
        estimated = placer.bounder.coarse(rows.take(np.arange(seed % 5, len(rows), 5)))
        cut, law = crossing.bounds_s(estimated) if len(estimated.bound_s) else ([], [])
        for row in range(len(estimated.bound_s)):
            one = estimated.take(np.array([row]))
            placed = placer.place(one.candidates, one.work)
            if placed is not None:
                exact_s = one.free_s[0] + placed.communication_s
                assert one.free_s[0] <= cut[row] <= exact_s * (1 + 1e-12)
                assert law[row] <= exact_s * (1 + 1e-12)


def bounds_of(**changes: Any) -> dict[str, float]:
    """The bounds of a finished search; none exceeds the objective."""
    found = search(problem_of(plain_job(**changes)), time_limit_s=600)
    assert found.best is not None
    bounds = {bound.name: bound.step_s for bound in search_bounds(found, np.inf)}
    assert all(step_s <= found.best.step_s * (1 + 1e-9) for step_s in bounds.values())
    return {name: step_s / found.best.step_s for name, step_s in bounds.items() if name not in ("search", "any_layers")}


def test_three_buildings_and_a_thin_trunk_are_bound_by_their_cut() -> None:
    """A narrow link to a third building makes the cut bound the tightest.

    24 replicas are in three buildings of 8, and gradients cross the narrow link.
    """
    topology = plain_topology(2, 2, 2)
    topology["trunks"] = [plain_trunk("b0", "b1"), plain_trunk("b1", "b2", gbyte_per_s=0.05)]
    degrees = {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 1, "dp_replicate": 24, "ep": 1}
    bounds = bounds_of(topology=topology, degrees=degrees, shard="none", global_batch_sequences=24)
    assert max(bounds, key=lambda name: bounds[name]) == "cut"
    assert bounds["cut"] > 2 * bounds["pipeline"]
    assert bounds["cut"] > 0.5


def test_a_pipeline_over_slow_trunks_is_bound_by_what_it_holds() -> None:
    """Long links make the memory bound of a pipeline the tightest.

    Eager 1F1B has 4 + 4 ranks half a second apart. Each micro-batch travels for a second, and a rank holds 15 at a
    time.
    """
    topology = plain_topology(1, 1)
    topology["trunks"] = [plain_trunk("b0", "b1", latency_us=500_000)]
    degrees = {"tp": 1, "cp": 1, "pp": 8, "dp_shard": 1, "dp_replicate": 1, "ep": 1}
    bounds = bounds_of(
        topology=topology,
        degrees=degrees,
        schedules="Eager1F1B",
        shard="none",
        micro_batch_sequences=1,
        global_batch_sequences=64,
        stages="equal",
    )
    assert max(bounds, key=lambda name: bounds[name]) == "memory_latency"
    assert bounds["memory_latency"] > 2 * max(bounds["pipeline"], bounds["cut"])


@pytest.mark.parametrize("apart", [False, True])
def test_figures_of_trunks_are_those_of_the_cut_that_nobody_can_avoid(apart: bool) -> None:
    """Link figures of the bound are those of the cut that no placement can avoid.

    The chain has 8 + 8 + 4 accelerators and a narrow, long link at its end. Two buildings hold 16 accelerators, but not
    17.
    """
    topology = plain_topology(2, 2, 1, apart=apart)
    topology["trunks"] = [
        plain_trunk("b0", "b1", gbyte_per_s=40.0, latency_us=10.0),
        plain_trunk("b1", "b2", gbyte_per_s=2.0, latency_us=700.0),
    ]
    _, crossing = crossing_of(problem_of(plain_job(topology=topology)))
    level = REGION - CAMPUS if apart else 0
    wide, thin = crossing._crossing_of(np.array([16, 17]))[:, level]
    assert wide == pytest.approx([40e9, 10e-6])
    assert thin == pytest.approx([2e9, 700e-6])
