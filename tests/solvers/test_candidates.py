"""Relaxed shapes on optimistic links give a lower bound on collective times.

It holds for every allocation, message size and topology.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from instances import instance, link, plain_topology, plain_trunk
from one_collective import all_reduce, all_to_all, gather
from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.groups import exact_shape, relaxed_shape
from scaleacross.cost_models.levels import BUILDING, CAMPUS, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.messages import Boundary, neighbour_messages
from scaleacross.solvers.pools import AcceleratorPool, pools, shares
from scaleacross.spec.topology import Topology

SIZES = np.array([0.0, 1e3, 1e6, 1e9])
SLACK = 1 + 1e-9


def bounds_hold(pool: AcceleratorPool, size: int, coarse: bool = False) -> int:
    """Check the bounds for every axis on every allocation of ``size`` accelerators.

    Return the number of pairs compared.
    """
    links, compared = pool.optimistic_links(), 0
    largest = np.minimum(pool.largest_children(), size)
    largest[-1] = size
    axes = [(d, e // d) for e in range(2, size + 1) if size % e == 0 for d in range(2, e + 1) if e % d == 0]
    allocations = [
        build_levels(pool.topology, shares(f), pool.paths) for f in pool.allocations(size, [1, *{s for _, s in axes}])
    ]
    for d, s in axes:
        degree, stride, world = np.array([d]), np.array([1 if coarse else s]), np.array([size])
        cut, least = pool.must_cross(degree, stride, world), pool.fullest_children(world)
        host = 1 if coarse else pool.common_host
        ways = None if coarse else pool.border_ways(stride, world)
        relaxed = relaxed_shape(degree, stride, largest[None], cut, least, host, len(pool.buildings), ways)
        for levels in allocations:
            exact, real, compared = exact_shape(d, s, levels), links_of(levels), compared + 1
            for price in (gather, all_reduce, all_to_all):
                bound, time = price(SIZES, relaxed, links, 0.0).time_s, price(SIZES[:, None], exact, real, 0.0).time_s
                assert (bound <= time.ravel() * SLACK).all(), (price.__name__, d, s, levels.cuts)
            if not coarse:
                loose, tight = (
                    neighbour_messages(SIZES, relaxed, links),
                    neighbour_messages(SIZES[:, None], exact, real),
                )
                assert loose.num_crossing <= tight.num_crossing + tight.num_between
                assert (along(loose, d) <= along(tight, d).ravel() * SLACK).all(), ("messages", d, s, levels.cuts)
    return compared


def along(message: Boundary, pp: int) -> Floats:
    """Seconds of a message from the first rank to the last.

    Boundaries are in the form that ``axes.axis_terms`` takes.
    """
    near, far = (
        message.near_latency_s + message.near_occupancy_s,
        message.crossing_latency_s + message.crossing_occupancy_s,
    )
    between = np.maximum(near, message.between_latency_s + message.between_occupancy_s)
    inside = pp - 1 - message.num_crossing - message.num_between
    return inside * near + message.num_between * between + message.num_crossing * np.maximum(near, far)


@pytest.mark.heavy
@pytest.mark.parametrize("coarse", [False, True], ids=["tight", "coarse: any stride"])
@each("seed", (6, 9), range(0, 120, 3))
def test_on_random_topologies(seed: int, coarse: bool) -> None:
    for pool in pools(instance(seed).topology):
        for size in {pool.num_accelerators // pool.unit * pool.unit, 8, 12}:
            bounds_hold(pool, size, coarse)


def links(rates: list[float], latencies: list[float], narrow: list[float]) -> dict[str, Any]:
    names = ("scale_up", "rack", "zone", "building")
    return {name: link(*figures) for name, *figures in zip(names, rates, latencies, narrow, strict=True)}


FOUR = {"min_size": 4, "max_size": 4}


@pytest.mark.heavy
@settings(max_examples=12)
@given(
    rates=st.lists(st.sampled_from([1.0, 3.0, 10.0, 100.0]), **FOUR),
    latencies=st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0, 100.0]), **FOUR),
    narrow=st.lists(st.sampled_from([1.0, 1.0, 7.0, 50.0]), **FOUR),
    hosts=st.sampled_from([(4, 2), (3, 3), (5, 1), (6,), (2, 2, 2), (3, 2, 1)]),
    domain=st.sampled_from(["host", "rack"]),
    apart=st.booleans(),
    coarse=st.booleans(),
)
def test_whatever_the_links(
    rates: list[float],
    latencies: list[float],
    narrow: list[float],
    hosts: tuple[int, ...],
    domain: str,
    apart: bool,
    coarse: bool,
) -> None:
    """Bounds hold for arbitrary links, for example if an outer level is faster than an inner one."""
    data = plain_topology(*hosts, apart=apart, links=links(rates, latencies, narrow), scale_up_domain=domain)
    pool = pools(Topology.model_validate(data))[0]
    assert bounds_hold(pool, pool.num_accelerators, coarse)


def test_sparing_a_level_can_pay() -> None:
    """A bound must allow for groups that skip a level.

    Four ranks in one host take 3 µs of latency. Two ranks in each of two hosts take 1 + 1.5 µs.
    """
    slow = links([100.0, 100.0, 100.0, 100.0], [1.0, 1.5, 2.0, 2.0], [1.0] * 4)
    pool = pools(Topology.model_validate(plain_topology(2, links=slow)))[0]
    levels = build_levels(pool.topology, shares((("b0", 8),)))
    inside, across = (exact_shape(4, stride, levels) for stride in (1, 2))
    tiny = np.array(8.0)
    ring, pairs = (Group(shape, links_of(levels), 0.0, network="library") for shape in (inside, across))
    layered = gather(tiny, across, links_of(levels), 0.0).time_s
    assert layered < ring.gather(tiny).time_s
    assert pairs.gather(tiny).time_s < 2 * layered
    assert bounds_hold(pool, 8, coarse=True)


def test_an_axis_inside_the_host_is_known() -> None:
    """The bound equals the estimate if the placement leaves nothing open."""
    pool = pools(Topology.model_validate(plain_topology(4, 2)))[0]
    levels = build_levels(pool.topology, shares((("b0", 16), ("b1", 8))))
    for degree, stride in ((2, 1), (4, 1), (2, 2)):
        least = pool.fullest_children(np.array([24]))
        relaxed = relaxed_shape(np.array([degree]), np.array([stride]), pool.largest_children()[None], None, least, 4)
        exact = exact_shape(degree, stride, levels)
        for price in (gather, all_reduce):
            bound = price(SIZES, relaxed, pool.optimistic_links(), 0.0).time_s
            assert bound == pytest.approx(price(SIZES[:, None], exact, links_of(levels), 0.0).time_s.ravel())


def test_the_cut_of_two_buildings_is_counted() -> None:
    """The bound counts the groups that a border between two buildings must divide.

    16 + 8 accelerators divide at position 8 or 16. Position 8 divides 8 of the 12 pairs i, i + 12. Any border divides
    all 8 triples i, i + 8, i + 16 and the one group of all ranks. Pairs i, i + 4 may stay whole.
    """
    pool = pools(Topology.model_validate(plain_topology(4, 2)))[0]
    degree, stride = np.array([2, 3, 2, 24]), np.array([12, 8, 4, 1])
    assert pool.must_cross(degree, stride, np.full(4, 24))[:, 0].tolist() == [8, 8, 0, 1]
    assert pool.must_cross(np.array([2]), np.array([8]), np.array([16])).tolist() == [[0, 0]]  # one building holds them


def test_groups_that_share_their_crossings_between_two_levels() -> None:
    """A bound counts each crossing group on one level only.

    24 + 8 accelerators are in zones of 16, with pairs i, i + 16. Of zone 0 half of the pairs cross zones and half cross
    buildings. Both uplinks carry 8 of the 16 pairs that leave the zone. A third building could hold all 32, so the cut
    is unknown.
    """
    narrow = links([100.0, 20.0, 20.0, 10.0], [0.0] * 4, [1.0, 1.0, 1.0, 50.0])
    data = plain_topology(6, 2, 8, links=narrow)
    trunk = {"gbyte_per_s": 0.8 * 10 * 16 / 50, "latency_us": 0.0}
    data["trunks"] = [plain_trunk("b0", "b1", **trunk), plain_trunk("b1", "b2", **trunk)]
    pool = pools(Topology.model_validate(data))[0]
    shape = exact_shape(2, 16, build_levels(pool.topology, shares((("b0", 24), ("b1", 8)))))
    assert (shape.crossing[BUILDING], shape.crossing[CAMPUS]) == (8, 8)
    assert bounds_hold(pool, 32)
