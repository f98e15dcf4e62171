"""Every baseline makes its documented choice. Its decision is legal, fits in memory and lies in the search space."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise, permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from instances import accelerator, instance, mixed_instance, plain_building, plain_job, plain_topology, plain_trunk
from oracles import exhaustive as oracle
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.solvers.baselines import BASELINES, Clock, Outcome, family
from scaleacross.solvers.baselines.atlas import walk
from scaleacross.solvers.baselines.family import Family, tune
from scaleacross.solvers.baselines.own_model import Rows, fitting_rows
from scaleacross.solvers.baselines.rules import MEGATRON_ORDER
from scaleacross.solvers.baselines.sailor import visit
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.pools import AcceleratorPool, Allocation, pools, shares
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.parallelism import GRID_AXES, Degrees
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision
from scaleacross.verification import does_not_fit, illegal
from scaleacross.workloads.problem import Problem, problem_of

FAR = ("campus", "region")


def decide(name: str, problem: Problem) -> Outcome:
    return BASELINES[name].decide(problem, Clock(60))


def decided(name: str, problem: Problem) -> tuple[Decision, PlanCost]:
    outcome = decide(name, problem)
    assert outcome.decision is not None, outcome.reason
    assert outcome.complete
    return outcome.decision, estimated(problem, outcome.decision)


def estimated(problem: Problem, decision: Decision) -> PlanCost:
    return plan_cost(problem.job, problem.profile, problem.topology, decision)


def chain(*num_hosts: int, latency_us: float, gbyte_per_s: float = 20.0, apart: bool = True) -> dict[str, Any]:
    """Plain buildings in a chain. ``apart`` puts each in a region of its own."""
    trunks = [plain_trunk(f"b{i}", f"b{i + 1}", gbyte_per_s, latency_us) for i in range(len(num_hosts) - 1)]
    return plain_topology(*num_hosts, apart=apart) | {"trunks": trunks}


def problem(*num_hosts: int, latency_us: float = 20.0, apart: bool = True, **changes: Any) -> Problem:
    return problem_of(plain_job(topology=chain(*num_hosts, latency_us=latency_us, apart=apart), **changes))


ALL_ACCELERATORS = {"num_accelerators": 32}


def test_production_keeps_replicas_whole_and_lets_only_their_gradients_cross() -> None:
    decision, cost = decided("production", problem(4, 4, **ALL_ACCELERATORS))
    assert decision.degrees.dp_replicate > 1
    assert decision.placement is not None and decision.placement.axis_order[-1] == "dp_replicate"
    assert [axis for axis, level in cost.placement.spans.items() if level in FAR] == ["dp_replicate"]
    assert cost.placement.spans.get("pp", "scale_up") in ("scale_up", "rack", "zone")


def test_production_has_no_plan_when_a_replica_fits_in_no_building(monkeypatch: pytest.MonkeyPatch) -> None:
    degrees = {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 16, "dp_replicate": 1}
    monkeypatch.setattr(Bounder, "coarse", lambda *_: pytest.fail("priced what no building holds"))
    outcome = decide("production", problem(2, 2, degrees=degrees))
    assert outcome.decision is None
    assert outcome.reason == "no placement keeps its axes inside the levels that it allows"


def test_megatron_order_fills_hosts_by_name_whatever_the_file_says() -> None:
    topology = chain(2, 3, latency_us=20.0)
    topology["regions"] = topology["regions"][::-1]
    decision, _ = decided("megatron_order", problem_of(plain_job(topology=topology, num_accelerators=16)))
    assert decision.placement is not None
    assert decision.placement.axis_order == ("tp", "cp", "dp_shard", "dp_replicate", "pp")
    assert [(share.building, share.num_accelerators) for share in decision.placement.fill] == [("b0", 8), ("b1", 8)]
    assert 1 in (decision.degrees.dp_shard, decision.degrees.dp_replicate)


def test_sailor_keeps_data_parallelism_inside_a_region_and_takes_the_smallest_tp() -> None:
    where = problem(2, 2, 2, degrees={"pp": 4})
    decision, cost = decided("sailor", where)
    assert decision.degrees.tp == 1
    assert decision.pipeline.schedule == "1F1B"
    assert {axis for axis, level in cost.placement.spans.items() if level == "region"} <= {"pp"}


def test_models_of_baselines_know_tensor_parallelism_on_the_librarys_defaults() -> None:
    where = problem(2, degrees={"tp": 4, "pp": 1, "dp_shard": 1}, recompute="none")
    [pool] = pools(where.topology)
    rows = fitting_rows(where, pool)
    assert isinstance(rows, Rows)
    for row in range(len(rows.stage_s)):
        decision = rows.candidates.decision(row)
        placement = Placement(axis_order=MEGATRON_ORDER, fill=shares((("b0", decision.degrees.world_size),)))
        cost = estimated(where, decision.model_copy(update={"placement": placement})).cost
        whole_s = float(rows.stage_s[row] * rows.candidates.num_micro_batches[row])
        assert whole_s == pytest.approx(cost.compute_s + cost.exposed_s["tp"])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_recursion_of_sailor_finds_the_cheapest_walk(data: st.DataObject) -> None:
    names = "abcd"[: data.draw(st.integers(1, 4))]
    capacities = {name: data.draw(st.integers(0, 5)) for name in names}
    hops = {(a, b): float(data.draw(st.integers(1, 9))) for a in names for b in names if a != b}
    num_stages = data.draw(st.integers(1, 12))
    found = visit(num_stages, capacities, hops)
    costs = []
    for order in permutations(names):
        left, used = num_stages, []
        for name in order:
            if left > 0 and capacities[name]:
                used.append(name)
                left -= capacities[name]
        steps = [hops[pair] for pair in pairwise(used)]
        if left <= 0:
            costs.append((max(steps, default=0.0), sum(steps)))
    if not costs:
        assert found is None
    else:
        assert found is not None
        assert found.max_s == min(costs)[0]
        assert sum(count for _, count in found.stages) == num_stages


def test_atlas_walks_the_stages_through_the_sites_largest_first() -> None:
    buildings = pools(problem(2, 5, 3).topology)[0].buildings
    assert walk(buildings, 9, 4) == (("b1", 20), ("b2", 12), ("b0", 4))
    assert walk(buildings, 3, 16) is None  # capacities 20, 12 and 8 hold one stage of 16 in all
    decision, cost = decided("atlas", problem(2, 5, 3, degrees={"pp": 8}))
    assert decision.placement is not None and decision.placement.fill[0].building == "b1"
    assert {axis for axis, level in cost.placement.spans.items() if level in FAR} <= {"pp"}


def test_arnold_keeps_pipeline_groups_inside_minipods() -> None:
    where = problem(4, 4, apart=False, degrees={"tp": 4, "cp": 1, "pp": 4}, **ALL_ACCELERATORS)
    decision, cost = decided("arnold", where)
    assert decision.placement is not None
    assert decision.placement.axis_order.index("pp") < decision.placement.axis_order.index("dp_shard")
    assert cost.placement.spans["pp"] == "zone"  # a zone is a minipod of four hosts


def test_crosspipe_lets_the_pipeline_cross_in_whole_stages() -> None:
    where = problem(2, 4, degrees={"pp": {"min": 3, "max": 8}}, num_accelerators=24)
    decision, cost = decided("crosspipe", where)
    assert {axis for axis, level in cost.placement.spans.items() if level in FAR} == {"pp"}
    stage = decision.degrees.world_size // decision.degrees.pp
    assert all(share.num_accelerators % stage == 0 for share in cost.placement.fill[:-1])


def test_crosspipe_changes_the_schedule_with_the_delay() -> None:
    fixed = {"tp": 1, "cp": 1, "pp": 4, "dp_shard": 4, "dp_replicate": 1}
    pins = {"degrees": fixed, "micro_batch_sequences": 1, "recompute": "none"}
    near, far = (decided("crosspipe", problem(2, 2, latency_us=us, **pins))[0] for us in (1.0, 50_000.0))
    assert near.pipeline.schedule == "Interleaved1F1B"
    assert far.pipeline.schedule == "GPipe"


@each("seed", (4,), (6, 9, 13, 35, 50), size=2)
def test_decisions_are_legal_and_fit(seed: int) -> None:
    where = instance(seed)
    for name in BASELINES:
        outcome = decide(name, where)
        if outcome.decision is None:
            assert outcome.reason
            continue
        broken = [line for line in illegal(where, outcome.decision) if "pins" not in line and "allows" not in line]
        assert not broken, name
        assert not list(does_not_fit(estimated(where, outcome.decision).memory)), name


BOTH_ENDS = (GRID_AXES, tuple(reversed(GRID_AXES)))
LIMITS: list[tuple[int, dict[str, LinkLevel]]] = [
    (4, {"dp_shard": "rack", "pp": "rack"}),
    (50, {"tp": "scale_up", "pp": "zone"}),
    (71, {"pp": "scale_up", "dp_replicate": "zone"}),
]


@pytest.mark.parametrize(
    ("seed", "farthest"),
    [pytest.param(*one, marks=pytest.mark.slow if at else pytest.mark.heavy) for at, one in enumerate(LIMITS)],
)
def test_tuning_finds_the_fastest_member_of_a_family(seed: int, farthest: dict[str, LinkLevel]) -> None:
    """The tuner's plan is as fast as the best of all plans of the family, each of which is tried."""
    where = instance(seed)
    found = tune(where, Family(where.job, BOTH_ENDS, allocations_of_stages, farthest=farthest), Clock(60)).decision
    assert found is not None
    best = min(cost.cost.step_s for cost in members(where, farthest))
    assert estimated(where, found).cost.step_s == pytest.approx(best, rel=1e-9)


