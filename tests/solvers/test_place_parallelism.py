"""Each constraint of the placement model holds and forbids; the model as a whole equals enumeration of orders × fills."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from instances import instance
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.cost_models.settings import Settings
from scaleacross.cost_models.work import Work
from scaleacross.solvers.backends import cpsat, milp
from scaleacross.solvers.backends.linear_model import LinearModel, Solution
from scaleacross.solvers.candidates import Priced, Pricing
from scaleacross.solvers.fleets import fleets, shares
from scaleacross.solvers.place_parallelism import Arc, ArcCost, Placer, build_model
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.parallelism import GRID_AXES, GridAxis
from scaleacross.spec.placement import Placement
from scaleacross.workloads.problem import Problem

BACKENDS = pytest.mark.parametrize("solve", [cpsat.solve, milp.solve], ids=["cpsat", "milp"])

# --- the constraints on a model made by hand ------------------------------------------------------------------------

# pp 2 with 4 micro-batches, 4 layers: the gradient window is 1 s · (1 − 1/4) = 0.75 s long, has 4 pieces, comes once
SETTINGS = Settings(**{name: np.array([value]) for name, value in {
    "tp": 2, "cp": 1, "dp_shard": 2, "dp_replicate": 1, "pp": 2, "ep": 1, "micro_batch": 1, "num_micro_batches": 4,
    "num_chunks": 1, "schedule": 1, "recompute": 0, "shard": 1,
}.items()})  # fmt: skip
WORK = Work(**{name: np.array([value]) for name, value in {
    "forward_s": 0.5, "backward_s": 1.0, "weight_s": 0.4, "fill_s": 1.5,
    "attention_s": 0.0, "tp_gathers": 0.0, "tp_forward": 0.0, "layers": 4.0, "moe_layers": 0.0,
    "dense_parameters": 1.0, "expert_parameters": 0.0, "optimizer_s": 0.0, "buckets": 4.0, "taken_fraction": 0.0,
    "elementwise_fraction": 0.0, "hbm_s_per_byte": 0.0, "layer_share": 0.0, "head_share": 0.0,
}.items()})  # fmt: skip
NONE: frozenset[GridAxis] = frozenset()
TP: frozenset[GridAxis] = frozenset({"tp"})
DP: frozenset[GridAxis] = frozenset({"dp_shard"})
ARCS: tuple[Arc, ...] = tuple(
    (fill, faster, axis)
    for fill in (0, 1)
    for faster, axis in ((NONE, "tp"), (NONE, "dp_shard"), (TP, "dp_shard"), (DP, "tp"))
)


def by_hand(
    window_s: float = 0.0, slowest_axis: GridAxis | None = None, **serial_s: float
) -> tuple[LinearModel, dict[Arc, int]]:
    """Two axes on two fills; every arc of dp_shard adds ``window_s`` to the gradient window."""
    costs = {
        arc: ArcCost(serial_s.get(f"fill{arc[0]}", 0.0), np.array([window_s * (arc[2] == "dp_shard"), 0.0, 0.0, 0.0]))
        for arc in ARCS
    }
    return build_model(costs, ("tp", "dp_shard"), SETTINGS, WORK, slowest_axis)


def solved(model: LinearModel, fixed: dict[int, float], solve: cpsat.solve) -> Solution:  # type: ignore[valid-type]
    for variable, value in fixed.items():
        model.add("fixed", {variable: 1.0}, "==", value)
    return solve(model, 10.0, 0)


@BACKENDS
def test_c1_one_fill(solve: object) -> None:
    model, arcs = by_hand()
    assert solved(model, {arcs[0, NONE, "tp"]: 1, arcs[1, NONE, "tp"]: 0}, solve).status == "optimal"
    for second in ((1, NONE, "tp"), (0, NONE, "dp_shard")):
        model, arcs = by_hand()
        assert solved(model, {arcs[0, NONE, "tp"]: 1, arcs[second]: 1}, solve).status == "infeasible"
    model, arcs = by_hand()
    assert solved(model, {arcs[arc]: 0 for arc in ARCS if not arc[1]}, solve).status == "infeasible"


@BACKENDS
def test_c2_flow(solve: object) -> None:
    model, arcs = by_hand()
    assert solved(model, {arcs[0, NONE, "tp"]: 1, arcs[0, TP, "dp_shard"]: 1}, solve).status == "optimal"
    model, arcs = by_hand()  # after tp comes dp_shard, on the same fill
    assert solved(model, {arcs[0, NONE, "tp"]: 1, arcs[0, TP, "dp_shard"]: 0}, solve).status == "infeasible"
    model, arcs = by_hand()
    assert solved(model, {arcs[0, NONE, "tp"]: 1, arcs[1, TP, "dp_shard"]: 1}, solve).status == "infeasible"


def exposed(model: LinearModel) -> int:
    return model.names.index("e[gradient_reduce]")


@BACKENDS
@pytest.mark.parametrize(
    ("window_s", "least_s"),
    [(0.8, 0.2), (2.0, 1.25)],
    ids=["C3 granule: a quarter of 0.8 s", "C4 window: 2 s less 0.75 s"],
)
def test_c3_granule_and_c4_window(solve: object, window_s: float, least_s: float) -> None:
    model, _ = by_hand(window_s)
    assert solved(model, {}, solve).objective == pytest.approx(least_s, rel=1e-6)
    for share, status in ((1.001, "optimal"), (0.999, "infeasible")):
        model, _ = by_hand(window_s)
        model.add("at most", {exposed(model): 1.0}, "<=", share * least_s)
        assert solved(model, {}, solve).status == status


@BACKENDS
def test_c5_forced(solve: object) -> None:
    model, arcs = by_hand(slowest_axis="tp")
    solution = solved(model, {}, solve)
    assert solution.status == "optimal"
    [last] = [arc for arc, v in arcs.items() if solution.values[v] > 0.5 and arc[1]]
    assert last[1:] == (DP, "tp")
    model, arcs = by_hand(slowest_axis="tp")
    assert solved(model, {arcs[0, TP, "dp_shard"]: 1}, solve).status == "infeasible"


@BACKENDS
def test_the_cheaper_fill_wins(solve: object) -> None:
    model, arcs = by_hand(fill0=3.0, fill1=2.0)
    solution = solved(model, {}, solve)
    assert solution.objective == pytest.approx(4.0, rel=1e-6)  # two arcs of 2 s
    assert {arc[0] for arc, v in arcs.items() if solution.values[v] > 0.5} == {1}


# --- the whole against enumeration ----------------------------------------------------------------------------------


def rows_of(problem: Problem) -> list[tuple[Placer, Priced]]:
    """A few candidates, with many placements, of every fleet of one accelerator type (``mixed_fleets`` places the others)."""
    out = []
    for fleet in (fleet for fleet in fleets(problem.topology) if len(fleet.accelerators) == 1):
        placer = Placer(fleet, Pricing.on(fleet, problem.job, problem.profile))
        space = SearchSpace(problem.job, problem.profile, fleet.num_accelerators, fleet.unit)
        for rows in space.batches(Refusals()):
            active = sum((getattr(rows, axis) > 1).astype(int) for axis in GRID_AXES)
            chosen = np.flatnonzero(active >= 2)[:2]
            out += [(placer, placer.pricing.coarse(rows.take(np.array([row])))) for row in chosen]
    return out


@pytest.mark.parametrize("seed", [0, 4, 7, 13, 25, 50, 61, 73])
def test_both_backends_equal_enumeration(seed: int) -> None:
    problem = instance(seed)
    cases = rows_of(problem)
    assert cases
    for placer, priced in cases[:4]:
        settings, work = priced.settings, priced.work
        active = [axis for axis in GRID_AXES if int(getattr(settings, axis)[0]) > 1]
        idle = tuple(axis for axis in GRID_AXES if axis not in active)
        costs: dict[GridAxis, float] = {}
        for fill in placer.fleet.fills_of(settings.decision(0).degrees):
            for order in permutations(active):
                placement = Placement(axis_order=(*idle, *order), fill=shares(fill))
                decision = settings.decision(0).model_copy(update={"placement": placement})
                cost = plan_cost(problem.job, problem.profile, problem.topology, decision, network="best")
                step_s = cost.cost.step_s
                costs[order[-1]] = min(costs.get(order[-1], np.inf), step_s)
        for solver in (cpsat.solve, milp.solve):
            own = Placer(placer.fleet, placer.pricing, solver)
            best = own.place(settings, work, 60.0)
            assert (best is None) == (not costs)
            if best is None:
                continue
            assert best.complete
            assert priced.free_s[0] + best.communication_s == pytest.approx(min(costs.values()), rel=1e-6)
            for axis in active:
                forced = own.place(settings, work, 60.0, slowest_axis=axis)
                assert forced is not None
                assert forced.axis_order[-1] == axis
                assert priced.free_s[0] + forced.communication_s == pytest.approx(costs[axis], rel=1e-6)


def test_a_candidate_that_no_fill_holds() -> None:
    problem = instance(0)
    placer, priced = rows_of(problem)[0]
    larger = replace(priced.settings, dp_shard=np.array([4096]))
    assert placer.place(larger, priced.work, 1.0) is None


def test_enough_ends_the_trial_of_fills_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleacross.solvers.place_parallelism.FILL_BLOCK", 1)
    cases = [
        case for case in rows_of(instance(7)) if len(case[0].fleet.fills_of(case[1].settings.decision(0).degrees)) > 2
    ]
    placer, priced = cases[0]
    full = placer.place(priced.settings, priced.work, 60.0)
    early = placer.place(priced.settings, priced.work, 60.0, enough_s=np.inf)
    assert full is not None
    assert early is not None
    assert full.complete
    assert not early.complete
    assert full.communication_s <= early.communication_s
