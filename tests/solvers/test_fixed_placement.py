"""Arrays of candidates on one placement cost what their plans cost, one by one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from instances import instance, mixed_instance
from scaleacross.cost_models.levels import CAMPUS
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.cost_models.replica_kinds import KnownReplicas
from scaleacross.cost_models.window_traffic import GRADIENT_AXES
from scaleacross.solvers.fixed_placement import FixedPlacement
from scaleacross.solvers.fleets import fleets, shares
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.parallelism import GRID_AXES
from scaleacross.spec.placement import Placement


def reduced_between_buildings(plan: PlanCost) -> bool:
    """Whether gradients cross buildings: bounds do not know how long a single rank waits before it needs its parameters."""
    return any(plan.placement.spans.get(axis) in LINK_LEVELS[CAMPUS:] for axis in GRADIENT_AXES)


@pytest.mark.parametrize("seed", [0, 4, 6, 13, 41, 306, 312])
def test_rows_cost_what_their_plans_cost(seed: int) -> None:
    problem = instance(seed)
    fleet = fleets(problem.topology)[0]
    space = SearchSpace(problem.job, problem.profile, fleet.num_accelerators, fleet.unit)
    total = 0
    for rows in space.batches(Refusals()):
        for size in np.unique(rows.world_size):
            some = rows.take(np.flatnonzero(rows.world_size == size)[::7])
            for fill in fleet.fills(int(size), [1])[:1] if len(some) else []:
                pricing = FixedPlacement.of(fleet, fill, problem.job, problem.profile)
                step_s = pricing.arranged(some, GRID_AXES).step_s(problem.job)
                placement = Placement(axis_order=GRID_AXES, fill=shares(fill))
                for row in range(len(some)):
                    decision = some.decision(row).model_copy(update={"placement": placement})
                    plan = plan_cost(problem.job, problem.profile, problem.topology, decision, network="best")
                    assert step_s[row] <= plan.cost.step_s * (1 + 1e-9)  # pipelines are bounded
                    if some.pp[row] == 1 and not reduced_between_buildings(plan):
                        assert step_s[row] == pytest.approx(plan.cost.step_s, rel=1e-9)
                    total += 1
    assert total > 0


@pytest.mark.parametrize("seed", [4, 13, 306, 1001, 1004])
def test_what_placements_share_is_remembered(seed: int) -> None:
    """One memory changes no step time, whatever was asked before. Where pipelines alone take longer than a limit, it is inf."""
    problem, known = mixed_instance(seed - 1000) if seed >= 1000 else instance(seed), KnownReplicas()
    fleet, compared = fleets(problem.topology)[0], 0
    space = SearchSpace(problem.job, problem.profile, fleet.num_accelerators, fleet.unit)
    for rows in space.batches(Refusals()):
        for row in np.flatnonzero(rows.world_size == rows.world_size.max())[:: max(1, len(rows) // 4)]:
            degrees = rows.decision(int(row)).degrees
            for fill, order in product(fleet.fills_of(degrees)[:3], (GRID_AXES, GRID_AXES[::-1])):
                pricing = FixedPlacement.of(fleet, fill, problem.job, problem.profile)
                decision = pricing.placed(rows, int(row), order)
                cost = pricing.cost(decision)
                step_s = pricing.step_s(decision, known)
                assert step_s == pricing.step_s(decision) == pytest.approx(cost.cost.step_s, rel=1e-12)
                assert pricing.step_s(decision, known, cost.pipeline.total_s * 0.999) == np.inf
                assert pricing.step_s(decision, known, step_s * 1.001) == step_s
                compared += 1
    assert compared >= 8
