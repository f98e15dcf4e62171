"""Failure domains, spare hosts and lost planes: constraints hold, degraded states have step times, refusals explain
themselves."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations
from typing import Any

import pytest

import scaleacross as sa
from instances import plain_job, plain_topology
from planned import planned
from scaleacross.api.summarising import summarise
from scaleacross.cost_models.failures import degraded_states, replicas_lost
from scaleacross.report.summary import plan_facts
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.placement import BuildingShare, Device, coordinates, devices
from scaleacross.verification import illegal, verify
from scaleacross.verification.failures import replicas_by_unit
from scaleacross.workloads.problem import problem_of

FOUR_REPLICAS = {"tp": 1, "cp": 1, "pp": 4, "dp_shard": 1, "dp_replicate": 4, "ep": 1}
NARROW: dict[str, Any] = {
    "degrees": FOUR_REPLICAS,
    "schedules": "1F1B",
    "shard": "none",
    "recompute": "none",
    "micro_batch_sequences": 1,
}


def domains(level: str, lost: int, **changes: Any) -> Job:
    """16 accelerators in two buildings of 8, with two hosts of 4 and one zone each.

    The job has 4 replicas of 4 stages.
    """
    limits = {"level": level, "max_replicas_lost": lost}
    return plain_job(2, 2, **NARROW, failure_domains=limits, **changes)


def test_replicas_are_kept_apart() -> None:
    """With pp across the buildings the loss of one building stops all four replicas. The least possible loss is two."""
    plan = planned(domains("building", 2))
    problem = problem_of(plan.job)
    lost = replicas_by_unit(problem.topology, plan.decision, "building")
    assert max(map(len, lost.values())) == 2
    assert plan.report.status == "optimal"
    assert plan.cost.step_s >= planned(domains("building", 4)).cost.step_s


def test_counting_by_arithmetic_equals_counting_rank_by_rank() -> None:
    problem = problem_of(domains("zone", 4))
    decision = planned(problem.job).decision
    for order in (("pp", "dp_replicate"), ("dp_replicate", "pp")):
        allocation = (
            BuildingShare(building="b0", num_accelerators=8),
            BuildingShare(building="b1", num_accelerators=8),
        )
        axes = ("tp", "cp", "dp_shard", *order)
        placed = decision.placement.model_copy(update={"axis_order": axes, "fill": allocation})  # type: ignore[union-attr]
        here = decision.model_copy(update={"placement": placed})
        counted = replicas_by_unit(problem.topology, here, "zone")
        found = replicas_lost(problem.topology, allocation, Degrees(**FOUR_REPLICAS), axes, "zone")  # type: ignore[arg-type]
        assert found == max(map(len, counted.values()))


@pytest.mark.heavy
def test_too_strict_says_what_a_plan_would_lose() -> None:
    with pytest.raises(
        sa.InfeasibleError, match=r"at most 1 replicas .* one building.*max_replicas_lost: \d"
    ) as caught:
        sa.plan(domains("building", 1), alternatives=False)
    assert "Conflict: degrees.dp_replicate 4 and failure_domains (at most 1 replicas lost with one building)" in str(
        caught.value
    )
    assert "leave failure_domains out" in str(caught.value)
    way_out = int(str(caught.value).split("max_replicas_lost: ")[1].split(",")[0])
    assert sa.plan(domains("building", way_out), alternatives=False).cost.step_s > 0


def test_verification_counts_the_replicas() -> None:
    plan = planned(domains("building", 4))
    problem = problem_of(domains("building", 1))
    assert any("V8: " in line and "at most 1 may" in line for line in illegal(problem, plan.decision))


@pytest.mark.slow
def test_spare_hosts_are_not_filled() -> None:
    plan = sa.plan(plain_job(3, 2, spare_hosts={"b0": 1, "b1": 1}), alternatives=False)
    used = {share.building: share.num_accelerators for share in plan.placement.fill}
    assert used.get("b0", 0) <= 8
    assert used.get("b1", 0) <= 4
    with pytest.raises(sa.InputError, match="no building 'b7'; there are b0, b1"):
        sa.plan(plain_job(3, 2, spare_hosts={"b7": 1}), alternatives=False)


@pytest.mark.heavy
def test_a_building_held_back_whole_is_planned_around() -> None:
    """A building whose hosts are all held back gets no accelerators.

    An earlier version refused it with "none is left to use".
    """
    plan = sa.plan(plain_job(3, 2, spare_hosts={"b1": 2}), alternatives=False)
    sa.verify(plan)
    alone = sa.plan(plain_job(3, 2, spare_hosts={"b0": 3}), alternatives=False)
    assert {share.building for share in plan.placement.fill} == {"b0"}
    assert {share.building for share in alone.placement.fill} == {"b1"}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"b1": 3}, "3 hosts of 'b1' are held back, and it has 2"),
        ({"b0": 3, "b1": 2, "b2": 2}, "every host of every building is held back"),
        ({"b1": 2}, "only buildings held back whole join 'b0' with b2: leave a host, or add a trunk"),
    ],
)
def test_no_topology_is_left_without_hosts_or_in_parts(held: dict[str, int], said: str) -> None:
    with pytest.raises(sa.InputError, match=said):
        problem_of(plain_job(3, 2, 2, spare_hosts=held))
    left = problem_of(plain_job(3, 2, 2, spare_hosts={"b0": 3})).topology
    assert ([one.name for one in left.buildings], len(left.trunks)) == (["b1", "b2"], 1)


def test_the_replicas_that_are_left_take_the_batch() -> None:
    """Surviving replicas take the batch of the lost ones.

    Two of 4 replicas are lost with a building. The 16 sequences are 8 micro-batches each instead of 4.
    """
    plan = planned(domains("building", 2))
    states = {state.what: state for state in plan.degraded}
    assert states["one building"].replicas_lost == 2
    twice = sa.evaluate((plain_job(2, 2, global_batch_sequences=32), plan.decision)).estimated.step_s
    assert states["one building"].step_s == pytest.approx(twice)


def test_nothing_is_left_when_every_replica_is_hit() -> None:
    plan = sa.plan(
        plain_job(2, 2, degrees={**FOUR_REPLICAS, "dp_replicate": 1}, schedules="1F1B", shard="none"),
        alternatives=False,
    )
    lost = {state.what: state for state in plan.degraded}["one building"]
    assert (lost.replicas_lost, lost.step_s) == (1, None)


def test_a_lost_plane_slows_its_level() -> None:
    topology = plain_topology(2, 2)
    topology["trunks"][0] |= {"num_planes": 2, "bandwidth_gbyte_per_s": 0.05}
    job = plain_job(topology=topology, **NARROW)
    plan = sa.plan(job, alternatives=False)
    assert len(plan.placement.fill) == 2
    problem = problem_of(job)
    states = degraded_states(problem.job, problem.profile, problem.topology, plan.decision)
    plane = next(state for state in states if state.what == "one of 2 planes between buildings")
    assert plane.step_s is not None
    assert plane.step_s > plan.estimated.step_s
    halved = plain_topology(2, 2)
    halved["trunks"][0] |= {"bandwidth_gbyte_per_s": 0.025}
    slower = sa.evaluate((plain_job(topology=halved), plan.decision)).estimated.step_s
    assert plane.step_s == pytest.approx(slower)


def test_where_states_are_sharded_only_whole_groups_survive() -> None:
    """Replicas with sharded states survive as whole groups only.

    Two groups of 2 sharded replicas use two buildings. Placed apart, one group survives a building; the fastest
    placement survives no host.
    """
    degrees = {"tp": 1, "cp": 1, "pp": 4, "dp_shard": 2, "dp_replicate": 2, "ep": 1}
    plan = sa.plan(plain_job(2, 2, degrees=degrees, schedules="1F1B", shard="optimizer"), alternatives=False)
    found = {}
    for order in (("pp", "dp_shard", "dp_replicate"), ("dp_replicate", "pp", "dp_shard")):
        allocation = (
            BuildingShare(building="b0", num_accelerators=8),
            BuildingShare(building="b1", num_accelerators=8),
        )
        placed = plan.placement.model_copy(update={"axis_order": ("tp", "cp", *order), "fill": allocation})
        states = sa.evaluate(
            (plan.job, plan.decision.model_copy(update={"placement": placed, "network": None}))
        ).degraded
        found[order[0]] = {state.what: state for state in states}
    apart, mixed = found["pp"], found["dp_replicate"]
    for what in ("one host", "one building", "the link b0–b1"):
        state = apart[what]
        assert (state.units_lost, state.replicas_lost, state.tokens_fraction) == (1, 2, 0.5)
        assert state.step_s is not None
        assert state.only_copies == 0
    assert mixed["one accelerator"].units_lost == 1
    assert (mixed["one host"].units_lost, mixed["one host"].step_s, mixed["one host"].tokens_fraction) == (2, None, 0)
    assert mixed["one host"].only_copies == 2, "the 4 accelerators of a host hold both copies of 2 shards"
    assert mixed["one building"].only_copies == 4


@pytest.mark.parametrize(
    ("sizes", "shard_order"),
    [
        pytest.param(sizes, order, marks=pytest.mark.heavy if (number + at) % 4 else ())
        for at, sizes in enumerate([(8, 8), (12, 4)])
        for number, order in enumerate(permutations(("pp", "dp_shard", "dp_replicate")))
    ],
)
def test_degraded_states_equal_killing_every_domain(shard_order: tuple[str, ...], sizes: tuple[int, int]) -> None:
    """Degraded states equal an enumeration that removes each accelerator, host, rack, zone and building once.

    It counts the groups with a whole state and the shards that are lost.
    """
    degrees = {"tp": 1, "cp": 1, "pp": 2, "dp_shard": 2, "dp_replicate": 4, "ep": 1}
    job = plain_job(3, 2, degrees=degrees, schedules="1F1B", shard="optimizer", global_batch_sequences=24)
    allocation = tuple(BuildingShare(building=f"b{n}", num_accelerators=size) for n, size in enumerate(sizes))
    decision = planned(job).decision
    axes = ("tp", "cp", *shard_order)
    placed = decision.placement.model_copy(update={"axis_order": axes, "fill": allocation})
    decision = decision.model_copy(update={"placement": placed, "network": None})
    evaluated = sa.evaluate((job, decision))
    where = [coordinates(Degrees(**degrees), axes, global_rank) for global_rank in range(16)]
    shard = [(at["pp"], at["dp_shard"]) for at in where]
    for level in ("accelerator", "host", "rack", "zone", "building"):
        domain = [domain_of(device, level) for device in devices(problem_of(job).topology, placed)]
        left, gone = [], []
        for dead in set(domain):
            alive = [global_rank for global_rank in range(16) if domain[global_rank] != dead]
            units = Counter(where[global_rank]["dp_replicate"] for global_rank in alive)
            left.append(sum(number == 4 for number in units.values()))
            gone.append(len(set(shard) - {shard[global_rank] for global_rank in alive}))
        state = next(one for one in evaluated.degraded if one.what == f"one {level}")
        assert (state.units_lost, state.tokens_fraction) == (4 - min(left), min(left) / 4)
        assert state.replicas_lost == 2 * state.units_lost
        assert state.only_copies == max(gone)
        if not min(left):
            assert state.step_s is None
            continue
        micro_batches = decision.pipeline.micro_batch_sequences
        each = math.ceil(24 // (8 * micro_batches) * 4 / min(left))
        longer = sa.evaluate((job.model_copy(update={"global_batch_sequences": each * 8 * micro_batches}), decision))
        assert state.step_s == pytest.approx(longer.estimated.step_s)


def domain_of(device: Device, level: str) -> tuple[object, ...]:
    inside = {"accelerator": 4, "host": 3, "rack": 2, "zone": 1, "building": 0}[level]
    return (device.building, device.zone, device.rack, device.host, device.local)[: inside + 1]


def test_verification_counts_units_on_hosts() -> None:
    plan = sa.plan(plain_job(2, 2, **NARROW, reliability={}), alternatives=False)
    assert plan.goodput is not None
    strikes = tuple(one.model_copy(update={"units_hit": 4}) for one in plan.goodput.model.strikes)
    wrong = plan.goodput.model_copy(
        update={"goodput_fraction": 0.5, "model": plan.goodput.model.model_copy(update={"strikes": strikes})}
    )
    with pytest.raises(sa.VerificationError, match=r"V11: goodput_fraction is stated as 0.5(?s:.)*hit 4 fault units"):
        verify(plan.model_copy(update={"goodput": wrong}))


@pytest.mark.parametrize(("spares", "repair_hours"), [(0, 48), (200, 48)])
def test_an_older_plan_that_let_one_unit_wait_is_refused_with_the_way_out(spares: int, repair_hours: float) -> None:
    """An old plan whose single unit waits for a host is refused, and the message says how to fix it.

    The plan does not state how many hosts its units have. It still verifies if spare hosts never run out.
    """
    topology = plain_topology(60, 60) | {"reliability": {"host_mtbf_hours": 400, "repair_hours": repair_hours}}
    job = plain_job(
        topology=topology,
        **NARROW,
        reliability={"spares": min(spares, 120), "recover_s": 60, "stall_s": 10},
    )
    plan = sa.plan(job, alternatives=False, work_limit=20, simulated=False)
    assert plan.goodput is not None and "idle_hosts_fail" in plan.goodput.assumed
    older = plan.goodput.model_copy(update={"model": plan.goodput.model.model_copy(update={"num_hosts": None})})
    if spares:
        verify(plan.model_copy(update={"goodput": older}))
        return
    one_waits = older.model_copy(update={"goodput_fraction": 0.8})
    with pytest.raises(sa.VerificationError, match=r"older version(?s:.)*80\.0%(?s:.)*scaleacross evaluate"):
        verify(plan.model_copy(update={"goodput": one_waits}))


@pytest.mark.parametrize(
    ("hosts", "held", "free"), [(2, {}, 0), pytest.param(4, {"b0": 1}, 4, marks=pytest.mark.heavy)]
)
@pytest.mark.parametrize("spares", ["auto", pytest.param(2, marks=pytest.mark.heavy)])
def test_spare_hosts_that_the_fleet_lacks_are_said(spares: object, hosts: int, held: dict[str, int], free: int) -> None:
    """The plan says how many spare hosts the topology lacks.

    It uses four hosts of a topology with four, or with eight of which one is held back.
    """
    topology = plain_topology(hosts, hosts) | {"reliability": {"host_mtbf_hours": 2000, "repair_hours": 48}}
    job = plain_job(topology=topology, reliability={"spares": spares}, spare_hosts=held, **NARROW)
    plan = sa.plan(job, alternatives=False, work_limit=20, simulated=False)
    found = plan.goodput
    assert found is not None and (found.model.num_hosts, found.hosts_free) == (4, free)
    assert found.spares_taken == (2 if spares == 2 else found.spares_advised) > 0
    assert found.spares_lacking == max(0, found.spares_taken - free)
    assert ("spares" in found.assumed) == (free == 0)
    told = "\n".join(text for _, text in plan_facts(plan, summarise(plan)))
    assert ("with 2 spare hosts beyond the topology" in told) == (free == 0)
