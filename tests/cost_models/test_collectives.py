"""Collectives: the formulas by hand, bounds that hold for any algorithm, and limit cases.

One group has G = K·g ranks in K buildings of g. The adapter rate inside a building is B, and the inter-building rate is
C. If a whole building sends at once, each rank's share is β = C/g.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import GB, LATENCIES, RATES, allocation, building, flat, topology, trunk

from one_collective import all_reduce, all_to_all, gather
from scaleacross.cost_models.collectives import HIERARCHICAL, NONE, PAIRWISE, Group
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK, Levels, build_levels
from scaleacross.cost_models.links import Links, group_bandwidth, links_of, ring_bandwidth
from scaleacross.cost_models.messages import boundary_times, neighbour_messages
from scaleacross.cost_models.network.options import options
from scaleacross.cost_models.step import one_row
from scaleacross.spec.network_choice import ALGORITHM_NAMES, CommunicatorChoice, Connection

B = RATES[1]  # ranks of a building are hosts of one rack
ALPHA = LATENCIES[1]
FAR = 1e-3


def buildings(num_buildings: int, per_building: int, trunk_bytes_per_s: float, latency_s: float = FAR) -> Levels:
    fleet = flat(num_buildings, per_building, latency_s=latency_s, bandwidth_bytes_per_s=trunk_bytes_per_s)
    return build_levels(fleet, allocation(*((f"b{index}", per_building) for index in range(num_buildings))))


def whole(levels: Levels) -> GroupShape:
    return exact_shape(levels.num_ranks, 1, levels)


def size(value: float) -> np.ndarray:
    return np.array(value)


def test_ring_over_buildings_with_ranks_in_order() -> None:
    # G = K·g = 8; the link between buildings is as wide as an adapter, so the whole stream crosses it.
    # A ring has 8 hops, 2 of them across; a block takes all hops inside except one.
    levels = buildings(2, 4, trunk_bytes_per_s=B)
    wide = levels.bandwidth.copy()
    wide[CAMPUS] = B
    links = Links(wide, levels.capacity, levels.latency * 0)
    S = 1e9
    assert gather(size(S), whole(levels), links, 0.0).time_s == pytest.approx(7 / 8 * S / B)
    links = Links(wide, levels.capacity, levels.latency)
    ring = 7 / 8 * S / B + 5 * ALPHA + 2 * FAR
    hierarchical = 1 / 2 * S / B + 1 * FAR + 3 / 4 * S / B + 3 * ALPHA
    ways = {way.name: way.time_s for way in options("all_gather", S, whole(levels), links, 0.0) if way.num_chunks == 1}
    assert ways["ring"] == pytest.approx(ring)
    assert ways["hierarchical(ring, ring)"] == pytest.approx(hierarchical)
    assert gather(size(S), whole(levels), links, 0.0).time_s < min(ring, hierarchical)  # in chunks
    both = {way.name: way.time_s for way in options("all_reduce", S, whole(levels), links, 0.0) if way.num_chunks == 1}
    assert both["ring"] == pytest.approx(2 * ring)


def test_a_ring_leaves_a_building_over_one_scale_up_domain() -> None:
    """A ring leaves a building from one scale-up domain.

    Groups have 16 ranks in each of two buildings, 2 per domain. A ring uses 2 lanes across, and a hierarchical exchange
    uses 16.
    """
    fanout, members = [2.0, 8.0, 1.0, 1.0, 2.0, 1.0], [1.0, 2.0, 16.0, 16.0, 16.0, 32.0]
    taken = [1 - 1 / f for f in fanout]
    shape = GroupShape(*(np.array(one) for one in (
        32.0, fanout, members, [1.0] * 6, [16.0, 14.0, 0.0, 0.0, 1.0, 0.0], 16.0, 1.0, [0.0] * 6, [1.0] * 6, fanout, members,
        taken, taken, 0.0, np.zeros((0, 4, 6)),
    )))  # fmt: skip
    links = Links(np.full(6, B), np.full(6, 1e15), np.zeros(6))
    assert ring_bandwidth(shape, links)[[0, 1, 4]].tolist() == [B, 2 * B, 2 * B]
    assert group_bandwidth(shape, links)[[0, 1, 4]].tolist() == [B, 2 * B, 16 * B]


@pytest.mark.parametrize(("K", "g"), [(2, 4), (3, 4), (4, 8)])
def test_hierarchical_over_thin_trunks(K: int, g: int) -> None:
    # Inter-building rate C: shard exchange (K−1)/K·(S/g)/β with β = C/g, then the gather inside a building. In 32 chunks both run
    # at once, so one chunk's gather is exposed: log2 g latencies, as g is a power of two. The shared adapter is no bottleneck.
    C, S = 5e8, 1e9
    levels = buildings(K, g, trunk_bytes_per_s=C)
    beta = C / g
    across = (K - 1) / K * (S / g) / beta + {2: 1, 3: 2, 4: 2}[K] * FAR
    inside = (g - 1) / g * S / B / 32 + np.log2(g) * ALPHA
    one = gather(size(S), whole(levels), links_of(levels), 0.0)
    assert one.time_s == pytest.approx(across + inside)
    assert one.algorithm == HIERARCHICAL
    both = all_reduce(size(S), whole(levels), links_of(levels), 0.0)
    hidden = 2 * {2: 1, 3: 2, 4: 2}[K] - 1  # long-haul messages of a chunk, except the last, overlap with other chunks
    assert both.time_s == pytest.approx(2 * (across + inside) - hidden * FAR)


def test_latencies_that_chunks_hide_leave_no_trunk_free() -> None:
    """Overlapped latencies do not reduce the time that the inter-building link is busy.

    An all-reduce sends (K−1)/K of its bytes over it twice, at any distance.
    """
    C, S = 5e8, 1e9
    for latency_s in (0.0, FAR, 100 * FAR):
        levels = buildings(2, 4, trunk_bytes_per_s=C, latency_s=latency_s)
        found = all_reduce(size(S), whole(levels), links_of(levels), 0.0)
        assert found.algorithm == HIERARCHICAL
        assert found.busy_s >= 2 * 1 / 2 * S / C


@pytest.mark.parametrize("op", ["all_gather", "all_reduce"])
def test_windows_that_are_too_short_leave_the_network_idle(op: str) -> None:
    """Windows that are too small leave the network idle, and others may send meanwhile.

    The library's 4 MiB per channel saturate a short link. With a round trip of 1 s the call takes much longer than the
    link is busy.
    """
    S = 1e9
    near, far = (buildings(2, 4, trunk_bytes_per_s=B, latency_s=latency_s) for latency_s in (1e-9, 0.5))
    ring = CommunicatorChoice(
        communicator="dp_shard", op=op, payload="gradients", algorithm="ring", chunk_bytes=S, num_channels=1,
        connections=(Connection(level="campus", queue_pairs=1, segment_bytes=2**19, outstanding=8, load_balancing="spray"),),
    )  # fmt: skip
    found = []
    for levels in (near, far):
        network = {(op, "gradients"): ring}
        group = Group(one_row(whole(levels)), links_of(levels), 0.0, network=network)
        found.append(
            group.all_reduce(size(S), "gradients") if op == "all_reduce" else group.gather(size(S), payload="gradients")
        )
    assert found[1].busy_s == pytest.approx(found[0].busy_s)
    assert found[0].busy_s == pytest.approx((2 if op == "all_reduce" else 1) * 7 / 8 * S / near.bandwidth[CAMPUS])
    assert found[1].time_s > 50 * found[1].busy_s


def test_hierarchical_sends_half_of_the_ring_across_two_buildings() -> None:
    # (K−1)/K·S against (G−1)/G·S → S: with a free network inside, only the inter-building link counts
    levels = buildings(2, 64, trunk_bytes_per_s=1e8, latency_s=0.0)
    links = Links(levels.bandwidth, levels.capacity, levels.latency * 0)
    S = 1e9
    inside = 63 / 64 * S / B / 32  # of one chunk of 32; the others overlap with transfers between buildings
    through_trunk = gather(size(S), whole(levels), links, 0.0).time_s - inside
    ring = 127 / 128 * S / 1e8
    assert through_trunk == pytest.approx(1 / 2 * S / 1e8)
    assert through_trunk / ring == pytest.approx(1 / 2, rel=0.01)


def test_all_to_all_over_buildings() -> None:
    # S per rank: the g ranks of a building send 1/K of it to each other building; an adapter carries (G−1)/G·S/B
    C, S, K, g = 4e9, 1e8, 4, 8
    levels = buildings(K, g, trunk_bytes_per_s=C)
    timed = all_to_all(size(S), whole(levels), links_of(levels), 0.0)
    assert timed.time_s == pytest.approx(g / K * S / C + FAR)
    assert timed.algorithm == PAIRWISE
    inside = all_to_all(size(S), exact_shape(8, 1, levels), links_of(levels), 0.0)
    assert inside.time_s == pytest.approx(7 / 8 * S / B + ALPHA)


def test_groups_that_straddle_a_border_anywhere_share_its_trunk() -> None:
    # groups of 4 at stride 2 in buildings of 5, 6 and 5: 0 2 4|6, 1 3|5 7; 8 10|12 14, 9|11 13 15
    C, S = 1e6, 1e6
    levels = build_levels(
        flat(3, 6, bandwidth_bytes_per_s=C, latency_s=0.0), allocation(("b0", 5), ("b1", 6), ("b2", 5))
    )
    shape = exact_shape(4, 2, levels)
    first, second = 3 * 1 / 4 + 2 * 2 / 4, 2 * 2 / 4 + 1 * 3 / 4
    assert shape.exchanged[CAMPUS] == first == second
    assert shape.members[CAMPUS] == 1  # of which 1 · 3/4 for each of the two groups would be too little
    at_once = links_of(levels)._replace(latency=np.zeros(NUM_LEVELS))
    assert all_to_all(size(S), shape, at_once, 0.0).time_s == pytest.approx(first * S / C)


def test_groups_that_cross_together_share_the_trunk() -> None:
    # 4 groups of 2, one rank in either building: each has a quarter of the link, less than its NIC of 10 GB/s
    levels = buildings(2, 4, trunk_bytes_per_s=5e9)
    shape = exact_shape(2, 4, levels)
    assert group_bandwidth(shape, links_of(levels))[CAMPUS] == 5e9 / 4
    assert gather(size(1e9), shape, links_of(levels), 0.0).time_s == pytest.approx(0.5 * 1e9 / (5e9 / 4) + FAR)


def test_every_member_drives_its_nic_until_the_uplink_is_full() -> None:
    levels = buildings(2, 4, trunk_bytes_per_s=1e12)
    assert group_bandwidth(whole(levels), links_of(levels))[CAMPUS] == 4 * RATES[3]
    levels = buildings(2, 4, trunk_bytes_per_s=15e9)
    assert group_bandwidth(whole(levels), links_of(levels))[CAMPUS] == 15e9


def test_halving_wins_where_latency_is_all_for_any_number_of_ranks() -> None:
    # 48 ranks in one rack, 8 bytes: 2·⌈log2 48⌉ = 12 hops as of a tree, which sends more bytes, against 94 of a ring
    levels = build_levels(flat(1, 48), allocation(("b0", 48)))
    timed = all_reduce(size(8), whole(levels), links_of(levels), 0.0)
    assert ALGORITHM_NAMES[int(timed.algorithm)] == "hierarchical"
    assert timed.time_s == pytest.approx(12 * ALPHA + 2 * 47 / 48 * 8 / B)


def test_a_group_inside_a_host_never_sees_the_outer_levels() -> None:
    levels = build_levels(topology([building("a", 6)]), allocation(("a", 24)))
    shape = exact_shape(4, 1, levels)
    slow = Links(*(np.where(np.arange(NUM_LEVELS) >= RACK, 1.0, part) for part in links_of(levels)[:3]))
    for price in (gather, all_reduce, all_to_all):
        assert price(size(1e6), shape, links_of(levels), 0.0) == price(size(1e6), shape, slow, 0.0)
    assert gather(size(1e9), shape, links_of(levels), 0.0).time_s == pytest.approx(
        3 / 4 / 100 + 2 * LATENCIES[0]
    )  # log2 4


def test_launch_is_paid_once_and_a_group_of_one_is_free() -> None:
    levels = buildings(2, 4, 5e9)
    for price in (gather, all_reduce, all_to_all):
        alone = price(size(1e9), exact_shape(1, 1, levels), links_of(levels), 1e-5)
        assert (alone.time_s, alone.algorithm) == (0, NONE)
        with_launch = price(size(1e9), whole(levels), links_of(levels), 1e-5).time_s
        assert with_launch == pytest.approx(price(size(1e9), whole(levels), links_of(levels), 0.0).time_s + 1e-5)


cases = st.tuples(
    st.integers(1, 4), st.sampled_from([1, 2, 4, 8]), st.floats(1e7, 1e12), st.floats(0, 1e-2), st.floats(1, 1e10)
)


@given(cases)
def test_no_collective_beats_its_bandwidth_bounds(case: tuple[int, int, float, float, float]) -> None:
    K, g, C, latency_s, S = case
    levels, G = buildings(K, g, C, latency_s), K * g
    if G == 1:
        return
    shape, links = whole(levels), links_of(levels)
    fastest = max(rate for rate, fanout in zip(links.bandwidth, shape.fanout, strict=True) if fanout > 1)
    rank = (G - 1) / G * S / fastest  # what every rank must receive, at the best of its NICs
    cut = (K - 1) / K * S / C if K > 1 else 0.0  # what every building must receive
    furthest = shape.pairs @ links.latency if K == 1 else latency_s
    one = gather(size(S), shape, links, 0.0).time_s
    assert one >= max(rank, cut, min(furthest, one)) * (1 - 1e-12)
    assert one >= (latency_s if K > 1 else 0)
    # a reduction must bring d−1 contributions in and send the sum out again; NICs are full duplex
    assert all_reduce(size(S), shape, links, 0.0).time_s >= 2 * max(rank, cut) * (1 - 1e-12)
    over_each_trunk = g * cut / max(1, K - 1)  # a building has one to every other
    assert all_to_all(size(S), shape, links, 0.0).time_s >= max(rank, over_each_trunk) * (1 - 1e-12)
    assert all_reduce(size(S), shape, links, 0.0).time_s <= 2 * one * (1 + 1e-12), "it may always be one of each"


@given(cases, st.floats(1, 10))
def test_more_bytes_cost_more_and_a_wider_trunk_never(
    case: tuple[int, int, float, float, float], factor: float
) -> None:
    K, g, C, latency_s, S = case
    levels, wider = buildings(K, g, C, latency_s), buildings(K, g, C * factor, latency_s)
    shape = whole(levels)
    for price in (gather, all_reduce, all_to_all):
        time_s = price(size(S), shape, links_of(levels), 1e-6).time_s
        assert price(size(S * factor), shape, links_of(levels), 1e-6).time_s >= time_s
        assert price(size(S), shape, links_of(wider), 1e-6).time_s <= time_s
        assert price(size(S), shape, links_of(buildings(K, g, C, latency_s * factor)), 1e-6).time_s >= time_s


@given(cases)
def test_hierarchical_and_ring_agree_on_one_level(case: tuple[int, int, float, float, float]) -> None:
    _, g, _, _, S = case
    levels = build_levels(flat(1, g), allocation(("b0", g)))
    expected = (g - 1) / g * S / B + (g - 1) * ALPHA if g > 1 else 0.0
    plain = Group(whole(levels), links_of(levels), 0.0, network="library")
    assert plain.gather(size(S)).time_s == pytest.approx(expected)
    fewest = np.log2(g) if g & (g - 1) == 0 else g - 1
    best = gather(size(S), whole(levels), links_of(levels), 0.0)
    assert best.time_s == pytest.approx(expected - (g - 1 - fewest) * ALPHA if g > 1 else 0.0)


def test_arrays_of_sizes_and_shapes() -> None:
    levels = buildings(2, 4, 5e9)
    sizes = np.array([1e3, 1e6, 1e9])
    together = all_reduce(sizes, whole(levels), links_of(levels), 1e-6)
    for row, value in enumerate(sizes):
        alone = all_reduce(size(value), whole(levels), links_of(levels), 1e-6)
        assert (together.time_s[row], together.algorithm[row]) == (alone.time_s, alone.algorithm)


def test_messages_between_pipeline_neighbours() -> None:
    # 4 ranks with stride 2 over two buildings of 4: one of three boundaries crosses, and 2 groups share the link
    levels = buildings(2, 4, 5e9)
    message = neighbour_messages(size(1e6), exact_shape(4, 2, levels), links_of(levels))
    assert (message.num_crossing, message.tail, message.spacing) == (1, 2, 1)
    assert (message.near_latency_s, message.crossing_latency_s) == (ALPHA, FAR)
    assert message.near_occupancy_s == pytest.approx(1e6 / B)
    assert message.crossing_occupancy_s == pytest.approx(1e6 / (5e9 / 2))


def test_a_pipeline_through_two_regions_pays_their_distance_once() -> None:
    # 4 ranks, a building of 2 accelerators each, two buildings a region: 0.1 ms inside a region, 10 ms between them
    sites = [building(f"b{at}", 2, per_host=1) for at in range(4)]
    wires = [
        trunk(
            f"b{a}",
            f"b{b}",
            1e-4 if a // 2 == b // 2 else 1e-2,
            bandwidth_bytes_per_s=(10 if a // 2 == b // 2 else 5) * GB,
        )
        for a, b in itertools.combinations(range(4), 2)
    ]
    levels = build_levels(topology(sites[:2], sites[2:], trunks=wires), allocation(*((f"b{at}", 2) for at in range(4))))
    message = neighbour_messages(size(1e6), exact_shape(4, 2, levels), links_of(levels))
    assert (message.num_between, message.num_crossing, message.tail, message.spacing) == (2, 1, 2, 1)
    assert (message.between_latency_s, message.crossing_latency_s) == (1e-4, 1e-2)
    assert message.between_occupancy_s == pytest.approx(message.crossing_occupancy_s / 2)
    latency, occupancy = boundary_times(4, tuple(map(float, message)))
    assert latency.tolist() == pytest.approx([1e-4, 1e-2, 1e-4, 1e-2])  # the last is the way back to the first rank
    assert occupancy[:2].tolist() == pytest.approx([1e6 / (10 * GB / 2), 1e6 / (5 * GB / 2)])


def test_messages_are_limited_by_the_nic_where_the_trunk_is_wide() -> None:
    levels = buildings(2, 4, 1000 * GB)
    message = neighbour_messages(size(1e6), exact_shape(4, 2, levels), links_of(levels))
    assert message.crossing_occupancy_s == pytest.approx(1e6 / RATES[3])
    assert math.isclose(float(message.near_occupancy_s), 1e6 / B)
