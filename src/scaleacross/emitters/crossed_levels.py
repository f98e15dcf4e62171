"""The link levels that a plan crosses, with the figures that determine a library's settings: rate, round trip, hashing
of flows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import permutations

from scaleacross.emitters.rank_order import plan_topology
from scaleacross.spec.network import LINK_LEVELS, LinkLevel, Transport
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Building, Topology
from scaleacross.spec.trunk_paths import TrunkPaths


@dataclass(frozen=True)
class LevelFigures:
    """One link level that the plan crosses, worst case over the buildings used."""

    level: LinkLevel
    axes: tuple[str, ...]
    bandwidth_bytes_per_s: float
    round_trip_s: float
    hashed: bool
    transport: Transport | None = None

    @property
    def in_flight_bytes(self) -> float:
        """Bandwidth · round trip, bytes."""
        return self.bandwidth_bytes_per_s * self.round_trip_s


def crossed_levels(plan: Plan) -> tuple[LevelFigures, ...]:
    """Return figures of every link level that an axis or a communicator's network crosses, innermost first."""
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
    transport = None
    if level in ("campus", "region"):
        links = [building.links.building for building in used]
        one_way, transport = _over_trunks(topology, level, [building.name for building in used])
    else:
        links = [getattr(building.links, level) for building in used]
        one_way = max(link.one_way_latency_s for link in links)
    return LevelFigures(
        level,
        axes,
        bandwidth_bytes_per_s=max(link.technology.bandwidth_bytes_per_s for link in links),
        round_trip_s=2.0 * one_way,
        hashed=any("ecmp" in link.technology.load_balancing.lower() for link in links),
        transport=transport,
    )


def _over_trunks(topology: Topology, level: LinkLevel, names: list[str]) -> tuple[float, Transport | None]:
    """Return the longest one-way latency (s) between two used buildings at this level, and the transport.

    One TCP link on such a path makes the whole level TCP, because a communicator has one network for all of its peers.
    """
    paths = TrunkPaths(topology)
    longest, carried = 0.0, set[Transport | None]()
    for here, there in permutations(names, 2):
        # campus links stay within a region, region links leave it
        if (topology.region_of(here) == topology.region_of(there)) == (level == "campus"):
            longest = max(longest, paths.latency_s(here, there))
            carried |= {trunk.transport for trunk in paths.between(here, there).trunks}
    return longest, "tcp" if "tcp" in carried else "roce" if carried == {"roce"} else None


def axes_over_sockets(plan: Plan) -> frozenset[str]:
    """Return the axes of a plan whose groups cross an inter-building link that is stated as TCP."""
    levels = [one.level for one in crossed_levels(plan) if one.transport == "tcp"]
    inmost = min((LINK_LEVELS.index(level) for level in levels), default=len(LINK_LEVELS))
    return frozenset(axis for axis, level in plan.placement.spans.items() if LINK_LEVELS.index(level) >= inmost)
