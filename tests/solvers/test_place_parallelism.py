"""The placement of a candidate equals an enumeration of orders × allocations, each with the step time of its plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from cases import each
from instances import instance
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.place_parallelism import Placer, Wanted
from scaleacross.solvers.pools import pools, shares
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.parallelism import GRID_AXES, GridAxis
from scaleacross.spec.placement import Placement
from scaleacross.workloads.problem import Problem


def rows_of(problem: Problem) -> list[tuple[Placer, Bounded]]:
    """A few candidates with many placements, of every pool of one accelerator type.

    ``mixed_pools`` places the others.
    """
    out = []
    for pool in (pool for pool in pools(problem.topology) if len(pool.accelerators) == 1):
        placer = Placer(pool, Bounder.on(pool, problem.job, problem.profile))
        space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
        for rows in space.batches(Refusals()):
            active = sum((getattr(rows, axis) > 1).astype(int) for axis in GRID_AXES)
            chosen = np.flatnonzero(active >= 2)[:2]
            out += [(placer, placer.bounder.coarse(rows.take(np.array([row])))) for row in chosen]
    return out


@each("seed", (4, 10, 71), (0, 7, 13, 25, 50, 54, 61, 73))
def test_placements_equal_enumeration(seed: int) -> None:
    problem = instance(seed)
    cases = rows_of(problem)
    assert cases
    for placer, bounded in cases[:4]:
        settings, work = bounded.candidates, bounded.work
        active = [axis for axis in GRID_AXES if int(getattr(settings, axis)[0]) > 1]
        idle = tuple(axis for axis in GRID_AXES if axis not in active)
        costs: dict[GridAxis, float] = {}
        for allocation in placer.allocations_of(settings):
            for order in permutations(active):
                placement = Placement(axis_order=(*idle, *order), fill=shares(allocation))
                decision = settings.decision(0).model_copy(update={"placement": placement})
                cost = plan_cost(problem.job, problem.profile, problem.topology, decision, network="best")
                step_s = cost.cost.step_s
                [bound] = placer.bounds_s(settings, work, [order], [allocation])[0]
                assert bounded.free_s[0] + bound <= step_s * (1 + 1e-9)
                costs[order[-1]] = min(costs.get(order[-1], np.inf), step_s)
        best = placer.place(settings, work)
        assert (best is None) == (not costs)
        if best is None:
            continue
        assert best.complete
        assert bounded.free_s[0] + best.communication_s == pytest.approx(min(costs.values()), rel=1e-9)
        assert placer.place(settings, work, Wanted(cutoff_s=best.communication_s * (1 - 1e-9))) is None
        for axis in active:
            forced = placer.place(settings, work, Wanted(slowest_axis=axis))
            assert forced is not None
            assert forced.axis_order[-1] == axis
            assert bounded.free_s[0] + forced.communication_s == pytest.approx(costs[axis], rel=1e-9)


def test_a_candidate_that_no_allocation_holds() -> None:
    problem = instance(0)
    placer, bounded = rows_of(problem)[0]
    larger = replace(bounded.candidates, dp_shard=np.array([4096]))
    assert placer.place(larger, bounded.work) is None


def test_enough_ends_the_trial_of_allocations_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleacross.solvers.place_parallelism.ALLOCATION_BLOCK", 1)
    cases = [
        case
        for case in rows_of(instance(7))
        if len(case[0].pool.allocations_of(case[1].candidates.decision(0).degrees)) > 2
    ]
    placer, bounded = cases[0]
    full = placer.place(bounded.candidates, bounded.work)
    early = placer.place(bounded.candidates, bounded.work, Wanted(enough_s=np.inf))
    assert full is not None
    assert early is not None
    assert full.complete
    assert not early.complete
    assert full.communication_s <= early.communication_s


def test_patience_leaves_out_what_comes_after_and_tells_a_bound_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience ends a placement early and reports a bound on what it leaves out.

    With patience 1 the first time that is not below the best ends it. With more patience than placements the result is
    the optimum.
    """
    estimated_s: list[float] = []
    exposed_s = Placer.exposed_s

    def counted(*args: Any) -> float:
        estimated_s.append(exposed_s(*args))
        return estimated_s[-1]

    monkeypatch.setattr(Placer, "exposed_s", counted)
    ended = 0
    for placer, bounded in rows_of(instance(7)):
        rows, left, prices = (bounded.candidates, bounded.work), list[float](), []
        found = []
        for wanted in (Wanted(), Wanted(left=left.append, patience=1), Wanted(left=left.append, patience=10_000)):
            estimated_s.clear()
            found.append(placer.place(*rows, wanted))
            prices.append(len(estimated_s))
        if None in found:
            assert found == [None] * 3
            continue
        best_s, early_s, patient_s = (one.communication_s for one in found if one)
        assert min(*left, early_s) <= best_s <= early_s
        assert patient_s == best_s
        ended += prices[1] < prices[2]
    assert ended
