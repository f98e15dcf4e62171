"""Collective times under network settings.

The library's defaults are checked by hand, choices lie between these and the ideal, and bytes equal those of schedules.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import allocation, building, topology, trunk

from oracles.volume import volume
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.levels import CAMPUS, build_levels
from scaleacross.cost_models.links import Links, links_of, ring_bandwidth
from scaleacross.cost_models.network.load_balance import ecmp_efficiency_fraction
from scaleacross.cost_models.network.options import options
from scaleacross.cost_models.network.reasons import decided_by
from scaleacross.cost_models.network.transport import connected, library_settings
from scaleacross.cost_models.step import one_row
from scaleacross.cost_models.traffic import Flow
from scaleacross.schedules import collective as c
from scaleacross.schedules.collective import Operation
from scaleacross.spec.network import CURVE_OPS, CurveOp
from scaleacross.spec.network_choice import CHANNEL_BYTES_PER_S, CommunicatorChoice, Connection, LevelStep
from scaleacross.spec.topology import Topology
from scaleacross.workloads.equal_copies import EVERY_COPY

GB, MIB = 1e9, 2.0**20
NIC = 10 * GB


def two(latency_s: float, hashed: bool = False, **trunk_changes: object) -> Topology:
    """Two buildings of 8 hosts of 1, with 10 GB/s per port at every level and an inter-building link of 40 GB/s."""
    shape = {"per_host": 1, "hosts_per_rack": 8, "racks_per_zone": 1, "rates": (100 * GB, NIC, NIC, NIC)}
    sites = [building(name, 8, **shape) for name in ("a", "b")]  # type: ignore[arg-type]
    if hashed:
        sites = [_hashed(site) for site in sites]
    wide = {"bandwidth_bytes_per_s": 40 * GB} | trunk_changes
    return topology(sites, trunks=[trunk("a", "b", latency_s, **wide)])


def _hashed(site):  # type: ignore[no-untyped-def]
    link = site.links.building
    technology = link.technology.model_copy(update={"load_balancing": "ecmp"})
    links = site.links.model_copy(update={"building": link.model_copy(update={"technology": technology})})
    return site.model_copy(update={"links": links})


def across(fleet: Topology, degree: int = 2, stride: int = 8) -> tuple[GroupShape, Links]:
    levels = build_levels(fleet, allocation(("a", 8), ("b", 8)))
    return exact_shape(degree, stride, levels), links_of(levels)


def seconds(network: object, op: CurveOp, size: float, shape: GroupShape, links: Links) -> float:
    group = Group(shape, links, 0.0, network=network)  # type: ignore[arg-type]
    if op == "all_reduce":
        return float(group.all_reduce(np.array(size)).time_s)
    if op == "all_to_all":
        return float(group.all_to_all(np.array(size)).time_s)
    return float(group.gather(np.array(size), op).time_s)


def test_defaults_are_limited_by_their_window() -> None:
    """Defaults are limited by their window.

    A 10 GB/s port has 1 channel with 4 MiB in flight. With a round trip of 10 ms this is 0.42 GB/s; with 100 µs it is
    no limit.
    """
    size, share = 1e9, 40 * GB / 8  # 8 groups share the inter-building link
    far = across(two(5e-3))
    assert seconds("library", "all_gather", size, *far) == pytest.approx(0.5 * size / (4 * MIB / 10e-3) + 5e-3)
    assert seconds("best", "all_gather", size, *far) == pytest.approx(0.5 * size / share + 5e-3)
    near = across(two(50e-6))
    assert seconds("library", "all_gather", size, *near) == pytest.approx(0.5 * size / share + 50e-6)


def test_an_all_to_all_has_a_window_to_every_peer() -> None:
    """An all-to-all has a window for every peer.

    8 of all 16 ranks are in the other building. 8/16 of the bytes pass the adapter of 10 GB/s and the inter-building
    link. Each connection carries 1/16.
    """
    size, latency_s = 1e9, 5e-3
    alone = 4 * MIB / (2 * latency_s)  # bytes/s of one connection
    shape, links = across(two(latency_s), 16, 1)
    own = seconds("library", "all_to_all", size, shape, links)
    assert own == pytest.approx(size / 16 / alone + latency_s)
    assert own < 0.5 * size / alone  # one window for all peers
    near = across(two(50e-6), 16, 1)
    assert seconds("library", "all_to_all", size, *near) == pytest.approx(seconds("best", "all_to_all", size, *near))


def test_defaults_are_hashed_onto_the_wavelengths_of_a_trunk() -> None:
    """Flows of the defaults are hashed onto the wavelengths of an inter-building link.

    40 GB/s are 4 wavelengths of 10 GB/s, and 8 groups send one queue pair each.
    """
    size = 1e9
    shape, links = across(two(50e-6, hashed=True))
    share = float(ecmp_efficiency_fraction(8, 4))
    assert 0.3 < share < 0.9
    slow = seconds("library", "all_gather", size, shape, links)
    assert slow == pytest.approx(0.5 * size / (share * 40 * GB / 8) + 50e-6)
    assert seconds("best", "all_gather", size, shape, links) < slow


def test_as_many_flows_are_hashed_as_an_algorithm_has_connections_across_a_trunk() -> None:
    """The number of hashed flows is the algorithm's number of connections across the link.

    One group has 16 hosts of 1. A ring crosses by one connection, and an all-to-all by all 8 · 8.
    """
    size = 1e9
    shape, links = across(two(50e-6, hashed=True), 16, 1)
    ring, pairs = (float(ecmp_efficiency_fraction(flows, 4)) for flows in (1, 64))
    assert ring == 1 / 4 and pairs < 1  # a single flow uses one link of the four, but all of that
    settings = connected(links, shape, library_settings(links))
    assert ring_bandwidth(shape, settings)[CAMPUS] == min(NIC, 40 * GB)
    assert seconds("library", "all_to_all", size, shape, links) == pytest.approx(
        8 * 8 / 16 * size / (pairs * 40 * GB) + 50e-6
    )


def test_loss_costs_a_window_under_go_back_n_and_a_packet_otherwise() -> None:
    size, lost = 1e9, 1e-4
    shape, links = across(two(50e-6, loss_fraction=lost))
    whole = seconds("library", "all_gather", size, *across(two(50e-6))) - 50e-6
    in_flight = NIC * 100e-6 / 4096
    slower = (1 - lost) / (1 - lost + lost * in_flight)
    # the port of 10 GB/s falls below its 5 GB/s of the inter-building link only if most of it is lost
    expected = max(whole, 0.5 * size / (NIC * slower))
    assert seconds("library", "all_gather", size, shape, links) - 50e-6 == pytest.approx(expected)
    heavy, heavy_links = across(two(50e-6, loss_fraction=0.05))
    again = heavy_links._replace(packet_bytes=np.full_like(heavy_links.latency, np.inf))  # selective repeat
    assert seconds("library", "all_gather", size, heavy, heavy_links) > 5 * whole
    assert seconds("library", "all_gather", size, heavy, again) < 1.1 * whole


def choice(op: str, size: float, window: int, **changes: object) -> CommunicatorChoice:
    far = Connection(level="campus", queue_pairs=1, segment_bytes=window, outstanding=1, load_balancing="spray")
    figures = {"communicator": "dp_replicate", "op": op, "payload": "", "algorithm": "ring", "chunk_bytes": size}
    return CommunicatorChoice.model_validate(figures | {"num_channels": 8, "connections": (far,)} | changes)


@given(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]), st.floats(1e3, 1e10), st.floats(0, 0.05))
def test_a_choice_lies_between_ideal_and_less_than_its_window_allows(
    op: CurveOp, size: float, latency_s: float
) -> None:
    shape, links = across(two(latency_s))
    ideal = seconds("best", op, size, shape, links)
    enough = choice(op, size, int(40 * GB * 2 * latency_s) + 1)
    own = seconds({(op, ""): enough}, op, size, shape, links)
    short = enough.model_copy(
        update={"connections": (enough.connections[0].model_copy(update={"segment_bytes": 1 << 20}),)}
    )
    assert ideal <= own * (1 + 1e-9)
    assert own <= seconds({(op, ""): short}, op, size, shape, links) * (1 + 1e-9)
    if op != "all_reduce":  # of two ranks, where ring and pairwise are one
        assert own == pytest.approx(ideal)


def test_a_channel_carries_so_much_and_no_more() -> None:
    shape, links = across(two(50e-6))
    wide = links._replace(bandwidth=links.bandwidth * 10, capacity=links.capacity * 100)
    one, both = (
        seconds(
            {("all_gather", ""): choice("all_gather", 1e9, 1 << 40, num_channels=n)}, "all_gather", 1e9, shape, wide
        )
        for n in (1, 2)
    )
    assert one == pytest.approx(0.5 * 1e9 / CHANNEL_BYTES_PER_S + 50e-6)
    assert both == pytest.approx(0.5 * 1e9 / (2 * CHANNEL_BYTES_PER_S) + 50e-6)


@pytest.mark.parametrize("op", [op for op in CURVE_OPS if op != "all_to_all"])
@pytest.mark.parametrize("chunks", [1, 4])
def test_bytes_of_every_option_are_those_of_its_schedule(op: CurveOp, chunks: int) -> None:
    """Bytes of every option equal those of its schedule's messages, for 2 buildings × 4 hosts.

    They are the bytes that one group sends into a child.
    """
    shape = {"per_host": 2, "hosts_per_rack": 4, "racks_per_zone": 1}
    fleet = topology([building(name, 4, **shape) for name in ("a", "b")], trunks=[trunk("a", "b", 1e-4)])  # type: ignore[arg-type]
    levels = build_levels(fleet, allocation(("a", 8), ("b", 8)))
    group = exact_shape(16, 1, levels)
    size, operation = 16 * MIB, Operation(op)
    layout = tuple(tuple(tuple(range(8 * b + 2 * h, 8 * b + 2 * h + 2)) for h in range(4)) for b in range(2))
    units = {0: lambda rank: rank, 1: lambda rank: rank // 2, CAMPUS: lambda rank: rank // 8}
    seen = set()
    for option in options(op, size, group, links_of(levels), 0.0):
        if option.num_chunks != chunks:
            continue
        seen.add(option.algorithm)
        if option.algorithm == "hierarchical":
            schedule = c.layered(operation, layout, [step.algorithm for step in option.steps], chunks)
        elif option.algorithm == "tree":
            continue  # every level carries the stream at least once; which ranks its inner nodes are decides how often more
        else:
            schedule = c.flat(operation, "ring", 16)
        counted = dict(zip(units, volume(schedule, list(units.values()), lambda _: size / 16), strict=True))
        for level, sent in option.level_bytes.items():
            members = float(group.members[level])
            if option.algorithm == "ring":
                assert counted[level].entering_bytes == pytest.approx(sent)
            else:  # lanes: every member of a child runs the level's own phase
                assert counted[level].entering_bytes == pytest.approx(sent * 1.0 if members else sent)
    assert "hierarchical" in seen


def test_what_a_time_answers_to() -> None:
    shape, links = across(two(5e-3))
    rows = one_row(shape)
    flow = Flow("dp_replicate", "all_gather", "x", "dp_replicate", 1e9, {})
    far = choice("all_gather", 1e9, 1 << 20).model_copy(update={"payload": "x"})

    def term(size: float, window: int) -> str:
        own = far.model_copy(update={"connections": (far.connections[0].model_copy(update={"segment_bytes": window}),)})
        group = Group(rows, links, 0.0, network={("all_gather", "x"): own})
        return decided_by(Flow("dp_replicate", "all_gather", "x", "dp_replicate", size, {}), group, EVERY_COPY)

    assert flow.size_bytes == 1e9
    assert term(1e9, 1 << 20) == "window across campus"
    assert term(1e9, 1 << 33) == "trunks of campus"
    assert term(1e3, 1 << 33) == "latency of campus"


def test_steps_name_the_levels_that_they_run_on() -> None:
    step = LevelStep(level="campus", algorithm="halving_doubling")
    with pytest.raises(ValueError, match="steps belong to a hierarchical algorithm, not to ring"):
        choice("all_gather", 1e9, 1, steps=(step,))
    with pytest.raises(ValueError, match="4 chunks; only a hierarchical algorithm is cut"):
        choice("all_gather", 1e9, 1, num_chunks=4)
    assert (
        choice("all_gather", 1e9, 1, algorithm="hierarchical", steps=(step,)).label
        == "hierarchical(halving_doubling campus)"
    )
