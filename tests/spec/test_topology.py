"""Counts, levels and inter-building links of a topology."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from scaleacross.catalogue import load_accelerator, load_network
from scaleacross.spec.topology import MAX_ACCELERATORS, Topology


def link(technology: str, **fields: Any) -> dict[str, Any]:
    return {"technology": load_network(technology), "one_way_latency_us": 3, **fields}


def topology(*buildings: dict[str, Any], trunks: tuple[dict[str, Any], ...] = (), **defaults: Any) -> Topology:
    roce = link("roce-400g")
    shared = {
        "accelerator": load_accelerator("h100-sxm"),
        "accelerators_per_host": 8,
        "hosts_per_rack": 2,
        "racks_per_zone": 4,
        "links": {"scale_up": link("nvlink4"), "rack": roce, "zone": roce, "building": roce},
    }
    return Topology.model_validate(
        {
            "name": "t",
            "building_defaults": {**shared, **defaults},
            "regions": [{"name": "r", "buildings": list(buildings)}],
            "trunks": list(trunks),
        }
    )


def test_full_zones_and_part_filled_zone() -> None:
    assert topology({"name": "a", "num_zones": 3}).num_accelerators == 3 * 4 * 2 * 8
    assert topology({"name": "a", "num_hosts": 13}).num_accelerators == 13 * 8


def test_levels_of_hosts_and_of_racks_as_scale_up_domain() -> None:
    hosts = topology({"name": "a", "num_zones": 2}).building("a")
    levels = ("scale_up", "rack", "zone", "building")
    assert [hosts.accelerators_per(level) for level in levels] == [8, 16, 64, 128]  # type: ignore[arg-type]
    nvl72 = topology(
        {
            "name": "a",
            "num_zones": 2,
            "accelerator": load_accelerator("gb200-nvl72"),
            "accelerators_per_host": 4,
            "hosts_per_rack": 18,
            "scale_up_domain": "rack",
        }
    ).building("a")
    assert [nvl72.accelerators_per(level) for level in levels] == [72, 72, 288, 576]  # type: ignore[arg-type]


def test_building_overrides_one_link_and_keeps_the_others() -> None:
    slow = {"building": {"oversubscription_ratio": 7}}
    a, b = topology(
        {"name": "a", "num_zones": 1},
        {"name": "b", "num_zones": 1, "links": slow},
        trunks=({"between": ["a", "b"], "one_way_latency_us": 20},),
    ).buildings
    assert (a.links.building.oversubscription_ratio, b.links.building.oversubscription_ratio) == (1.0, 7.0)
    assert b.links.building.technology == a.links.building.technology
    assert b.links.zone == a.links.zone


def test_buildings_of_different_accelerators() -> None:
    a, b = topology(
        {"name": "a", "num_zones": 1},
        {"name": "b", "num_zones": 1, "accelerator": load_accelerator("a100-80gb")},
        trunks=({"between": ["a", "b"], "one_way_latency_us": 20},),
    ).buildings
    assert (a.accelerator.name, b.accelerator.name) == ("h100-sxm", "a100-80gb")


@pytest.mark.parametrize(
    ("buildings", "trunks", "message"),
    [
        (({"name": "a"},), (), "exactly one of num_zones and num_hosts"),
        (({"name": "a", "num_zones": 1, "num_hosts": 1},), (), "exactly one of num_zones and num_hosts"),
        (({"name": "a", "num_zones": 1}, {"name": "a", "num_zones": 1}), (), "two buildings are called 'a'"),
        (({"name": "a", "num_zones": 1}, {"name": "b", "num_zones": 1}), (), r"no trunk path from 'a' to \['b'\]"),
        (({"name": "a", "num_zones": 1},), (("a", "z"),), "no building 'z'"),
        (({"name": "a", "num_zones": 1},), (("a", "a"),), "joins a building to itself"),
        (({"name": "a", "num_hosts": 1_250_000},), (), "10,000,000 accelerators; at most 1,048,576"),
        ((), (), "at least 1 item"),
        (({"name": "a", "num_zones": -1},), (), "greater than 0"),
        (({"name": "a; reboot", "num_zones": 1},), (), "'a; reboot' is no name"),
    ],
)
def test_refused(buildings: tuple[dict[str, Any], ...], trunks: tuple[tuple[str, str], ...], message: str) -> None:
    links = tuple({"between": list(ends), "one_way_latency_us": 20} for ends in trunks)
    with pytest.raises(ValidationError, match=message):
        topology(*buildings, trunks=links)


def test_largest_topology_is_accepted() -> None:
    assert topology({"name": "a", "num_hosts": MAX_ACCELERATORS // 8}).num_accelerators == MAX_ACCELERATORS


def test_dump_reads_back_as_the_same_topology() -> None:
    first = topology({"name": "a", "num_zones": 1})
    assert Topology.model_validate(first.model_dump(mode="json")) == first
