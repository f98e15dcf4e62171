"""A plan's accelerators as a network of ASTRA-sim's analytical backend: one switch dimension per level, innermost
first.

Its dimensions are uniform: every domain, rack, zone and building must hold equally many of the plan's accelerators.
Bandwidth is that of one accelerator when all of its unit send at once (oversubscription counted), in GiB/s, which the
backend calls GB/s. A switch is two links away, each with half of the level's latency.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from scaleacross.emitters.rank_order import plan_topology
from scaleacross.spec.network import LinkLevel
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Building, Topology, attainable_trunk_bytes_per_s

GIB: Final = 2.0**30
INSIDE: Final[tuple[LinkLevel, ...]] = ("scale_up", "rack", "zone", "building")


class AstraNetwork(NamedTuple):
    """``network.yml`` and its number of dimensions, or an empty text and why the backend cannot express the network."""

    text: str
    num_dimensions: int = 1
    reason: str = ""


def astra_network(plan: Plan) -> AstraNetwork:
    """Return the network that joins the accelerators of a plan."""
    topology, allocation = plan_topology(plan), plan.placement.fill
    if len({share.num_accelerators for share in allocation}) > 1:
        unequal = ", ".join(f"{share.building} {share.num_accelerators:,}" for share in allocation)
        return _refused(f"it has equal parts only; the plan uses {unequal} accelerators")
    buildings, size = [topology.building(share.building) for share in allocation], allocation[0].num_accelerators
    rows: list[tuple[int, float, float]] = []
    inner, outside = 1, math.inf
    for level in INSIDE:
        units = {min(building.accelerators_per(level), size) for building in buildings}
        unit = max(units)
        if len(units) > 1 or size % unit or unit % inner:
            return _refused(f"it has equal parts only; units of level {level} do not divide {size:,} accelerators")
        rates, latencies = zip(*(_inside(building, level) for building in buildings), strict=True)
        # outside the scale-up domain traffic passes all inner levels, so none of these levels is faster than the one
        # inside it
        rate = min(rates) if level == "scale_up" else min(outside, *rates)
        outside = outside if level == "scale_up" else rate
        rows += [(unit // inner, rate, max(latencies))] if unit > inner else []
        inner = unit
    if len(allocation) > 1:
        found = _between(topology, [share.building for share in allocation], size)
        if found is None:
            return _refused("a dimension joins all its members; some buildings have no link between them")
        rows.append((len(allocation), min(outside, found[0]), found[1]))
    return AstraNetwork(_text(rows), len(rows)) if rows else _refused("one accelerator is no network")


def _refused(why: str) -> AstraNetwork:
    return AstraNetwork("", 1, f"ASTRA-sim's analytical network cannot express the topology: {why}")


def _inside(building: Building, level: LinkLevel) -> tuple[float, float]:
    """Return bytes/s of one accelerator while all send, and one-way latency in seconds."""
    link = getattr(building.links, level)
    rate = link.technology.bandwidth_bytes_per_s * link.technology.efficiency_fraction
    return rate / link.oversubscription_ratio, link.one_way_latency_s


def _between(topology: Topology, names: list[str], size: int) -> tuple[float, float] | None:
    """Return bytes/s per accelerator over its building's slowest link to another, and the longest latency (s).

    None where some buildings have no link between them.
    """
    there = {frozenset(trunk.between): trunk for trunk in topology.trunks}
    pairs = [frozenset((a, b)) for index, a in enumerate(names) for b in names[:index]]
    if any(pair not in there for pair in pairs):
        return None
    trunks = [there[pair] for pair in pairs]
    slowest = min(attainable_trunk_bytes_per_s(topology, trunk) for trunk in trunks)
    # the accelerators of a building share its links to all others
    return slowest * (len(names) - 1) / size, max(trunk.one_way_latency_s for trunk in trunks)


def _text(rows: list[tuple[int, float, float]]) -> str:
    def listed(values: list[object]) -> str:
        return "[ " + ", ".join(map(str, values)) + " ]"

    return (
        f"topology: {listed(['Switch'] * len(rows))}\n"
        f"npus_count: {listed([count for count, _, _ in rows])}\n"
        f"bandwidth: {listed([round(rate / GIB, 3) for _, rate, _ in rows])}  # GiB/s\n"
        f"latency: {listed([round(latency * 1e9 / 2, 1) for _, _, latency in rows])}  # ns, of each of two links\n"
    )
