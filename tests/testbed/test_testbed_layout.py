"""The layout of a topology on one machine, without creating anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaleacross.catalogue import load_topology
from scaleacross.errors import InputError
from scaleacross.spec.topology import Topology
from scaleacross.testbed.layout import layout_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "testbed"


def example(name: str, **changes: Any) -> Topology:
    return load_topology(EXAMPLES / f"{name}.yaml").model_copy(update=changes)


def test_hosts_have_the_names_and_rates_that_a_launch_file_uses() -> None:
    layout = layout_of(example("two_buildings"), "sat-x-")
    assert [host.name for host in layout.hosts] == ["east-h00000", "east-h00001", "west-h00000", "west-h00001"]
    assert len({host.address for host in layout.hosts}) == 4
    assert {host.rate_bytes_per_s for host in layout.hosts} == {2.5e9 / 8}
    assert all(one.namespace.startswith("sat-x-") for one in (*layout.buildings, *layout.hosts))


def test_trunk_is_its_capacity_after_oversubscription() -> None:
    topology = example("two_buildings")
    (trunk,) = topology.trunks
    thin = topology.model_copy(update={"trunks": (trunk.model_copy(update={"oversubscription_ratio": 4.0}),)})
    (wire,) = layout_of(thin, "sat-x-").trunks
    assert (wire.rate_bytes_per_s, wire.delay_s) == (0.4e9 / 8 / 4, 5e-3)


def test_packets_take_the_path_of_least_latency() -> None:
    """Packets take the path of least latency: north–east is 5 ms directly and 4 ms through west."""
    layout = layout_of(example("three_buildings"), "sat-x-")
    east, west, north = layout.buildings
    by_west = next(trunk for trunk in layout.trunks if trunk.between == ("east", "west"))
    assert dict(east.routes)[north.gateway.rpartition(".")[0] + ".0/24"] == by_west.addresses[1]
    assert len(dict(east.routes)) == len(dict(west.routes)) == 2


def test_zones_and_racks_with_siblings_get_a_bridge_and_an_uplink() -> None:
    topology = example("two_buildings")
    (region,) = topology.regions
    building = region.buildings[0]
    link = building.links.building.model_copy(update={"oversubscription_ratio": 5.0})
    links = building.links.model_copy(update={"building": link})
    large = building.model_copy(update={"num_hosts": 8, "racks_per_zone": 2, "links": links})
    both = region.model_copy(update={"buildings": (large, region.buildings[1])})
    found = layout_of(topology.model_copy(update={"regions": (both,)}), "sat-x-").buildings[0]
    assert [bridge.name for bridge in found.bridges] == ["top", "z0", "z0r0", "z0r1", "z1", "z1r0", "z1r1"]
    zone = next(bridge for bridge in found.bridges if bridge.name == "z0")
    assert (zone.parent, zone.uplink_bytes_per_s) == ("top", pytest.approx(4 * 2.5e9 / 8 / 5))
    assert [host.bridge for host in found.hosts] == ["z0r0"] * 2 + ["z0r1"] * 2 + ["z1r0"] * 2 + ["z1r1"] * 2


@pytest.mark.parametrize("name", ["region_131072", "two_buildings_unequal"])
def test_what_one_machine_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="one machine"):
        layout_of(load_topology(name), "sat-x-")


def test_rate_beyond_the_machine_is_refused_with_its_number() -> None:
    topology = example("two_buildings")
    fast = topology.trunks[0].model_copy(update={"bandwidth_bytes_per_s": 400e9 / 8})
    with pytest.raises(InputError, match=r"400 Gbit/s; one machine passes on at most 10"):
        layout_of(topology.model_copy(update={"trunks": (fast,)}), "sat-x-")


def test_trunk_is_found_in_either_order() -> None:
    layout = layout_of(example("three_buildings"), "sat-x-")
    assert layout.trunk("west", "east") is layout.trunk("east", "west")
    with pytest.raises(InputError, match="no trunk between east and south; there are: east–west"):
        layout.trunk("east", "south")
