"""The topology as numbers per link level, for one allocation (accelerators used of each building).

Index l runs over LINK_LEVELS (scale_up, rack, zone, building, campus, region). The *child* of level l is the unit that
its link joins: accelerator, scale-up domain, rack, zone, building, region.

* bandwidth[l]   what one accelerator sends across level l when it is alone, bytes/s (per direction, attainable)
* capacity[l]    what one child of level l sends across it in all, bytes/s: line rate of its accelerators divided by
                 oversubscription; at campus and region level the slowest link between two buildings that follow each
                 other in the allocation
* uplink[l]      capacity[l] per accelerator while all in the child send, which limits traffic farther out on its way
                 (rack, zone, building); inf where the adapters cannot use all of it
* latency[l]     one-way latency of a message, s
* num_links[l]   links between which a switch hashes flows on their way across level l; 0 where it does not, or where
                 the share of line rate that collectives attain already includes hashing (inside every building)
* loss[l]        packets lost on the way, and packet_bytes[l] the bytes of one (inf: only what was lost is sent again)
* message_overhead[l]   what every message of a further chunk adds, s; 0 inside a domain, the adapter's overhead on an
                 inter-building link
* routes         the inter-building links between any two of its buildings (``trunk_routes``)
* curves         measured collectives inside a scale-up domain (``collective_curves``), None where a building has none
* in_switch      whether the switches of every domain add up what passes

Where the buildings used differ, the slowest figure counts, because collectives are synchronous. Groups inside a
building do not wait for others, so ``by_type`` has the figures of the buildings of each accelerator type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.collective_curves import domain_table, slowest
from scaleacross.cost_models.trunk_routes import Routes
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.placement import BuildingShare
from scaleacross.spec.topology import Building, Topology
from scaleacross.spec.trunk_paths import TrunkPaths

NUM_LEVELS = len(LINK_LEVELS)
SCALE_UP, RACK, ZONE, BUILDING, CAMPUS, REGION = range(NUM_LEVELS)


@dataclass(frozen=True)
class Levels:
    """Link figures per level and the cuts of the device list, for one allocation.

    Attributes:
        cuts: the first global rank of every child of each level, (children,) each; cuts[0] is empty.
        by_type: figures of the buildings of each accelerator type alone, by its name; empty where there is one type.
    """

    bandwidth: Floats
    capacity: Floats
    latency: Floats
    cuts: tuple[Ints, ...]
    num_ranks: int
    accelerators: tuple[Accelerator, ...]
    routes: Routes
    curves: Floats | None = None
    in_switch: bool = False
    num_links: Floats = field(default_factory=lambda: np.zeros(NUM_LEVELS))
    loss: Floats = field(default_factory=lambda: np.zeros(NUM_LEVELS))
    packet_bytes: Floats = field(default_factory=lambda: np.full(NUM_LEVELS, np.inf))
    uplink: Floats = field(default_factory=lambda: np.full(NUM_LEVELS, np.inf))
    message_overhead: Floats = field(default_factory=lambda: np.zeros(NUM_LEVELS))
    by_type: Mapping[str, Levels] = field(default_factory=dict)

    def on(self, accelerator: str) -> Levels:
        """Figures that hold for groups inside the buildings of one accelerator type."""
        return self.by_type.get(accelerator, self)

    @cached_property
    def alignment(self) -> int:
        """Greatest unit that divides every cut: groups that differ only inside a unit behave alike."""
        return int(np.gcd.reduce(np.concatenate([*self.cuts[1:], [self.num_ranks]])))

    def children(self, unit: int) -> Ints:
        """Child of every level from rack outwards for each aligned ``unit`` of ranks, (NUM_LEVELS − 1, units)."""
        if unit not in self._children:
            starts = np.arange(0, self.num_ranks, unit)
            self._children[unit] = np.stack([np.searchsorted(cut, starts, side="right") for cut in self.cuts[1:]])
        return self._children[unit]

    @cached_property
    def _children(self) -> dict[int, Ints]:
        return {}


def build_levels(topology: Topology, allocation: Sequence[BuildingShare], paths: TrunkPaths | None = None) -> Levels:
    """Figures and cuts of an allocation.

    Raises:
        KeyError: a building of the allocation is not in the topology.
    """
    used = [topology.building(share.building) for share in allocation]
    bandwidth, capacity, uplink = (np.full(NUM_LEVELS, np.inf) for _ in range(3))
    latency, overhead = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS)
    inside = (("scale_up", None), ("rack", "scale_up"), ("zone", "rack"), ("building", "zone"))
    for building, share in zip(used, allocation, strict=True):
        for index, (level, child) in enumerate(inside):
            link = getattr(building.links, level)
            rate = link.technology.bandwidth_bytes_per_s * link.technology.efficiency_fraction
            size = 1 if child is None else building.accelerators_per(child)  # type: ignore[arg-type]
            bandwidth[index] = min(bandwidth[index], rate)
            whole = rate * size / link.oversubscription_ratio
            capacity[index] = min(capacity[index], whole)
            uplink[index] = min(uplink[index], whole / min(size, share.num_accelerators))
            latency[index] = max(latency[index], link.one_way_latency_s)
            overhead[index] = max(overhead[index], link.technology.message_overhead_s)
    overhead[SCALE_UP], overhead[CAMPUS:] = 0.0, overhead[BUILDING]
    bandwidth[CAMPUS:] = min(building.line_rate_bytes_per_s for building in used)
    paths = paths or TrunkPaths(topology)
    num_links, kept = np.zeros(NUM_LEVELS), np.ones(NUM_LEVELS)
    for here, there in _neighbours([share.building for share in allocation]):
        crossed = CAMPUS if topology.region_of(here) == topology.region_of(there) else REGION
        capacity[crossed] = min(capacity[crossed], paths.bytes_per_s(here, there))
        latency[crossed] = max(latency[crossed], paths.latency_s(here, there))
        kept[crossed] = min(
            kept[crossed], math.prod(1 - trunk.loss_fraction for trunk in paths.between(here, there).trunks)
        )
    ports, types = [building.links.building.technology for building in used], accelerator_types(used)
    # as many links as adapters' line rates fit into the slowest inter-building link
    if any("ecmp" in port.load_balancing.lower() for port in ports):
        num_links[CAMPUS:] = np.maximum(1.0, np.round(capacity[CAMPUS:] / bandwidth[CAMPUS:]))
    # only go-back-N sends more than the lost packet again
    again = [port.packet_bytes if port.retransmission == "go_back_n" else math.inf for port in ports]
    return Levels(
        bandwidth,
        capacity,
        latency,
        cuts=_cuts(topology, allocation),
        num_ranks=sum(share.num_accelerators for share in allocation),
        accelerators=types,
        routes=_routes(topology, allocation, paths, capacity),
        curves=slowest([_domain_curves(building) for building in used]),
        in_switch=all(building.links.scale_up.technology.in_switch_reduction for building in used),
        num_links=np.where(np.isfinite(num_links), num_links, 0.0),
        loss=1 - kept,
        packet_bytes=np.full(NUM_LEVELS, float(min(again))),
        uplink=_narrow(uplink, bandwidth),
        message_overhead=overhead,
        by_type={
            one.name: build_levels(topology, _of_type(one, used, allocation), paths) for one in types if len(types) > 1
        },
    )


def _of_type(
    accelerator: Accelerator, used: Sequence[Building], allocation: Sequence[BuildingShare]
) -> list[BuildingShare]:
    return [
        share for share, building in zip(allocation, used, strict=True) if building.accelerator.name == accelerator.name
    ]


def _routes(topology: Topology, allocation: Sequence[BuildingShare], paths: TrunkPaths, capacity: Floats) -> Routes:
    names = tuple(share.building for share in allocation)
    regions = [topology.region_of(name) for name in names]
    runs = np.cumsum([0, *(here != there for here, there in pairwise(regions))])
    return Routes(paths, names, tuple(runs.tolist()), capacity[CAMPUS:].copy())


def _narrow(uplink: Floats, bandwidth: Floats) -> Floats:
    """Uplinks beyond the scale-up domain that an adapter could saturate on its way farther out; inf elsewhere."""
    fastest = np.maximum.accumulate(bandwidth[::-1])[::-1]
    levels = np.arange(NUM_LEVELS)
    return np.where((levels >= RACK) & (levels < CAMPUS) & (uplink < fastest), uplink, np.inf)


def _domain_curves(building: Building) -> Floats | None:
    return domain_table(building.links.scale_up.technology.curves, building.accelerators_per("scale_up"))


def accelerator_types(used: Sequence[Building]) -> tuple[Accelerator, ...]:
    """The distinct accelerator types of some buildings."""
    return tuple({building.accelerator.name: building.accelerator for building in used}.values())


def collective_libraries(used: Sequence[Building]) -> tuple[str, ...]:
    """The distinct collective libraries of some buildings' accelerators, in capitals."""
    return tuple(dict.fromkeys(building.accelerator.collective_library.upper() for building in used))


