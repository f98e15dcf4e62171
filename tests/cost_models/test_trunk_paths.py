"""Paths between buildings: the rule by hand, and against every simple path of random networks."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import networkx as nx
import pytest
from machines import GB, building, topology, trunk

from scaleacross.spec.topology import Topology, attainable_trunk_bytes_per_s
from scaleacross.spec.trunk_paths import TrunkPaths

GIB = 2.0**30


def triangle(third_gbyte_per_s: float, third_s: float, **changes: float) -> TrunkPaths:
    """Links a – b – c of 50 GB/s and 1 ms, and a third link a – c."""
    wide = {"bandwidth_bytes_per_s": 50 * GB}
    third = trunk("a", "c", third_s, bandwidth_bytes_per_s=third_gbyte_per_s * GB)
    wires = [trunk("a", "b", **wide), trunk("b", "c", **wide), third]
    whole = topology([building(name, 2) for name in "abc"], trunks=wires)
    return TrunkPaths(whole.model_copy(update=changes))


@pytest.mark.parametrize(
    ("gbyte_per_s", "latency_s", "over_b"),
    [(50, 1e-3, False), (1.25, 0.3e-3, True), (50, 30e-3, True), (400, 30e-3, False), (26, 1e-3, False)],
    ids=["like the others", "thin", "long", "long but wide", "half as wide"],
)
def test_a_third_trunk_is_used_where_it_is_sooner(gbyte_per_s: float, latency_s: float, over_b: bool) -> None:
    # through b 2 (1 ms + 21.5 ms for 1 GiB)
    paths = triangle(gbyte_per_s, latency_s)
    assert paths.between("a", "c").buildings == (("a", "b", "c") if over_b else ("a", "c"))
    assert paths.between("c", "a").buildings == (("c", "b", "a") if over_b else ("c", "a"))
    assert paths.latency_s("a", "c") == pytest.approx(2e-3 if over_b else latency_s)
    assert paths.bytes_per_s("c", "a") == (50 if over_b else gbyte_per_s) * GB


def test_with_0_bytes_latency_decides() -> None:
    assert triangle(1.25, 0.3e-3, routed_message_bytes=0.0).between("a", "c").buildings == ("a", "c")
    assert triangle(400, 30e-3, routed_message_bytes=0.0).between("a", "c").buildings == ("a", "b", "c")


def test_of_equal_paths_the_one_of_fewer_trunks_is_taken() -> None:
    assert triangle(25, 2e-3).between("a", "c").buildings == ("a", "c")


def random_network(seed: int) -> Topology:
    """Six buildings in a chain with some extra links, whose rates and latencies span three orders of magnitude."""
    draw = random.Random(seed)
    names = "abcdef"
    pairs = {*pairwise(names), *draw.sample(list(combinations(names, 2)), 6)}
    wires = [
        trunk(*pair, draw.choice((1e-4, 1e-3, 2e-2)), bandwidth_bytes_per_s=draw.choice((1, 10, 100)) * GB)
        for pair in sorted(pairs)
    ]
    return topology([building(name, 2) for name in names], trunks=wires)


@pytest.mark.parametrize("seed", range(8))
def test_no_simple_path_costs_less(seed: int) -> None:
    network = random_network(seed)
    graph, paths = nx.Graph(), TrunkPaths(network)
    for wire in network.trunks:
        graph.add_edge(*wire.between, cost=wire.one_way_latency_s + GIB / attainable_trunk_bytes_per_s(network, wire))
    for here, there in combinations("abcdef", 2):
        costs = [
            sum(graph.edges[step]["cost"] for step in pairwise(way)) for way in nx.all_simple_paths(graph, here, there)
        ]
        taken = paths.between(here, there)
        assert sum(graph.edges[step]["cost"] for step in pairwise(taken.buildings)) == pytest.approx(min(costs))
        assert [set(wire.between) for wire in taken.trunks] == [set(step) for step in pairwise(taken.buildings)]
