"""Describes a topology as namespaces, bridges and shaped links. Nothing is executed here.

Every host is a namespace. So is every building: a router with a bridge for itself and one for each zone and rack that
has siblings. Inter-building links join routers, so any graph of buildings works. Packets follow the paths of
``spec.trunk_paths``, as in a plan.

* network adapter of a host     bandwidth of the rack's technology · accelerators per host, both directions
* uplink of a rack or zone      rate of what is below it / oversubscription
* inter-building link           its capacity / oversubscription; delay and loss as stated

Latencies inside a building are those of this machine (tens of microseconds): they are measured, not emulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, permutations
from typing import Final

from scaleacross.errors import InputError
from scaleacross.spec.topology import Building, Topology, trunk_bytes_per_s
from scaleacross.spec.trunk_paths import TrunkPaths

MAX_HOSTS: Final = 64
MAX_BUILDINGS: Final = 16
MAX_RATE_BYTES_PER_S: Final = 10e9 / 8
"""Larger rates exceed what one machine forwards for two hosts at once."""


@dataclass(frozen=True)
class Bridge:
    """A switch inside a building. ``parent`` is the bridge above it (None at the top), to which its uplink leads."""

    name: str
    parent: str | None
    uplink_bytes_per_s: float


@dataclass(frozen=True)
class Host:
    """A host; ``name`` is its name in a launch file, ``port`` its interface on ``bridge``."""

    name: str
    namespace: str
    bridge: str
    port: str
    address: str
    rate_bytes_per_s: float


@dataclass(frozen=True)
class BuildingNet:
    """A building: a routing namespace, its bridges, its hosts, and routes to other buildings as (subnet, next hop)."""

    name: str
    namespace: str
    gateway: str
    bridges: tuple[Bridge, ...]
    hosts: tuple[Host, ...]
    routes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TrunkWire:
    """An inter-building link: the namespaces of its ends, its name ``device`` in both, and their addresses."""

    between: tuple[str, str]
    ends: tuple[str, str]
    device: str
    addresses: tuple[str, str]
    rate_bytes_per_s: float
    delay_s: float
    loss_fraction: float

    @property
    def name(self) -> str:
        """Names of both buildings."""
        return "–".join(self.between)


@dataclass(frozen=True)
class Layout:
    """Everything that is made; the names of all namespaces begin with ``prefix``."""

    prefix: str
    buildings: tuple[BuildingNet, ...]
    trunks: tuple[TrunkWire, ...]

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts, building by building."""
        return tuple(host for building in self.buildings for host in building.hosts)

    @property
    def ranks(self) -> dict[str, tuple[int, ...]]:
        """Ranks of every building, with one on each host."""
        numbers = count()
        return {building.name: tuple(islice(numbers, len(building.hosts))) for building in self.buildings}

    def trunk(self, one: str, other: str) -> TrunkWire:
        """Return the link between two buildings, in either order. Raises InputError if there is none."""
        for trunk in self.trunks:
            if {one, other} == set(trunk.between):
                return trunk
        names = ", ".join(trunk.name for trunk in self.trunks) or "none"
        raise InputError(f"no trunk between {one} and {other}; there are: {names}")


def layout_of(topology: Topology, prefix: str) -> Layout:
    """Return the layout of ``topology`` on one machine.

    Raises:
        InputError: it is too large or too fast for one machine, or has scale-up domains of several hosts.
    """
    _check_size(topology)
    buildings = topology.buildings
    numbers = {building.name: index for index, building in enumerate(buildings, 1)}
    trunks = tuple(
        TrunkWire(
            between=trunk.between,
            ends=(f"{prefix}{trunk.between[0]}", f"{prefix}{trunk.between[1]}"),
            device=f"trunk{index}",
            addresses=(f"10.78.{index}.1", f"10.78.{index}.2"),
            rate_bytes_per_s=trunk_bytes_per_s(topology, trunk) / trunk.oversubscription_ratio,
            delay_s=trunk.one_way_latency_s,
            loss_fraction=trunk.loss_fraction,
        )
        for index, trunk in enumerate(topology.trunks)
    )
    for wire in trunks:
        _check_rate(f"trunk {wire.name}", wire.rate_bytes_per_s)
    hops = _next_hops(topology, trunks)
    return Layout(
        prefix,
        tuple(
            _building(
                building,
                numbers[building.name],
                prefix,
                tuple((f"10.77.{numbers[there]}.0/24", hop) for there, hop in hops[building.name].items()),
            )
            for building in buildings
        ),
        trunks,
    )


