"""Arrays of candidates on one placement have the step times of the single plans."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from arranged import arranged

from cases import each
from design_points import placed, point
from instances import instance, mixed_instance
from scaleacross.cost_models.candidates import candidate_of
from scaleacross.cost_models.levels import CAMPUS
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.cost_models.replica_kinds import KnownReplicas
from scaleacross.cost_models.window_traffic import GRADIENT_AXES
from scaleacross.solvers.fixed_placement import FixedPlacement
from scaleacross.solvers.pools import pools, shares
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.parallelism import GRID_AXES
from scaleacross.spec.placement import Placement
from scaleacross.workloads.problem import problem_of


def reduced_between_buildings(plan: PlanCost) -> bool:
    """Whether gradients cross buildings.

    Bounds do not know how long a single rank waits before it needs its parameters.
    """
    return any(plan.placement.spans.get(axis) in LINK_LEVELS[CAMPUS:] for axis in GRADIENT_AXES)


@each("seed", (4, 6, 13, 41, 306, 312), heavy=(0,), size=1)
def test_rows_cost_what_their_plans_cost(seed: int) -> None:
    problem = instance(seed)
    pool = pools(problem.topology)[0]
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    total = 0
    for rows in space.batches(Refusals()):
        for size in np.unique(rows.world_size):
            some = rows.take(np.flatnonzero(rows.world_size == size)[::7])
            for allocation in pool.allocations(int(size), [1])[:1] if len(some) else []:
                bounder = FixedPlacement.of(pool, allocation, problem.job, problem.profile)
                step_s = arranged(bounder, some, GRID_AXES).step_s(problem.job)
                placement = Placement(axis_order=GRID_AXES, fill=shares(allocation))
                for row in range(len(some)):
                    decision = some.decision(row).model_copy(update={"placement": placement})
                    plan = plan_cost(problem.job, problem.profile, problem.topology, decision, network="best")
                    assert step_s[row] <= plan.cost.step_s * (1 + 1e-9)  # pipelines are bounded
                    if some.pp[row] == 1 and not reduced_between_buildings(plan):
                        assert step_s[row] == pytest.approx(plan.cost.step_s, rel=1e-9)
                    total += 1
    assert total > 0


@each("seed", (4, 1001), (13,), heavy=(306, 1004), size=1)
def test_what_placements_share_is_remembered(seed: int) -> None:
    """Cached replicas change no step time, whatever was computed before.

    The result is inf if the pipeline alone exceeds the given limit.
    """
    problem, known = mixed_instance(seed - 1000) if seed >= 1000 else instance(seed), KnownReplicas()
    pool, compared = pools(problem.topology)[0], 0
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    for rows in space.batches(Refusals()):
        for row in np.flatnonzero(rows.world_size == rows.world_size.max())[:: max(1, len(rows) // 4)]:
            degrees = rows.decision(int(row)).degrees
            for allocation, order in product(pool.allocations_of(degrees)[:3], (GRID_AXES, GRID_AXES[::-1])):
                bounder = FixedPlacement.of(pool, allocation, problem.job, problem.profile)
                decision = bounder.placed(rows, int(row), order)
                cost = bounder.cost(decision)
                step_s = bounder.step_s(decision, known)
                assert step_s == bounder.step_s(decision) == pytest.approx(cost.cost.step_s, rel=1e-12)
                assert bounder.step_s(decision, known, cost.pipeline.total_s * 0.999) == np.inf
                assert bounder.step_s(decision, known, step_s * 1.001) == step_s
                compared += 1
    assert compared >= 8


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("model", "accelerators", "order", "dp_shard"),
    [
        # 3 % too high if parameters overlapped with computation only
        (
            "llama3.1-70b",
            4096,
            "pp dp_replicate tp cp dp_shard",
            128,
        ),
        # 0.1 % too high if gradients did
        ("llama3.1-8b", 1024, "pp dp_shard tp cp dp_replicate", 32),
    ],
)
def test_a_single_rank_overlaps_gradients_and_parameters_with_its_waits(
    model: str, accelerators: int, order: str, dp_shard: int
) -> None:
    """Gradients and parameters of a single rank overlap with the calls that it waits for.

    All of them cross buildings. The bound is below the step time, and at least 90 % of it.
    """
    job = point(model=model, accelerators=accelerators, buildings=8, regions=8, oversubscription=7.0)
    problem, allocation = problem_of(job), (accelerators // 8,) * 8
    decision = placed(("1F1B", 1), order, allocation, "optimizer", tp=4, dp_shard=dp_shard, dp_replicate=8)
    plan = plan_cost(problem.job, problem.profile, problem.topology, decision, network="best")
    pool = pools(problem.topology)[0]
    place = next(one for one in pool.allocations_of(decision.degrees) if shares(one) == plan.placement.fill)
    bounder = FixedPlacement.of(pool, place, problem.job, problem.profile)
    rows = candidate_of(decision, job.global_batch_sequences)
    bound_s = float(arranged(bounder, rows, plan.placement.axis_order).step_s(problem.job)[0])
    assert 0.9 * plan.cost.step_s <= bound_s <= plan.cost.step_s
