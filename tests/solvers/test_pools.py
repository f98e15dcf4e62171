"""Pools, allocations and their bounds agree with a second enumeration of rules S1–S3."""

from __future__ import annotations

from itertools import combinations, permutations
from math import ceil, gcd, lcm
from typing import Any

import numpy as np
import pytest

from cases import each
from instances import instance, plain_building, plain_topology, plain_trunk
from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, REGION, Levels, build_levels
from scaleacross.cost_models.links import Links
from scaleacross.solvers.pools import AcceleratorPool, Allocation, most_accelerators, pools, shares
from scaleacross.spec.topology import Topology


def topology(*num_hosts: int, **changes: Any) -> Topology:
    return Topology.model_validate(plain_topology(*num_hosts, **changes))


def pool(*num_hosts: int, **changes: Any) -> AcceleratorPool:
    return pools(topology(*num_hosts, **changes))[0]


def every_allocation(of: AcceleratorPool, size: int, granules: list[int]) -> set[Allocation]:
    """All allocations by rules S1–S3, for up to four buildings.

    Allocations without one of the pool's types belong to another pool.
    """
    out: set[Allocation] = set()
    total = of.num_accelerators
    for granule in granules:
        whole = lcm(granule, *(building.accelerators_per_host for building in of.buildings))
        for sequence in permutations(of.buildings):  # S1
            for policy in ("packed", "proportional"):
                left, allocation = size, []
                for building in sequence:
                    capacity, last = building.num_accelerators, building is sequence[-1]
                    granules_held = capacity // whole
                    if policy == "proportional":
                        granules_held = min(granules_held, ceil(ceil(size * capacity / total) / whole))
                    takes_rest = last or policy == "packed" or size == total
                    share = (
                        left if left <= (capacity if takes_rest else granules_held * whole) else granules_held * whole
                    )
                    left -= share
                    if share:
                        allocation.append((building.name, share))
                types = {of.topology.building(name).accelerator.name for name, _ in allocation}
                if left == 0 and len(types) == len(of.accelerators):
                    out.add(tuple(allocation))
    return out


def figures_of(levels: Levels) -> tuple[object, ...]:
    """All figures of an allocation that a step time depends on."""
    figures = (levels.bandwidth, levels.capacity, levels.latency, *levels.cuts)
    names = tuple(accelerator.name for accelerator in levels.accelerators)
    curves = None if levels.curves is None else levels.curves.tobytes()
    return (levels.num_ranks, frozenset(names), curves, *(tuple(np.asarray(part).tolist()) for part in figures))


