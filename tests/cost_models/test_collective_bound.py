"""Lower bounds of collectives for any algorithm: by hand, and below every option on drawn topologies."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import GB, LATENCIES, RATES, allocation, building, topology, trunk

from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.levels import BUILDING, CAMPUS, REGION, SCALE_UP, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.network.collective_bound import Tiling, least_s
from scaleacross.cost_models.network.options import options
from scaleacross.simulation.calls import Calls
from scaleacross.simulation.connections import Way
from scaleacross.simulation.machine import Machine, build_machine
from scaleacross.simulation.segments import Segment
from scaleacross.spec.network import CURVE_OPS, CurveOp
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.placement import Placement
from scaleacross.spec.topology import Topology

S = 12e9
REDUCTIONS: Final[tuple[CurveOp, ...]] = ("all_gather", "reduce_scatter", "all_reduce")


def tiling(whole: Topology, degree: int, stride: int = 1) -> Tiling:
    used = allocation(*((one.name, one.num_accelerators) for one in whole.buildings))
    return Tiling(whole, used, build_levels(whole, used), degree, stride)


def triangle(third_gbyte_per_s: float) -> Topology:
    """Three buildings of 8, 1 ms apart. Two links have 5 GB/s, the third ``third_gbyte_per_s``."""
    third = trunk("a", "c", bandwidth_bytes_per_s=third_gbyte_per_s * GB)
    return topology([building(name, 2) for name in "abc"], trunks=[trunk("a", "b"), trunk("b", "c"), third])


@pytest.mark.parametrize(
    ("op", "third", "seconds"),
    [
        ("all_gather", 5, S * 2 / 3 / (10 * GB)),
        ("reduce_scatter", 1, S * 2 / 3 / (6 * GB)),  # into a and c: 5 and 1
        ("all_reduce", 5, 4 * S / (30 * GB)),  # all three together
        ("all_reduce", 1, 4 * S / (22 * GB)),
        ("all_to_all", 5, S * 8 * 16 / 24 / (10 * GB)),
    ],
)
def test_a_building_takes_in_over_all_of_its_trunks(op: CurveOp, third: float, seconds: float) -> None:
    found, level = least_s(op, S, tiling(triangle(third), 24), None)
    assert (found, level) == (pytest.approx(seconds + 1e-3), CAMPUS)


def test_all_groups_share_a_building_and_unequal_zones_count_by_themselves() -> None:
    # 8 groups of 3, one rank in each building
    found, level = least_s("all_gather", S, tiling(triangle(5), 3, 8), None)
    assert (found, level) == (pytest.approx(8 * S * 2 / 3 / (10 * GB) + 1e-3), CAMPUS)
    # zones of 24 and 8; between them 24 adapters at an eighth of their rate; the small zone lacks 24/32 of the gathered bytes
    own = topology([building("a", 8, oversubscription=(1, 1, 1, 8))])
    found, level = least_s("all_gather", S, tiling(own, 32), None)
    assert (found, level) == (pytest.approx(S * 24 / 32 / (24 * RATES[3] / 8) + LATENCIES[3]), BUILDING)


def test_a_region_takes_in_over_the_trunks_that_lead_to_others() -> None:
    wires = [trunk("a", "b", bandwidth_bytes_per_s=90 * GB), trunk("a", "c", 5e-3), trunk("b", "c", 7e-3)]
    whole = topology([building("a", 2), building("b", 2)], [building("c", 2)], trunks=wires)
    found, level = least_s("all_gather", S, tiling(whole, 24), None)
    assert (found, level) == (pytest.approx(S * 2 / 3 / (10 * GB) + 5e-3), REGION), "into c; a is 5 ms away"
    found, level = least_s("all_reduce", S, tiling(whole, 24), None)
    assert (found, level) == (pytest.approx(2 * S / (20 * GB) + 5e-3), REGION)
    found, _ = least_s("all_gather", 1.0, tiling(whole, 24), None)
    assert found == pytest.approx(6e-3, rel=1e-6), "the path from b to c goes through a"


def test_bytes_of_far_ranks_travel_while_those_of_near_ones_come_in() -> None:
    """Bytes of near ranks arrive while those of distant ranks travel.

    In a chain a – b – c, b's 4 parts of 9 keep the link into c busy. Those of a arrive 2 ms later.
    """
    wires = [trunk("a", "b", 2e-3), trunk("b", "c", 1e-3)]
    whole = topology([building(name, 1) for name in "abc"], trunks=wires)
    found, _ = least_s("all_gather", S, tiling(whole, 12), None)
    assert found == pytest.approx(S * 8 / 12 / (5 * GB) + 2e-3), "into a; into c it takes 1 ms less"


def test_a_group_of_one_waits_for_nothing_and_a_curve_is_believed() -> None:
    assert least_s("all_reduce", S, tiling(triangle(5), 1), None) == (0.0, None)
    inside = tiling(triangle(5), 4)
    assert least_s("all_gather", S, inside, 1e-6) == (1e-6, SCALE_UP)
    assert least_s("all_gather", S, inside, None)[0] > 1e-6


@st.composite
def tilings(draw: st.DrawFn) -> Tiling:
    """One to three buildings of up to 12 hosts, in one or two regions, with uplinks and links of any rate."""
    count, ratio, width = draw(st.integers(1, 3)), st.sampled_from((1, 2, 8)), st.sampled_from((0.5, 5, 500))
    latency = st.sampled_from((1e-5, 1e-3, 2e-2))
    buildings = [
        building(name, draw(st.integers(1, 12)), oversubscription=(1, draw(ratio), draw(ratio), draw(ratio)))
        for name in "abc"[:count]
    ]
    pairs = [("a", "b"), ("b", "c"), ("a", "c")][: count - 1 + (count == 3 and draw(st.booleans()))]
    wires = [trunk(*pair, draw(latency), bandwidth_bytes_per_s=draw(width) * GB) for pair in pairs]
    cut = draw(st.integers(1, count))
    regions = [part for part in (buildings[:cut], buildings[cut:]) if part]
    whole = topology(*regions, trunks=wires)
    stride = draw(st.sampled_from((1, 2, 4, 8)))
    degree = draw(st.integers(1, max(1, whole.num_accelerators // stride)))
    if degree * stride > whole.num_accelerators:
        stride = 1
    left, used = whole.num_accelerators // (degree * stride) * degree * stride, []
    for one in whole.buildings:
        if left:
            used.append((one.name, min(left, one.num_accelerators)))
            left -= used[-1][1]
    return Tiling(whole, allocation(*used), build_levels(whole, allocation(*used)), degree, stride)


@given(tilings(), st.sampled_from(CURVE_OPS), st.floats(1.0, 1e11))
def test_no_option_beats_the_bound(drawn: Tiling, op: CurveOp, size: float) -> None:
    seconds, _ = least_s(op, size, drawn, None)
    found = options(op, size, exact_shape(drawn.degree, drawn.stride, drawn.levels), links_of(drawn.levels), 0.0)
    assert not found or found[0].time_s >= seconds * (1 - 1e-9)


@st.composite
def trees(draw: st.DrawFn, most: int = 5) -> Tiling:
    """One group over unequal shares of buildings in up to three regions.

    The links form a tree of equal rates, sometimes with extra links.
    """
    count = draw(st.integers(1, most))
    ratios = st.sampled_from((1, 2, 8))
    uplinks = (1, draw(ratios), draw(ratios), draw(ratios))
    buildings = [building(name, draw(st.integers(1, 12)), oversubscription=uplinks) for name in "abcde"[:count]]
    pairs = [(draw(st.integers(0, index - 1)), index) for index in range(1, count)]
    pairs += [pair for pair in combinations(range(count), 2) if pair not in pairs and draw(st.integers(0, 5)) == 5]
    width = draw(st.sampled_from((0.5, 5, 500)))
    wires = [trunk("abcde"[a], "abcde"[b], 1e-5, bandwidth_bytes_per_s=width * GB) for a, b in pairs]
    cuts = [0, *sorted(draw(st.sets(st.integers(1, max(1, count - 1)), max_size=2))), count]
    whole = topology(*(buildings[a:b] for a, b in pairwise(cuts) if a < b), trunks=wires)
    stride = draw(st.sampled_from((1, 1, 2, 4)))
    used = allocation(*((one.name, draw(st.integers(1, one.num_accelerators // stride)) * stride) for one in buildings))
    num_ranks = sum(share.num_accelerators for share in used) // stride
    return Tiling(whole, used, build_levels(whole, used), num_ranks, stride)


@pytest.mark.heavy
@settings(max_examples=400)
@given(trees(), st.sampled_from(REDUCTIONS), st.floats(1e5, 1e11))
def test_no_option_of_unequal_children_beats_the_bound(drawn: Tiling, op: CurveOp, size: float) -> None:
    seconds, _ = least_s(op, size, drawn, None)
    found = options(op, size, exact_shape(drawn.degree, drawn.stride, drawn.levels), links_of(drawn.levels), 0.0)
    assert not found or found[0].time_s >= seconds * (1 - 1e-9)


@pytest.mark.heavy
@settings(max_examples=150)
@given(trees(), st.sampled_from(REDUCTIONS), st.sampled_from((1, 32)))
def test_no_simulated_collective_of_unequal_children_beats_the_bound(
    drawn: Tiling, op: CurveOp, num_chunks: int
) -> None:
    degrees, order = Degrees(tp=drawn.stride, dp_shard=drawn.degree), ("tp", "cp", "dp_shard", "dp_replicate", "pp")
    placement = Placement(axis_order=order, fill=tuple(drawn.allocation))
    machine = build_machine(drawn.topology, placement, degrees, {"dp_shard": ["hierarchical"]}, width=1)
    group, way = machine.group_of("dp_shard", machine.block_classes[0]), Way("hierarchical", num_chunks=num_chunks)
    segments = Calls(machine, 0.0).of("dp_shard", group, (op,), (way,), S) if drawn.degree > 1 else ()
    simulated_s = sum(one.fixed_s + max(one.moving_s, _own_s(machine, one)) for one in segments)
    assert simulated_s >= least_s(op, S, drawn, None)[0] * (1 - 1e-9)


def _own_s(machine: Machine, one: Segment) -> float:
    return one.amount * max((weight / float(machine.capacities[link]) for link, weight in one.load), default=0.0)


def test_a_building_behind_another_takes_in_what_two_levels_bring() -> None:
    """A building behind another receives the bytes of two levels over one link.

    Building a is in one region, b and c are in another. They have 4, 4 and 1 ranks on a chain, and 8/9 enter c.
    """
    wires = [trunk(*pair, 1e-5, bandwidth_bytes_per_s=0.5 * GB) for pair in (("a", "b"), ("b", "c"))]
    whole = topology([building("a", 1)], [building("b", 1), building("c", 1)], trunks=wires)
    levels = build_levels(whole, allocation(("a", 4), ("b", 4), ("c", 1)))
    shape = exact_shape(9, 1, levels)
    assert shape.taken_in(by_rank=True)[[CAMPUS, REGION]].tolist() == [4 / 5, 5 / 9]
    ways = options("all_gather", GB, shape, links_of(levels), 0.0)
    layered = min(way.time_s for way in ways if way.algorithm == "hierarchical")
    assert layered == pytest.approx((31 / 32 * 8 / 9 + (4 / 5 + 5 / 9) / 32) / 0.5, rel=1e-3), "in 32 chunks"