def library_conflict(used: Sequence[Building]) -> str:
    """Return the reason why collectives cannot run over some buildings; empty where they run one library."""
    if len(several := collective_libraries(used)) < 2:
        return ""
    return (
        f"{', '.join(building.name for building in used)} run {' and '.join(several)}, whose collectives cannot join each "
        "other: use buildings with one library"
    )


def _neighbours(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of buildings between which a ring steps: consecutive ones, and from three on also last and first."""
    pairs = list(pairwise(names))
    return [*pairs, (names[-1], names[0])] if len(names) > 2 else pairs


def _cuts(topology: Topology, allocation: Sequence[BuildingShare]) -> tuple[Ints, ...]:
    starts: list[list[Ints]] = [[] for _ in range(NUM_LEVELS)]
    base, regions_seen = 0, ""
    for share in allocation:
        building = topology.building(share.building)
        for level, size in ((RACK, building.accelerators_per("scale_up")), (ZONE, building.accelerators_per("rack"))):
            starts[level].append(base + np.arange(0, share.num_accelerators, size, dtype=np.int64))
        zones = np.arange(0, share.num_accelerators, building.accelerators_per("zone"), dtype=np.int64)
        starts[BUILDING].append(base + zones)
        starts[CAMPUS].append(np.array([base], dtype=np.int64))
        if topology.region_of(share.building) != regions_seen:
            regions_seen = topology.region_of(share.building)
            starts[REGION].append(np.array([base], dtype=np.int64))
        base += share.num_accelerators
    return tuple(np.concatenate(level) if level else np.zeros(0, dtype=np.int64) for level in starts)


def host_unit(buildings: Sequence[Building]) -> int:
    """Least common multiple of the buildings' accelerators per host; allocations in multiples of it divide no host."""
    return math.lcm(*(building.accelerators_per_host for building in buildings))
