"""The network under a placement: the unit that holds every rank, and every link with its capacity and latency.

``machine`` builds it. Link levels are those of ``spec.network``: 0 scale_up, 1 rack, 2 zone, 3 building, 4 campus, 5
region. The *unit* of level l is what its link joins: accelerator, scale-up domain, rack, zone, building, region. Links:

* port         from an accelerator into its scale-up domain; its capacity is 1, and a flow of rate r loads it with r
               over the rate that it reaches alone
* nic          out of and into an accelerator: the fastest of the levels rack, zone and building
* uplink       out of and into a unit of level 1, 2, 3: rate · accelerators / oversubscription; none where nics cannot
               saturate it, which is where the level is neither oversubscribed nor slower than the nics
* trunk        inter-building link, one per direction; buildings without a trunk of their own use the path of least
               latency

Ranks are stored as *blocks* of neighbouring global ranks that are equivalent: the same scale-up domain and the same
place on every axis but the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.placement import Placement, strides
from scaleacross.spec.topology import Building, Topology, attainable_trunk_bytes_per_s
from scaleacross.spec.trunk_paths import TrunkPaths

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NUM_LEVELS = len(LINK_LEVELS)
SCALE_UP, RACK, ZONE, BUILDING, CAMPUS, REGION = range(NUM_LEVELS)
INSIDE = (RACK, ZONE, BUILDING)


@dataclass(frozen=True)
class Slowdown:
    """Remaining share of the stated capacity, by link level and by inter-building link (pair of buildings)."""

    levels: Mapping[int, float] = field(default_factory=dict)
    trunks: Mapping[frozenset[str], float] = field(default_factory=dict)


class Haul(NamedTuple):
    """Packet loss on the path between two buildings.

    Attributes:
        loss_fraction: share of packets lost over all links of the path.
        packet_bytes: size of one packet; inf where only lost packets are sent again.
    """

    loss_fraction: float
    packet_bytes: float


@dataclass(frozen=True)
class Fabric:
    """Blocks, units and links of one placement; n blocks.

    Attributes:
        width: global ranks per block.
        units: (NUM_LEVELS, n) unit of each level that holds the block; row 0 numbers the blocks.
        building: (n,) index into ``buildings``.
        buildings: buildings of the allocation, in its order.
        rates: (NUM_LEVELS, buildings) rate of one accelerator across a level, bytes/s.
        latency: (NUM_LEVELS, buildings) one-way latency, s; inter-building links have their own.
        overhead: (NUM_LEVELS, buildings) time that every message of a further chunk adds, s.
        capacity: (links,) bytes/s.
        uplinks: (2, NUM_LEVELS, units) link out of and into a unit, -1 where it has none.
        trunk_links: (from, to) -> links of the path, and its latency, s.
        hauls: (from, to) -> packet loss on the path.
        parallel: inter-building link -> its level, and the number of parallel links onto which switches hash flows (0:
            they do not hash).
        link_names: link -> name; uplinks and inter-building links only.
    """

    width: int
    units: Ints
    building: Ints
    buildings: tuple[Building, ...]
    rates: Floats
    latency: Floats
    overhead: Floats
    capacity: Floats
    uplinks: Ints
    trunk_links: Mapping[tuple[int, int], tuple[tuple[int, ...], float]]
    hauls: Mapping[tuple[int, int], Haul]
    parallel: Mapping[int, tuple[int, int]]
    link_names: Mapping[int, str]

    @property
    def num_blocks(self) -> int:
        """Number of blocks, n."""
        return len(self.building)

    def port(self, blocks: Ints) -> Ints:
        """Return the links into the scale-up domain: they have the numbers of their blocks."""
        return blocks

    def nic(self, blocks: Ints, inward: bool) -> Ints:
        """Return the nic links out of, or into, an accelerator of each block."""
        return blocks + self.num_blocks * (2 if inward else 1)

    def crossed(self, source: Ints, target: Ints) -> Ints:
        """Return the outermost level whose units differ; 0 within a scale-up domain."""
        differ = self.units[:, source] != self.units[:, target]
        differ[SCALE_UP] = True
        last: Ints = NUM_LEVELS - 1 - np.argmax(differ[::-1], axis=0)
        return last

    def hop(self, source: Ints, target: Ints) -> tuple[Ints, Floats, Floats]:
        """Return level, rate of one accelerator (bytes/s) and latency (s) from each ``source`` to its ``target``."""
        level, here, there = self.crossed(source, target), self.building[source], self.building[target]
        inner = np.minimum(level, BUILDING)
        rate = np.minimum(self.rates[inner, here], self.rates[inner, there])
        latency = np.maximum(self.latency[inner, here], self.latency[inner, there])
        for index in np.flatnonzero(level >= CAMPUS):
            latency[index] = self.trunk_links[int(here[index]), int(there[index])][1]
        return level, rate, latency


def block_width(topology: Topology, placement: Placement, degrees: Degrees) -> int:
    """Return the largest number of neighbouring ranks that share a domain and differ on the fastest axis only."""
    stride = strides(degrees, placement.axis_order)
    fastest = next((axis for axis in placement.axis_order if degrees.of(axis) > 1), placement.axis_order[0])
    if fastest == "pp":
        return 1
    parts = [degrees.of(fastest)]
    if fastest == "dp_shard":
        parts.append(degrees.ep * stride["dp_shard"])
    if fastest == "cp" and degrees.cp_inner > 1:
        parts.append(degrees.cp_inner * stride["cp"])
    base = 0
    for share in placement.fill:
        building = topology.building(share.building)
        parts += [building.accelerators_per("scale_up"), share.num_accelerators, base]
        base += share.num_accelerators
    return math.gcd(*parts)


def build_fabric(topology: Topology, placement: Placement, width: int, slowdown: Slowdown | None = None) -> Fabric:
    """Build the fabric of a placement in blocks of ``width`` global ranks.

    Raises:
        KeyError: a building of the placement is not in the topology.
    """
    buildings = tuple(topology.building(share.building) for share in placement.fill)
    slow = slowdown or Slowdown()
    counts = [share.num_accelerators // width for share in placement.fill]
    building = np.repeat(np.arange(len(buildings)), counts)
    units = _units(topology, placement, width, counts)
    rates, latency, overhead = _figures(buildings, slow)
    n = len(building)
    nic = rates[RACK : BUILDING + 1].max(axis=0)[building]
    capacity = [np.ones(n), nic, nic]
    uplinks, names = _uplinks(buildings, units, building, rates, capacity)
    trunks = _trunks(topology, placement, buildings, capacity, names, slow)
    links = np.concatenate(capacity)
    return Fabric(width, units, building, buildings, rates, latency, overhead, links, uplinks, *trunks, names)


def _units(topology: Topology, placement: Placement, width: int, counts: Sequence[int]) -> Ints:
    """Return (NUM_LEVELS, n) unit of each block; units are numbered through all buildings."""
    rows: list[Ints] = []
    base = np.zeros(NUM_LEVELS, dtype=np.int64)
    region, seen = -1, ""
    for index, (share, count) in enumerate(zip(placement.fill, counts, strict=True)):
        building = topology.building(share.building)
        if topology.region_of(share.building) != seen:
            seen, region = topology.region_of(share.building), region + 1
        at = np.arange(count) * width
        sizes = (width, *(building.accelerators_per(level) for level in ("scale_up", "rack", "zone")))
        inside = [base[level] + at // size for level, size in enumerate(sizes)]
        rows.append(np.stack([*inside, np.full(count, index), np.full(count, region)]))
        base[:CAMPUS] = [one[-1] + 1 for one in inside]
    return np.concatenate(rows, axis=1)


def _figures(buildings: Sequence[Building], slow: Slowdown) -> tuple[Floats, Floats, Floats]:
    """Return rates (bytes/s), latencies (s) and message overheads (s), each (NUM_LEVELS, buildings)."""
    rates, latency, overhead = np.zeros((3, NUM_LEVELS, len(buildings)))
    for index, building in enumerate(buildings):
        for level in range(CAMPUS):
            link = getattr(building.links, LINK_LEVELS[level])
            technology = link.technology
            left = slow.levels.get(level, 1.0)
            rates[level, index] = technology.bandwidth_bytes_per_s * technology.efficiency_fraction * left
            latency[level, index] = link.one_way_latency_s
            overhead[level, index] = technology.message_overhead_s
        overhead[CAMPUS:, index] = overhead[BUILDING, index]
    return rates, latency, overhead


def _uplinks(
    buildings: Sequence[Building], units: Ints, building: Ints, rates: Floats, capacity: list[Floats]
) -> tuple[Ints, dict[int, str]]:
    """Append the uplinks of oversubscribed units to ``capacity``; return their numbers and names."""
    uplinks = np.full((2, NUM_LEVELS, int(units[1:].max(initial=0)) + 1), -1, dtype=np.int64)
    names: dict[int, str] = {}
    number, fastest = sum(map(len, capacity)), rates[RACK : BUILDING + 1].max(axis=0)
    for level in INSIDE:
        ids, first = np.unique(units[level], return_index=True)
        for unit, block in zip(ids.tolist(), first.tolist(), strict=True):
            index = int(building[block])
            link, one = getattr(buildings[index].links, LINK_LEVELS[level]), buildings[index]
            rate = rates[level, index]
            # nics run at the fastest level's rate, so a slower level limits them even without oversubscription
            if link.oversubscription_ratio == 1 and rate >= fastest[index]:
                continue
            size = one.accelerators_per(LINK_LEVELS[level - 1])
            for way, word in enumerate(("out of", "into")):
                names[number + way] = f"{LINK_LEVELS[level]} uplink {word} unit {unit} of {one.name}"
                uplinks[way, level, unit] = number + way
            capacity.append(np.full(2, rate * size / link.oversubscription_ratio))
            number += 2
    return uplinks, names


Trunks = tuple[
    dict[tuple[int, int], tuple[tuple[int, ...], float]], dict[tuple[int, int], Haul], dict[int, tuple[int, int]]
]


def _trunks(
    topology: Topology,
    placement: Placement,
    buildings: Sequence[Building],
    capacity: list[Floats],
    names: dict[int, str],
    slow: Slowdown,
) -> Trunks:
    """Append the inter-building links to ``capacity``.

    Returns:
        Paths between all buildings of the allocation, packet loss on them, and the parallel links of every trunk.
    """
    number = sum(map(len, capacity))
    ports = [building.links.building.technology for building in buildings]
    hashes, line = (
        any("ecmp" in port.load_balancing.lower() for port in ports),
        min(b.line_rate_bytes_per_s for b in buildings),
    )
    packet = min(port.packet_bytes if port.retransmission == "go_back_n" else math.inf for port in ports)
    found, ways = TrunkPaths(topology), dict[tuple[str, str], int]()
    parallel: dict[int, tuple[int, int]] = {}
    for trunk in topology.trunks:
        far = CAMPUS if topology.region_of(trunk.between[0]) == topology.region_of(trunk.between[1]) else REGION
        left = slow.levels.get(far, 1.0) * slow.trunks.get(frozenset(trunk.between), 1.0)
        rate = attainable_trunk_bytes_per_s(topology, trunk) * left
        for a, b in (trunk.between, trunk.between[::-1]):
            names[number] = f"trunk {a} to {b}"
            ways[a, b] = number
            parallel[number] = (far, max(1, round(rate / line)) if hashes else 0)
            capacity.append(np.array([rate]))
            number += 1
    paths: dict[tuple[int, int], tuple[tuple[int, ...], float]] = {}
    hauls: dict[tuple[int, int], Haul] = {}
    for (i, here), (j, there) in permutations(enumerate(share.building for share in placement.fill), 2):
        path = found.between(here, there)
        paths[i, j] = (tuple(ways[step] for step in pairwise(path.buildings)), found.latency_s(here, there))
        hauls[i, j] = Haul(1 - math.prod(1 - trunk.loss_fraction for trunk in path.trunks), packet)
    return paths, hauls, parallel