def _building(building: Building, number: int, prefix: str, routes: tuple[tuple[str, str], ...]) -> BuildingNet:
    bridges, hosts = list(_bridges(building)), []
    rate = building.links.rack.technology.bandwidth_bytes_per_s * building.accelerators_per_host
    _check_rate(f"network adapters of a host in {building.name}", rate)
    for index in range(building.hosts):
        rack = index // building.hosts_per_rack
        zone, rack_in_zone = divmod(rack, building.racks_per_zone)
        places = (f"z{zone}r{rack_in_zone}", f"z{zone}", "top")
        # a host attaches to the innermost bridge that exists
        here = next(place for place in places if any(bridge.name == place for bridge in bridges))
        hosts.append(
            Host(
                name=f"{building.name}-h{index:05d}",
                namespace=f"{prefix}{building.name}-h{index:05d}",
                bridge=here,
                port=f"h{index}",
                address=f"10.77.{number}.{index + 1}",
                rate_bytes_per_s=rate,
            )
        )
    return BuildingNet(
        building.name, f"{prefix}{building.name}", f"10.77.{number}.254", tuple(bridges), tuple(hosts), routes
    )


def _bridges(building: Building) -> Iterator[Bridge]:
    """Yield the bridge of the building, then those of zones and racks that have siblings."""
    yield Bridge("top", None, math.inf)
    links, each = building.links, building.accelerators_per_host
    num_racks = math.ceil(building.hosts / building.hosts_per_rack)
    num_zones = math.ceil(num_racks / building.racks_per_zone)
    per_rack = building.hosts_per_rack * each
    for zone in range(num_zones):
        above = "top"
        if num_zones > 1:
            above, link = f"z{zone}", links.building
            size = per_rack * building.racks_per_zone
            yield Bridge(above, "top", link.technology.bandwidth_bytes_per_s * size / link.oversubscription_ratio)
        racks = range(min(building.racks_per_zone, num_racks - zone * building.racks_per_zone))
        if len(racks) > 1:
            rate = links.zone.technology.bandwidth_bytes_per_s * per_rack / links.zone.oversubscription_ratio
            yield from (Bridge(f"z{zone}r{rack}", above, rate) for rack in racks)


def _next_hops(topology: Topology, trunks: Sequence[TrunkWire]) -> dict[str, dict[str, str]]:
    """Return [building][other building] -> address of the neighbour on the path there."""
    paths, address = TrunkPaths(topology), dict[tuple[str, str], str]()
    for trunk in trunks:
        (here, there), (of_here, of_there) = trunk.between, trunk.addresses
        address[here, there], address[there, here] = of_there, of_here
    hops: dict[str, dict[str, str]] = {building.name: {} for building in topology.buildings}
    for here, there in permutations(hops, 2):
        _, neighbour, *_ = paths.between(here, there).buildings
        hops[here][there] = address[here, neighbour]
    return hops


def _check_size(topology: Topology) -> None:
    num_hosts, buildings = sum(building.hosts for building in topology.buildings), topology.buildings
    if num_hosts > MAX_HOSTS or len(buildings) > MAX_BUILDINGS:
        raise InputError(
            f"topology {topology.name}: {num_hosts} hosts in {len(buildings)} buildings; one machine emulates at most "
            f"{MAX_HOSTS} and {MAX_BUILDINGS}. `scaleacross testbed example` writes a topology that fits"
        )
    for building in buildings:
        if building.scale_up_domain == "rack" and building.hosts_per_rack > 1:
            raise InputError(
                f"building {building.name}: scale_up_domain rack; emulated hosts share no memory, so a domain is one host"
            )


def _check_rate(what: str, rate: float) -> None:
    if rate > MAX_RATE_BYTES_PER_S:
        raise InputError(
            f"{what}: {rate * 8e-9:,.4g} Gbit/s; one machine passes on at most {MAX_RATE_BYTES_PER_S * 8e-9:g}. "
            "State rates that it can carry, e.g. trunks of 0.1 to 1 and network adapters of 2.5 Gbit/s"
        )
