"""Levels: cuts, capacities, inter-building links and latencies of topologies made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from machines import GB, LATENCIES, RATES, accelerator, allocation, building, flat, topology, trunk

from scaleacross.cost_models.levels import (
    BUILDING,
    CAMPUS,
    RACK,
    REGION,
    SCALE_UP,
    ZONE,
    build_levels,
    host_unit,
)


def test_cuts_of_unequal_buildings_and_a_part_filled_zone() -> None:
    # hosts of 4, racks of 8, zones of 24: building a holds a full zone and 20 of the next, b holds 20
    fleet = topology([building("a", 11), building("b", 5)], trunks=[trunk("a", "b")])
    levels = build_levels(fleet, allocation(("a", 44), ("b", 20)))
    assert levels.cuts[RACK].tolist() == [*range(0, 44, 4), 44, 48, 52, 56, 60]
    assert levels.cuts[ZONE].tolist() == [0, 8, 16, 24, 32, 40, 44, 52, 60]
    assert levels.cuts[BUILDING].tolist() == [0, 24, 44]
    assert levels.cuts[CAMPUS].tolist() == [0, 44]
    assert levels.cuts[REGION].tolist() == [0]
    assert (levels.num_ranks, levels.alignment) == (64, 4)


def test_only_the_used_share_of_a_building_is_cut() -> None:
    fleet = topology([building("a", 11), building("b", 5)], trunks=[trunk("a", "b")])
    levels = build_levels(fleet, allocation(("b", 8), ("a", 12)))
    assert levels.cuts[ZONE].tolist() == [0, 8, 16]
    assert levels.cuts[BUILDING].tolist() == levels.cuts[CAMPUS].tolist() == [0, 8]


def test_a_rack_of_72_may_be_the_scale_up_domain() -> None:
    rack = {"per_host": 4, "hosts_per_rack": 18, "racks_per_zone": 2}
    levels = build_levels(topology([building("a", 36, domain="rack", **rack)]), allocation(("a", 144)))
    assert levels.cuts[RACK].tolist() == levels.cuts[ZONE].tolist() == [0, 72]
    assert levels.capacity[RACK] == 72 * RATES[1]
    assert levels.capacity[SCALE_UP] == RATES[0]


def test_capacity_is_the_line_rate_of_a_child_over_the_oversubscription() -> None:
    narrow = building("a", 12, oversubscription=(1, 2, 4, 7), efficiency=0.5)
    levels = build_levels(topology([narrow]), allocation(("a", 48)))
    assert levels.bandwidth[:CAMPUS].tolist() == [rate / 2 for rate in RATES]
    # children: accelerator, host of 4, rack of 8, zone of 24
    expected = [RATES[0] / 2, RATES[1] / 2 * 4 / 2, RATES[2] / 2 * 8 / 4, RATES[3] / 2 * 24 / 7]
    assert levels.capacity[:CAMPUS].tolist() == pytest.approx(expected, rel=1e-12)
    assert levels.latency[:CAMPUS].tolist() == list(LATENCIES)
    assert np.isinf(levels.capacity[CAMPUS:]).all()
    assert not levels.latency[CAMPUS:].any()


def test_trunk_by_bandwidth() -> None:
    wire = trunk("a", "b", 3e-3, bandwidth_bytes_per_s=8 * GB, oversubscription_ratio=2, efficiency_fraction=0.75)
    levels = build_levels(topology([building("a", 2), building("b", 2)], trunks=[wire]), allocation(("a", 8), ("b", 8)))
    assert levels.capacity[CAMPUS] == 8 * GB / 2 * 0.75
    assert levels.latency[CAMPUS] == 3e-3
    assert levels.bandwidth[CAMPUS] == RATES[3], "a NIC sends no faster across buildings than inside one"


def test_trunk_by_ratio_counts_the_smaller_building() -> None:
    # b: 8 accelerators × 10 GB/s = 80 GB/s, 1:16 of it
    wire = trunk("a", "b", bandwidth_bytes_per_s=None, oversubscription_ratio=16)
    levels = build_levels(
        topology([building("a", 6), building("b", 2)], trunks=[wire]), allocation(("a", 24), ("b", 8))
    )
    assert levels.capacity[CAMPUS] == 8 * 10 * GB / 16


def test_trunk_of_several_hops_adds_latencies_and_is_as_wide_as_its_thinnest() -> None:
    names = [building(name, 2) for name in "abc"]
    wires = [trunk("a", "b", 1e-3, bandwidth_bytes_per_s=9 * GB), trunk("b", "c", 2e-3, bandwidth_bytes_per_s=3 * GB)]
    levels = build_levels(topology(names, trunks=wires), allocation(("a", 8), ("c", 8)))
    assert (levels.latency[CAMPUS], levels.capacity[CAMPUS]) == (pytest.approx(3e-3), 3 * GB)


def test_figures_are_those_of_the_path_and_rings_close_over_three_buildings() -> None:
    wires = [trunk("a", "b", 1e-3), trunk("b", "c", 1e-3), trunk("a", "c", 5e-3, bandwidth_bytes_per_s=GB)]
    fleet = topology([building(name, 2) for name in "abc"], trunks=wires)
    assert build_levels(fleet, allocation(("a", 8), ("c", 8))).latency[CAMPUS] == pytest.approx(2e-3), "through b"
    assert build_levels(fleet, allocation(("a", 8), ("b", 8))).latency[CAMPUS] == pytest.approx(1e-3)
    # a, b, c: the ring closes from c to a
    whole = build_levels(fleet, allocation(("a", 8), ("b", 8), ("c", 8)))
    assert (whole.latency[CAMPUS], whole.capacity[CAMPUS]) == (pytest.approx(2e-3), 5 * GB)


def test_two_regions_use_the_region_level_between_them() -> None:
    wires = [trunk("a", "b", 1e-4), trunk("b", "c", 5e-3, bandwidth_bytes_per_s=2 * GB)]
    fleet = topology([building("a", 2), building("b", 2)], [building("c", 2)], trunks=wires)
    far = build_levels(fleet, allocation(("b", 8), ("c", 8)))
    assert (far.latency[CAMPUS], far.capacity[CAMPUS]) == (0, np.inf)
    assert (far.latency[REGION], far.capacity[REGION]) == (5e-3, 2 * GB)
    whole = build_levels(fleet, allocation(("a", 8), ("b", 8), ("c", 8)))
    assert whole.cuts[CAMPUS].tolist() == [0, 8, 16]
    assert whole.cuts[REGION].tolist() == [0, 16]
    assert (whole.latency[CAMPUS], whole.capacity[CAMPUS]) == (1e-4, 5 * GB)
    assert whole.latency[REGION] == pytest.approx(5.1e-3), "the ring closes from c to a through b"


def test_mixed_buildings_the_slowest_figure_of_each_level_counts() -> None:
    old, new = accelerator("old"), accelerator("new", peak_flop_per_s={"bf16": 400e12})
    slow = building("a", 2, chip=old, rates=(80 * GB, 60 * GB, 20 * GB, 4 * GB), latencies=(1e-6, 9e-6, 4e-6, 8e-6))
    fleet = topology([slow, building("b", 2, chip=new)], trunks=[trunk("a", "b")])
    levels = build_levels(fleet, allocation(("a", 8), ("b", 8)))
    assert [chip.name for chip in levels.accelerators] == ["old", "new"]
    assert levels.bandwidth.tolist() == [80 * GB, 50 * GB, 20 * GB, 4 * GB, 4 * GB, 4 * GB]
    assert levels.latency[RACK] == 9e-6
    assert [chip.name for chip in build_levels(fleet, allocation(("b", 8))).accelerators] == ["new"]


def test_shares_come_in_whole_hosts_of_every_building() -> None:
    assert host_unit([building("a", 3, per_host=4), building("b", 2, per_host=6)]) == 12


def test_unknown_building() -> None:
    with pytest.raises(KeyError, match="b7"):
        build_levels(flat(2, 4), allocation(("b7", 4)))
