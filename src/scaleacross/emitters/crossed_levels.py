"""The link levels that a plan crosses, with what a library is set by: rate, round trip, and whether flows are hashed."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass

from scaleacross.emitters.rank_order import plan_topology
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Building, Topology


@dataclass(frozen=True)
class LevelFigures:
    """One link level that the plan crosses, worst case over the buildings used."""

    level: LinkLevel
    axes: tuple[str, ...]
    bandwidth_bytes_per_s: float
    round_trip_s: float
    hashed: bool

    @property
    def in_flight_bytes(self) -> float:
        """Bandwidth · round trip, bytes."""
        return self.bandwidth_bytes_per_s * self.round_trip_s


def crossed_levels(plan: Plan) -> tuple[LevelFigures, ...]:
    """Figures of every link level that an axis of the plan spans or that a communicator was decided to cross, innermost first."""
    topology = plan_topology(plan)
    used = [topology.building(share.building) for share in plan.placement.fill]
    axes: dict[LinkLevel, list[str]] = defaultdict(list)
    for axis, level in plan.placement.spans.items():
        axes[level].append(axis)
    for choice in plan.decision.network or ():
        for one in choice.connections:
            if choice.communicator not in axes[one.level]:
                axes[one.level].append(choice.communicator)
    return tuple(_figures(level, tuple(axes[level]), used, topology) for level in LINK_LEVELS if level in axes)


def _figures(level: LinkLevel, axes: tuple[str, ...], used: list[Building], topology: Topology) -> LevelFigures:
    if level in ("campus", "region"):
        links = [building.links.building for building in used]
        one_way = _trunk_latency(topology, level, [building.name for building in used])
    else:
        links = [getattr(building.links, level) for building in used]
        one_way = max(link.one_way_latency_s for link in links)
    return LevelFigures(
        level,
        axes,
        bandwidth_bytes_per_s=max(link.technology.bandwidth_bytes_per_s for link in links),
        round_trip_s=2.0 * one_way,
        hashed=any("ecmp" in link.technology.load_balancing.lower() for link in links),
    )


def _trunk_latency(topology: Topology, level: LinkLevel, names: list[str]) -> float:
    """Longest of the shortest one-way latencies between two used buildings of the level's kind, s."""
    longest = 0.0
    for here in names:
        reach = _latencies_from(topology, here)
        for there in names:
            same_region = topology.region_of(here) == topology.region_of(there)
            if there != here and same_region == (level == "campus"):
                longest = max(longest, reach[there])
    return longest


def _latencies_from(topology: Topology, start: str) -> dict[str, float]:
    """Dijkstra over the trunks: building -> shortest one-way latency from ``start``, s."""
    edges: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for trunk in topology.trunks:
        one, other = trunk.between
        edges[one].append((other, trunk.one_way_latency_s))
        edges[other].append((one, trunk.one_way_latency_s))
    found: dict[str, float] = {}
    frontier = [(0.0, start)]
    while frontier:
        latency, here = heapq.heappop(frontier)
        if here in found:
            continue
        found[here] = latency
        for there, more in edges[here]:
            heapq.heappush(frontier, (latency + more, there))
    return found