@each("seed", range(0, 100, 10), range(0, 100, 2), size=10)
def test_allocations_are_s1_to_s3_up_to_equal_cost(seed: int) -> None:
    problem = instance(seed)
    for of in pools(problem.topology):
        for size in {of.num_accelerators, of.num_accelerators // 2, 8, 12, of.unit}:
            for granules in ([1], [1, 2, 3, 4, 6]):
                found = of.allocations(size, granules)
                expected = every_allocation(of, size, granules)
                assert set(found) <= expected
                prices = {figures_of(build_levels(problem.topology, shares(allocation))) for allocation in found}
                assert prices == {
                    figures_of(build_levels(problem.topology, shares(allocation))) for allocation in expected
                }
                assert len(prices) <= len(found) <= len(expected)


def test_shares_are_whole_granules_but_for_the_last() -> None:
    for size in range(4, 41, 4):
        for allocation in pool(6, 4).allocations(size, [1, 8]):
            assert sum(share for _, share in allocation) == size
            assert all(share % 4 == 0 for _, share in allocation)
    assert pool(6, 4).allocations(28, [8]) == [(("b0", 24), ("b1", 4)), (("b1", 16), ("b0", 12))]
    assert pool(6, 4).allocations(40, [8]) == [(("b0", 24), ("b1", 16)), (("b1", 16), ("b0", 24))]
    assert pool(6, 4).allocations(40, [32]) == []  # neither building holds a granule and the rest does not fit


def test_more_accelerators_than_there_are() -> None:
    assert pool(2, 2).allocations(20, [1]) == []


def test_alike_buildings_are_filled_once() -> None:
    assert pool(2, 2).allocations(16, [1]) == [(("b0", 8), ("b1", 8))]
    assert len(pool(2, 3).allocations(20, [1])) == 2  # which is first matters


def test_alike_regions_are_filled_once_but_their_borders_count() -> None:
    assert pool(2, 2, apart=True).allocations(16, [1]) == [(("b0", 8), ("b1", 8))]
    data = plain_topology(2, 2, 2)
    first, second, third = data["regions"][0]["buildings"]
    data["regions"] = [{"name": "one", "buildings": [first, third]}, {"name": "two", "buildings": [second]}]
    data["trunks"] = [plain_trunk(*pair) for pair in (("b0", "b1"), ("b1", "b2"), ("b0", "b2"))]
    found = pools(Topology.model_validate(data))[0].allocations(24, [1])
    assert {tuple(name for name, _ in allocation) for allocation in found} == {
        ("b0", "b1", "b2"),  # a region left and entered again
        ("b0", "b2", "b1"),
        ("b1", "b0", "b2"),
    }


def test_the_trunk_that_closes_the_ring_distinguishes_allocations() -> None:
    """Allocations differ if their links back to the first building differ.

    The sizes are 16 + 8 + 12. The last building is b2 or b3, which are equal except for this link.
    """
    data = plain_topology(4, 2, 3, 3)
    wide = [("b0", "b1"), ("b1", "b2"), ("b1", "b3"), ("b0", "b3")]
    data["trunks"] = [*(plain_trunk(*pair) for pair in wide), plain_trunk("b0", "b2", gbyte_per_s=1.0)]
    of = pools(Topology.model_validate(data))[0]
    found, expected = (
        {figures_of(build_levels(of.topology, shares(allocation))) for allocation in allocations}
        for allocations in (of.allocations(36, [4]), every_allocation(of, 36, [4]))
    )
    assert found == expected


def test_more_than_four_buildings_are_not_permuted() -> None:
    found = pool(1, 2, 3, 4, 5).allocations(60, [1])
    assert (("b0", 4), ("b1", 8), ("b2", 12), ("b3", 16), ("b4", 20)) in found  # order of the file
    assert (("b4", 20), ("b3", 16), ("b2", 12), ("b1", 8), ("b0", 4)) in found  # by size
    assert found[0] != found[1]
    assert 2 <= len(found) <= 7


def two_types(**changes: Any) -> Topology:
    data = plain_topology(2, 2, 2)
    other = data["regions"][0]["buildings"][1]
    other["accelerator"] = other["accelerator"] | {"name": "other"} | changes
    return Topology.model_validate(data)


def test_one_pool_per_set_of_types() -> None:
    found = pools(two_types())
    assert [sorted(a.name for a in of.accelerators) for of in found] == [["other", "plain"], ["plain"], ["other"]]
    assert [of.num_accelerators for of in found] == [24, 16, 8]
    both, plain, _ = found
    assert all(
        any(name == "b1" for name, _ in allocation) and len(allocation) > 1 for allocation in both.allocations(16, [1])
    )
    assert plain.allocations(16, [1]) == [(("b0", 8), ("b2", 8))]


def test_no_pool_has_two_collective_libraries() -> None:
    mixed = two_types(collective_library="rccl")
    assert [[a.name for a in of.accelerators] for of in pools(mixed)] == [["plain"], ["other"]]
    assert (mixed.num_accelerators, most_accelerators(mixed)) == (24, 16)


@each("seed", range(1, 60, 12), range(1, 60, 4), size=10)
def test_no_allocation_beats_the_optimistic_links(seed: int) -> None:
    problem = instance(seed)
    for of in pools(problem.topology):
        best = of.optimistic_links()
        assert all(np.isfinite(figures).all() for figures in (best.bandwidth, best.capacity, best.latency))
        for size in {of.num_accelerators, 8, 12}:
            for allocation in of.allocations(size, [1, 2, 4]):
                levels = build_levels(of.topology, shares(allocation))
                crossed = exact_shape(size, 1, levels).fanout > 1
                assert (best.bandwidth >= np.minimum(levels.bandwidth, levels.capacity))[crossed].all()
                assert (best.capacity >= levels.capacity)[crossed].all()
                assert (best.latency <= levels.latency)[crossed].all()


def test_optimistic_links_never_improve_outwards() -> None:
    slow_inside = {"scale_up": plain_building("x", 1)["links"]["building"]}
    links = plain_building("x", 1)["links"] | slow_inside  # 10 GB/s and 6 µs inside the host, 20 and 2 in the rack
    best: Links = pool(6, 4, links=links).optimistic_links()
    assert best.bandwidth[0] == pytest.approx(0.8 * 20e9)
    assert best.latency[0] == pytest.approx(2e-6)
    assert (np.diff(best.bandwidth[:REGION]) <= 0).all()
    assert (np.diff(best.latency[:REGION]) >= 0).all()


@each("seed", range(2, 60, 12), range(2, 60, 4), size=10)
def test_children_are_between_fullest_and_largest(seed: int) -> None:
    problem = instance(seed)
    for of in pools(problem.topology):
        for size in {of.num_accelerators, 8, 12, 16}:
            largest, fullest = np.minimum(of.largest_children(), size), of.fullest_children(np.array([size]))[0]
            for allocation in of.allocations(size, [1, 2, 4, 8]):
                levels = build_levels(of.topology, shares(allocation))
                for level in range(1, NUM_LEVELS):
                    edges = np.append(levels.cuts[level], size)
                    assert fullest[level] <= np.diff(edges).max() <= largest[level]


MANY = pytest.param((3, 2, 3, 5), marks=pytest.mark.slow)
MIXED = pytest.param((5, 4, 3), marks=pytest.mark.heavy)


@pytest.mark.parametrize("num_hosts", [(6, 4), (5, 5), (3, 7), (4, 4, 4), MIXED, MANY, (8,)])
def test_must_cross_is_never_wrong(num_hosts: tuple[int, ...]) -> None:
    of = pool(*num_hosts)
    decided = 0
    for size in range(8, of.num_accelerators + 1, 4):
        axes = [(d, e // d) for e in range(2, size + 1) if size % e == 0 for d in range(2, e + 1) if e % d == 0]
        degree, stride = np.array(axes).T
        must = of.must_cross(degree, stride, np.full(len(axes), size))[:, 0]
        decided += int((must > 0).sum())
        for allocation in of.allocations(size, sorted({e * d for e, d in axes})):
            levels = build_levels(of.topology, shares(allocation))
            for (d, s), crosses in zip(axes, must, strict=True):
                shape = exact_shape(d, s, levels)
                cut = shape.leaving[CAMPUS] if shape.span == CAMPUS else 0
                assert crosses <= cut
                if size == of.num_accelerators and len(num_hosts) == 2 and num_hosts[0] == num_hosts[1]:
                    assert crosses == cut  # equal buildings, all used: there is one cut
    assert (decided > 0) == (len(num_hosts) > 1)


@pytest.mark.parametrize(
    "num_hosts", [(4, 4, 4), *(pytest.param(hosts, marks=pytest.mark.heavy) for hosts in ((5, 4, 3), (6, 1, 5))), MANY]
)
def test_groups_that_cross_a_border_take_no_more_ways(num_hosts: tuple[int, ...]) -> None:
    """Groups that cross a border between two buildings use at most the stated number of links.

    So some link carries their share or more. Most borders have one link.
    """
    of = pool(*num_hosts)
    known = 0
    for size in range(8, of.num_accelerators + 1, 4):
        axes = [(d, e // d) for e in range(2, size + 1) if size % e == 0 for d in range(2, e + 1) if e % d == 0]
        degree, stride = np.array(axes).T
        world = np.full(len(axes), size)
        must, ways = of.must_cross(degree, stride, world)[:, 0], of.border_ways(stride, world)
        known += int((must[ways < len(num_hosts) - 1] > 1).sum())
        for allocation in of.allocations(size, sorted({e * d for e, d in axes})):
            levels = build_levels(of.topology, shares(allocation))
            for (d, s), crosses, apart in zip(axes, must, ways, strict=True):
                assert crosses <= apart * exact_shape(d, s, levels).crossing[CAMPUS]
    assert known


@pytest.mark.heavy
@pytest.mark.parametrize("num_hosts", [(4, 4, 2), (2, 3, 2, 2), MANY])
def test_must_cross_regions_is_never_wrong(num_hosts: tuple[int, ...]) -> None:
    """``must_cross`` never overstates the groups that cross regions.

    The first half of the buildings is one region. An allocation may separate buildings of one region.
    """
    data = plain_topology(*num_hosts)
    buildings, half = data["regions"][0]["buildings"], len(num_hosts) // 2
    data["regions"] = [{"name": "near", "buildings": buildings[:half]}, {"name": "far", "buildings": buildings[half:]}]
    of = pools(Topology.model_validate(data))[0]
    decided = 0
    for size in range(8, of.num_accelerators + 1, 4):
        axes = [(d, e // d) for e in range(2, size + 1) if size % e == 0 for d in range(2, e + 1) if e % d == 0]
        degree, stride = np.array(axes).T
        must = of.must_cross(degree, stride, np.full(len(axes), size))
        decided += int((must[:, 1] > 0).sum())
        for allocation in of.allocations(size, sorted({e * d for e, d in axes})):
            levels = build_levels(of.topology, shares(allocation))
            for (d, s), (near, far) in zip(axes, must, strict=True):
                shape = exact_shape(d, s, levels)
                assert far <= (shape.leaving[REGION] if shape.span == REGION else 0)
                assert near <= (shape.leaving[CAMPUS:].max() if shape.span >= CAMPUS else 0)
    assert decided


def test_units() -> None:
    data = plain_topology(2, 2)
    data["regions"][0]["buildings"][1]["accelerators_per_host"] = 6
    of = pools(Topology.model_validate(data))[0]
    assert (of.unit, of.common_host) == (lcm(4, 6), gcd(4, 6))
    assert all(share % 12 == 0 for allocation in of.allocations(12, [1, 2]) for _, share in allocation)
    assert {name for pair in combinations(("b0", "b1"), 2) for name in pair} == {b.name for b in of.buildings}
