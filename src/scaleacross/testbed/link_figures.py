"""Bandwidth and latency of every level as the runtime meets them: all-reduces of two hosts, a short and a long one.

Two ranks in a ring exchange S/2 twice: t(S) = 2·α + S/W. A few bytes give α, many W. Pairs inside all buildings run at once,
trunks one after another. What more hosts and other algorithms take follows from these by the planner's own formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaleacross.errors import EmulationError
from scaleacross.spec.base import Provenance
from scaleacross.spec.network import LevelLink
from scaleacross.spec.topology import Building, BuildingLinks, Topology, trunk_bytes_per_s
from scaleacross.testbed.cases import Case, Timing
from scaleacross.testbed.session import Testbed

SHORT_BYTES: Final = 4096
LONG_BYTES: Final = 4 << 20
SHORT_RUNS, LONG_RUNS = 15, 5
INSIDE: Final = "inside"


@dataclass(frozen=True)
class LinkFigure:
    """α and W of a level."""

    latency_s: float
    bytes_per_s: float


def link_cases(testbed: Testbed) -> list[Case]:
    """What has to be timed, short ones first."""
    first: dict[str, list[int]] = {}
    for rank, host in enumerate(testbed.layout.hosts):
        first.setdefault(host.name.rpartition("-h")[0], []).append(rank)
    pairs = tuple((ranks[0], ranks[1]) for ranks in first.values() if len(ranks) > 1)
    groups = {INSIDE: pairs} if pairs else {}
    for trunk in testbed.layout.trunks:
        groups[trunk.name] = ((first[trunk.between[0]][0], first[trunk.between[1]][0]),)
    return [
        Case(name, ranks, "ring", size, runs)
        for size, runs in ((SHORT_BYTES, SHORT_RUNS), (LONG_BYTES, LONG_RUNS))
        for name, ranks in groups.items()
    ]


def link_figures(timings: Sequence[Timing]) -> dict[str, LinkFigure]:
    """By level or trunk. Raises EmulationError where a long run took no longer than a short one."""
    times = {(timing.case.name, timing.case.size_bytes): timing.median_s for timing in timings}
    out = {}
    for name, size in times:
        if size == LONG_BYTES:
            short, long = times[name, SHORT_BYTES], times[name, LONG_BYTES]
            if long <= short:
                raise EmulationError(f"{name}: {LONG_BYTES} bytes in {long:.3g} s, {SHORT_BYTES} in {short:.3g} s")
            out[name] = LinkFigure(short / 2, (LONG_BYTES - SHORT_BYTES) / (long - short))
    return out


def measured_topology(topology: Topology, figures: Mapping[str, LinkFigure], source: str) -> Topology:
    """``topology`` with what its links were measured to do; where a building has one host, its links stay as stated.

    Args:
        source: for the provenance of every figure.
    """
    measured = Provenance(source=source, status="measured")
    regions = tuple(
        region.model_copy(
            update={"buildings": tuple(_building(b, figures.get(INSIDE), measured) for b in region.buildings)}
        )
        for region in topology.regions
    )
    trunks = []
    for trunk in topology.trunks:
        found = figures["–".join(trunk.between)]
        whole = trunk_bytes_per_s(topology, trunk) / trunk.oversubscription_ratio
        update: dict[str, Any] = {
            "one_way_latency_s": found.latency_s,
            "efficiency_fraction": min(1.0, found.bytes_per_s / whole),
        }
        trunks.append(trunk.model_copy(update=update))
    own = {name: one for name, one in topology.provenance.items() if not name.endswith(("latency_us", "latency_ms"))}
    names = ("one_way_latency_s", "efficiency_fraction")
    provenance = own | {f"trunks.{name}": measured for name in names}
    provenance |= {f"links.{level}.one_way_latency_s": measured for level in BuildingLinks.model_fields}
    update = {"regions": regions, "trunks": tuple(trunks), "provenance": provenance}
    return topology.model_copy(update=update)


def _building(building: Building, found: LinkFigure | None, measured: Provenance) -> Building:
    if found is None:
        return building
    links = {name: _link(getattr(building.links, name), found, measured) for name in BuildingLinks.model_fields}
    return building.model_copy(update={"links": BuildingLinks(**links)})


def _link(link: LevelLink, found: LinkFigure, measured: Provenance) -> LevelLink:
    technology = link.technology
    share = min(1.0, found.bytes_per_s / technology.bandwidth_bytes_per_s)
    reached = technology.model_copy(
        update={
            "efficiency_fraction": share,
            "provenance": technology.provenance | {"efficiency_fraction": measured},
        }
    )
    return link.model_copy(update={"technology": reached, "one_way_latency_s": found.latency_s})
