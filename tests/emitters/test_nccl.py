"""NCCL settings agree with hand arithmetic, and defaults that suffice are left out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import building, make_plan, two_buildings

from scaleacross.emitters import EMITTERS
from scaleacross.emitters.crossed_levels import crossed_levels
from scaleacross.emitters.nccl import ack_timeout, environment
from scaleacross.emitters.nccl_variables import VARIABLES, buffer_bytes
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.spec.network import Trunk
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Region, Topology
from scaleacross.workloads.problem import problem_of

MIB = 2**20


def plan_over(latency_s: float, load_balancing: str = "ecmp") -> Plan:
    """tp inside hosts, pp over 2 + 3 hosts of two buildings ``latency_s`` apart."""
    return make_plan(Degrees(tp=4, pp=5), topology=two_buildings(latency_s=latency_s, load_balancing=load_balancing))


def decided(plan: Plan, *connections: tuple[str, int, int, int, str], num_channels: int = 2) -> Plan:
    """The plan with a choice for its pipeline messages: level, queue pairs, segment, outstanding, load balancing."""
    names = ("level", "queue_pairs", "segment_bytes", "outstanding", "load_balancing")
    choice = CommunicatorChoice.model_validate(
        {
            "communicator": "pp",
            "op": "send",
            "payload": "activations",
            "algorithm": "point_to_point",
            "chunk_bytes": 1e6,
        }
        | {"num_channels": num_channels, "connections": [dict(zip(names, one, strict=True)) for one in connections]}
    )
    return plan.model_copy(update={"decision": plan.decision.model_copy(update={"network": (choice,)})})


def settings(plan: Plan) -> dict[str, str]:
    return {variable.name: variable.value for variable in environment(plan)}


def test_figures_of_crossed_levels() -> None:
    levels = {figures.level: figures for figures in crossed_levels(plan_over(1e-3))}
    assert set(levels) == {"scale_up", "campus"}
    assert levels["campus"].axes == ("pp",)
    assert levels["campus"].round_trip_s == pytest.approx(2e-3)
    assert levels["campus"].in_flight_bytes == pytest.approx(100e6)  # 50 GB/s × 2 ms


def test_levels_on_the_way_of_a_decision_are_explained_too() -> None:
    """Levels that a decision passes are explained too.

    A pipeline across buildings also crosses zones. The reason for their setting states rate and round trip, not a level
    name.
    """
    plan = decided(plan_over(1e-3), ("building", 16, MIB, 12, "spray"))
    assert [figures.level for figures in crossed_levels(plan)] == ["scale_up", "building", "campus"]
    (reason,) = (one.why for one in environment(plan) if one.name == "NCCL_CTRAN_IB_QP_CONFIG_XZONE")
    assert "round trip = " in reason and "(across building" not in reason


def test_a_long_window_by_hand() -> None:
    # 16 × 12 MiB over 2 channels: 96 MiB each -> capped at 64 MiB, which has 8 MiB steps: 16 pieces of 512 KiB for all 16 flows
    plan = decided(plan_over(1e-3), ("campus", 16, MIB, 12, "spray"))
    assert settings(plan) == {
        "NCCL_BUFFSIZE": "67108864",
        "NCCL_IB_QPS_PER_CONNECTION": "16",
        "NCCL_IB_SPLIT_DATA_ON_QPS": "1",
        "NCCL_CTRAN_IB_QP_CONFIG_XDC": "1048576,16,spray,12",
    }


def test_a_short_window_leaves_the_buffer_alone() -> None:
    # 16 × 256 KiB over 2 channels: 2 MiB each, less than the default of 4 MiB, whose 512 KiB steps make 8 pieces of 64 KiB
    plan = decided(plan_over(20e-6), ("campus", 16, MIB // 4, 1, "spray"))
    assert settings(plan) == {
        "NCCL_IB_QPS_PER_CONNECTION": "8",
        "NCCL_IB_SPLIT_DATA_ON_QPS": "1",
        "NCCL_CTRAN_IB_QP_CONFIG_XDC": "262144,16,spray,1",
    }
    assert "NCCL_BUFFSIZE: no channel keeps more than 4 MiB" in EMITTERS["nccl"](plan)["nccl_explain.md"]


def test_a_plan_without_a_network_sets_nothing() -> None:
    assert settings(plan_over(1e-3)) == {}
    assert "the plan decides no network" in EMITTERS["nccl"](plan_over(1e-3))["nccl_explain.md"]


def test_the_largest_of_all_communicators_holds() -> None:
    plan = decided(plan_over(1e-3), ("campus", 16, MIB, 3, "spray"))
    other = decided(plan_over(1e-3), ("campus", 16, MIB, 5, "spray")).decision.network or ()
    both = (*(plan.decision.network or ()), other[0].model_copy(update={"payload": "more"}))
    plan = plan.model_copy(update={"decision": plan.decision.model_copy(update={"network": both})})
    assert settings(plan)["NCCL_CTRAN_IB_QP_CONFIG_XDC"] == "1048576,16,spray,5"


def test_what_the_search_decides_is_what_is_written() -> None:
    plan = plan_over(5e-3)
    network = with_network(problem_of(plan.job), plan.decision).decision.network or ()
    [far] = [one for choice in network for one in choice.connections if one.level == "campus"]
    assert far.window_bytes >= crossed_levels(plan)[-1].in_flight_bytes * 0.9  # the share of line rate that is reached
    own = plan.model_copy(update={"decision": plan.decision.model_copy(update={"network": network})})
    value = f"{far.segment_bytes},{far.queue_pairs},spray,{far.outstanding}"
    assert settings(own)["NCCL_CTRAN_IB_QP_CONFIG_XDC"] == value


def test_no_hashing_no_extra_queue_pairs() -> None:
    plan = decided(plan_over(20e-6, "adaptive-routing"), ("campus", 2, MIB // 2, 8, "ecmp"))
    assert set(settings(plan)) == {"NCCL_CTRAN_IB_QP_CONFIG_XDC"}


def test_a_plan_inside_one_host_needs_nothing() -> None:
    plan = make_plan(Degrees(tp=4), topology=two_buildings())
    assert settings(plan) == {}
    assert "the defaults carry every link above" in EMITTERS["nccl"](plan)["nccl_explain.md"]


def test_zones_of_one_building_get_the_xzone_setting() -> None:
    plan = make_plan(Degrees(tp=4, pp=3), topology=two_buildings((3, 1)), allocation=[("east", 12)])
    assert plan.placement.spans["pp"] == "building"
    plan = decided(plan, ("rack", 2, MIB // 2, 8, "ecmp"), ("building", 16, 131072, 1, "spray"))
    assert settings(plan)["NCCL_CTRAN_IB_QP_CONFIG_XZONE"] == "131072,16,spray,1"
    assert "NCCL_CTRAN_IB_QP_CONFIG_XDC" not in settings(plan)


def test_campus_and_region_have_their_own_longest_path() -> None:
    """Campus and region use their own longest path.

    a–b is 20 µs in one region, b–c 1 ms and c–d 30 µs. The longest path between regions is a–d: 1.05 ms one way over
    three links.
    """
    pairs = {("a", "b"): 20e-6, ("b", "c"): 1e-3, ("c", "d"): 30e-6}
    topology = Topology(
        name="far",
        regions=(
            Region(name="one", buildings=(building("a", 1), building("b", 1))),
            Region(name="two", buildings=(building("c", 1), building("d", 1))),
        ),
        trunks=tuple(Trunk(between=pair, one_way_latency_s=latency) for pair, latency in pairs.items()),
    )
    plan = make_plan(
        Degrees(dp_shard=4, pp=2, dp_replicate=2), ("dp_shard", "pp", "dp_replicate", "tp", "cp"), topology=topology
    )
    assert (plan.placement.spans["pp"], plan.placement.spans["dp_replicate"]) == ("campus", "region")
    round_trip = {figures.level: figures.round_trip_s for figures in crossed_levels(plan)}
    assert round_trip["campus"] == pytest.approx(60e-6)
    assert round_trip["region"] == pytest.approx(2.1e-3)


@given(st.floats(0, 1e10))
def test_buffer_is_a_power_of_two_that_covers_the_need(in_flight_bytes: float) -> None:
    size = buffer_bytes(in_flight_bytes)
    assert size.bit_count() == 1
    assert 4 * MIB <= size <= 64 * MIB
    assert size >= in_flight_bytes or size == 64 * MIB
    assert size == 4 * MIB or size / 2 < in_flight_bytes


@pytest.mark.parametrize(("round_trip_s", "expected"), [(0.0, 1), (1e-3, 10), (0.1, 17), (1.0, 20), (2.0, 21)])
def test_ack_timeout(round_trip_s: float, expected: int) -> None:
    assert ack_timeout(round_trip_s) == expected
    assert 4.096e-6 * 2**expected >= 4 * round_trip_s


@given(st.floats(0, 5), st.sampled_from(["ecmp", "none"]))
def test_every_variable_is_known_explained_and_safe_to_source(latency_s: float, load_balancing: str) -> None:
    plan = decided(plan_over(latency_s, load_balancing), ("campus", 16, MIB, 256, "spray"))
    files = EMITTERS["nccl"](plan)
    lines = [line for line in files["nccl.env"].splitlines() if not line.startswith("#")]
    assert len(lines) == len(environment(plan))
    for variable, line in zip(environment(plan), lines, strict=True):
        assert re.fullmatch(r"[A-Z_]+=[A-Za-z0-9,]+", line)
        assert variable.name in VARIABLES
        assert re.search(r"\d", variable.why)
        assert f"| {variable.name} | `{variable.value}` |" in files["nccl_explain.md"]


def test_very_long_links_raise_the_ack_timeout_and_say_what_stays_short() -> None:
    plan = decided(plan_over(1.0), ("campus", 128, MIB, 256, "spray"))
    assert settings(plan)["NCCL_IB_TIMEOUT"] == "21"
    text = EMITTERS["nccl"](plan)["nccl_explain.md"]
    assert "capped at 64.0 MiB" in text
    assert "so stock NCCL needs 256 times the channels" in text