@pytest.mark.heavy
def test_every_fleet_is_sampled_before_a_baseline_goes_on_with_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each baseline samples every accelerator pool before it searches any pool further.

    Otherwise a time limit could leave a baseline with the mixed pool only.
    """
    seen, on_partials, num_fleets = list[tuple[str, ...]](), family._Tuning._on_partials, []

    def watched(tuning: Any, partials: Any, space: Any, bounder: Bounder) -> Any:
        seen.append(tuple(accelerator.name for accelerator in bounder.pool.accelerators))
        return on_partials(tuning, partials, space, bounder)

    monkeypatch.setattr(family._Tuning, "_on_partials", watched)
    for where in map(mixed_instance, range(12)):
        seen.clear()
        decide("crosspipe", where)
        num_fleets.append(len(set(seen)))
        assert len(set(seen[: num_fleets[-1]])) == num_fleets[-1]
    assert max(num_fleets) >= 2


def allocations_of_stages(pool: AcceleratorPool, degrees: Degrees) -> list[Allocation]:
    return pool.allocations(degrees.world_size, [degrees.world_size // degrees.pp])


def members(where: Problem, farthest: dict[str, LinkLevel]) -> Iterator[PlanCost]:
    """All plans of the family that fit in memory."""
    for pool in pools(where.topology):
        for candidate in oracle.candidates(where, pool):
            for allocation, order in product(allocations_of_stages(pool, candidate.degrees), BOTH_ENDS):
                placement = Placement(axis_order=order, fill=shares(allocation))
                cost = estimated(where, candidate.model_copy(update={"placement": placement}))
                reach = {axis: LINK_LEVELS.index(level) for axis, level in cost.placement.spans.items()}
                near = all(reach.get(axis, 0) <= LINK_LEVELS.index(level) for axis, level in farthest.items())
                if near and not list(does_not_fit(cost.memory)):
                    yield cost


def test_nothing_fits_is_said_with_numbers() -> None:
    where = tiny()
    for name in BASELINES:
        outcome = decide(name, where)
        assert outcome.decision is None
        assert "does not fit in memory" in outcome.reason, name


def tiny() -> Problem:
    building = plain_building("b0", 2, accelerator=accelerator(random.Random(0), "small", 17))
    topology = {"name": "tiny", "regions": [{"name": "r", "buildings": [building]}]}
    return problem_of(plain_job(topology=topology))


def test_an_ended_clock_is_reported() -> None:
    outcome = BASELINES["production"].decide(problem(4, 4), Clock(0.0))
    assert not outcome.complete
    assert outcome.decision is None
    assert "the limit ended its rule" in outcome.reason


def test_who_has_no_plan_gets_twice_the_time() -> None:
    now = iter((0.0, 0.9, 0.9, 1.1, 1.1, 2.1))
    clock, plan = Clock(1.0, lambda: next(now)), decided("production", problem(4, 4))[0]
    assert [clock.is_over_for(one) for one in (plan, None, plan, None, None)] == [False, False, True, False, True]


def test_a_job_that_pins_cp_is_not_for_planners_without_it() -> None:
    for name in ("sailor", "atlas"):
        outcome = decide(name, problem(2, 2, degrees={"cp": 2}))
        assert outcome.decision is None
        assert "cp" in outcome.reason
