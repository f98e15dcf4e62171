"""launch.json: ranks are a bijection, groups partition them, and rings cross each level as rarely as possible."""

from __future__ import annotations

import csv
import io
import json
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import make_plan, spans, two_buildings, unit

from scaleacross.emitters.launch import launch_config, launch_json, plan_sha256, render
from scaleacross.emitters.rank_order import plan_topology
from scaleacross.errors import EmitError
from scaleacross.spec.launch import ALL_AXES, LaunchConfig
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.parallelism import GRID_AXES, Axis, Degrees, GridAxis
from scaleacross.spec.placement import devices
from scaleacross.spec.plan import Plan

ORDERS = sorted(permutations(GRID_AXES))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans with any degrees up to 48 processes, any axis order, and allocations that end at any host."""
    small = st.sampled_from([1, 2, 3])
    degrees = Degrees(
        tp=draw(st.sampled_from([1, 2, 4])), cp=draw(st.sampled_from([1, 2])), dp_shard=draw(st.sampled_from([1, 2, 4])),
        dp_replicate=draw(small), pp=draw(small), ep=1,
    )  # fmt: skip
    degrees = degrees.model_copy(
        update={"ep": draw(st.sampled_from([e for e in (1, 2, 4) if degrees.dp_shard % e == 0]))}
    )
    hosts = -(-degrees.world_size // 4)
    first = draw(st.integers(1, hosts))
    topology = two_buildings((first, hosts))
    in_first = min(first * 4, degrees.world_size)
    allocation = [("east", in_first), ("west", degrees.world_size - in_first)]
    allocation = [share for share in allocation if share[1]]
    if draw(st.booleans()):
        allocation.reverse()
    return make_plan(degrees, draw(st.sampled_from(ORDERS)), topology=topology, allocation=allocation)


@given(plans())
def test_groups_partition_the_ranks_and_vary_one_axis(plan: Plan) -> None:
    config = launch_config(plan)
    for axis in ALL_AXES:
        groups = config.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(config.world_size))
        assert {len(group) for group in groups} == {plan.degrees.of(axis)}
        for group in groups:
            varying = {a for a in GRID_AXES if len({config.coordinates(rank)[a] for rank in group}) > 1}
            assert varying <= {"dp_shard" if axis == "ep" else axis}


@given(plans())
def test_ranks_are_positions_and_devices_a_bijection(plan: Plan) -> None:
    config = launch_config(plan)
    where = list(devices(plan_topology(plan), plan.placement))
    assert len({row[:2] for row in config.ranks}) == config.world_size
    for rank, device in enumerate(where):
        host = config.host(rank)
        assert (host.name, host.building, host.zone, host.rack) == (
            f"{device.building}-h{device.host:05d}",
            device.building,
            device.zone,
            device.rack,
        )
        assert config.ranks[rank][1] == device.local


@pytest.mark.heavy
@given(plans())
def test_rings_enter_every_unit_once(plan: Plan) -> None:
    """A closed ring over u ≥ 2 units needs u crossings between them; one unit needs none."""
    config, topology = launch_config(plan), plan_topology(plan)
    where = list(devices(topology, plan.placement))
    for axis in ALL_AXES:
        for group in config.groups(axis):
            for level in LINK_LEVELS[:-1]:
                units = [unit(topology, where[rank], level) for rank in group]
                crossings = sum(here != there for here, there in zip(units, units[1:] + units[:1], strict=True))
                assert crossings == (len(set(units)) if len(set(units)) > 1 else 0)


@pytest.mark.heavy
@given(plans())
def test_levels_are_those_of_the_placement(plan: Plan) -> None:
    """Levels of axes equal an independent count. Each group's level is the smallest unit that holds it."""
    config, topology = launch_config(plan), plan_topology(plan)
    where = list(devices(topology, plan.placement))
    expected = spans(topology, plan.placement, plan.degrees)
    for groups in config.process_groups:
        if groups.axis != "ep":
            assert groups.level == expected[groups.axis]
        for ranks, level in zip(groups.ranks, groups.levels, strict=True):
            smallest = next(
                one for one in LINK_LEVELS if len({unit(topology, where[rank], one) for rank in ranks}) == 1
            )
            assert level == smallest


def test_hand_made_groups_on_unequal_buildings() -> None:
    # 20 global ranks: east h0 0-3, h1 4-7; west h0 8-11, h1 12-15, h2 16-19. tp 4 is a host, pp 5 covers the hosts.
    config = launch_config(make_plan(Degrees(tp=4, pp=5), ("tp", "pp", "cp", "dp_shard", "dp_replicate")))
    assert config.groups("pp") == [[0, 4, 8, 12, 16], [1, 5, 9, 13, 17], [2, 6, 10, 14, 18], [3, 7, 11, 15, 19]]
    by_axis = {groups.axis: groups for groups in config.process_groups}
    assert (by_axis["tp"].level, by_axis["pp"].level) == ("scale_up", "campus")
    assert [(host.name, host.zone, host.rack) for host in config.hosts] == [
        ("east-h00000", 0, 0), ("east-h00001", 0, 1), ("west-h00000", 0, 0), ("west-h00001", 0, 1), ("west-h00002", 1, 0),
    ]  # fmt: skip


def test_collectives_stay_with_their_axis() -> None:
    config = launch_config(make_plan(Degrees(tp=4, pp=5)))
    for groups in config.process_groups:
        assert [collective.axis for collective in groups.collectives] == [groups.axis]
        assert groups.collectives[0].time_s == 1e-3


def test_files_read_back_and_agree() -> None:
    plan = make_plan(Degrees(tp=2, dp_shard=4, pp=2, ep=2))
    files = render(plan)
    assert set(files) == {"launch.json", "ranks.csv"}
    config = LaunchConfig.model_validate_json(files["launch.json"])
    assert config == launch_config(plan)
    rows = list(csv.DictReader(io.StringIO(files["ranks.csv"])))
    assert len(rows) == config.world_size
    for rank, row in enumerate(rows):
        assert (int(row["rank"]), row["host"], int(row["local"])) == (
            rank,
            config.host(rank).name,
            config.ranks[rank][1],
        )
        at: dict[Axis, int] = {axis: int(row[axis]) for axis in ALL_AXES}
        assert at == config.coordinates(rank)


def test_json_matches_the_published_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    text = launch_json(launch_config(make_plan(Degrees(tp=2, dp_shard=4, pp=2, ep=2))))
    jsonschema.Draft202012Validator(LaunchConfig.model_json_schema()).validate(json.loads(text))


def test_hash_follows_the_plan() -> None:
    plan = make_plan(Degrees(tp=4, pp=5))
    assert plan_sha256(plan) == plan_sha256(Plan.model_validate_json(plan.model_dump_json()))
    assert plan_sha256(plan) != plan_sha256(make_plan(Degrees(tp=4, pp=5), num_micro_batches=16))


@pytest.mark.slow
def test_launch_json_of_16384_ranks_is_small() -> None:
    order: tuple[GridAxis, ...] = ("tp", "dp_shard", "pp", "dp_replicate", "cp")
    topology = two_buildings((2500, 1596))
    plan = make_plan(
        Degrees(tp=8, dp_shard=8, pp=16, dp_replicate=16), order, topology=topology, global_batch_sequences=1024
    )
    assert len(render(plan)["launch.json"]) < 3_000_000


def test_a_building_used_twice_is_refused() -> None:
    plan = make_plan(Degrees(tp=4, dp_shard=2), topology=two_buildings((2, 2)), allocation=[("east", 4), ("east", 4)])
    with pytest.raises(EmitError, match="4 different devices to 8 processes"):
        launch_config(plan)
