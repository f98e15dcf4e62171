"""Measures links as the runtime uses them: bandwidth and latency of every level, start and messages of a collective.

Two ranks in a ring exchange a tensor. An all-gather of S bytes takes λ + α + S/2W, an all-reduce λ + 2·α + S/W, with λ
for its start. Few bytes give λ and α, many give W. All pairs inside buildings run at once. So do all across an
inter-building link, which share its W; these links are measured one after another.

A tensor of a few bytes, all-reduced level by level among all hosts, takes longer the more chunks it is cut into. The
slope (least squares) is the time of a chunk's messages, of which each rank sends one after another. Times for more
hosts, bytes and other algorithms follow from the planner's own formulas.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from scaleacross.errors import EmulationError
from scaleacross.spec.base import Provenance
from scaleacross.spec.network import LevelLink
from scaleacross.spec.topology import Building, BuildingLinks, Topology, trunk_bytes_per_s
from scaleacross.testbed.cases import LAYERED, Case, Timing
from scaleacross.testbed.session import Testbed

SHORT_BYTES: Final = 4096
LONG_BYTES: Final = 4 << 20
SHORT_RUNS, LONG_RUNS = 15, 5
INSIDE: Final = "inside"
SWEPT: Final = "hierarchical, cut into chunks"
SWEPT_CHUNKS: Final = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class LinkFigure:
    """Latency α and bandwidth W of a level."""

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class LinkFigures:
    """Figures of all levels and inter-building links by name, and of the process that drives them.

    Attributes:
        launch_s: seconds to start a collective.
        message_overhead_s: seconds that every message of a further chunk adds; None: not measured, for want of a second
            building.
    """

    levels: dict[str, LinkFigure]
    launch_s: float
    message_overhead_s: float | None


def link_cases(testbed: Testbed) -> list[Case]:
    """Return the cases to time, short ones first."""
    children = testbed.layout.ranks
    pairs = tuple((ranks[0], ranks[1]) for ranks in children.values() if len(ranks) > 1)
    groups = {INSIDE: pairs} if pairs else {}
    for trunk in testbed.layout.trunks:
        here, there = (children[name] for name in trunk.between)
        groups[trunk.name] = tuple(zip(here, there, strict=False))
    short = [Case(name, ranks, "ring", SHORT_BYTES, SHORT_RUNS) for name, ranks in groups.items()]
    short += [replace(case, operation="all_gather") for case in short]
    if len(children) > 1:
        whole = Case(SWEPT, (tuple(range(len(testbed.layout.hosts))),), LAYERED, SHORT_BYTES, SHORT_RUNS)
        parts = tuple(children.values())
        short += [replace(whole, num_chunks=chunks, children=parts) for chunks in SWEPT_CHUNKS]
    return [*short, *(Case(name, ranks, "ring", LONG_BYTES, LONG_RUNS) for name, ranks in groups.items())]


def link_figures(timings: Sequence[Timing]) -> LinkFigures:
    """Return the figures that the timings of ``link_cases`` imply.

    Raises:
        EmulationError: a long run took no longer than a short one.
    """
    pairs = [timing for timing in timings if timing.case.name != SWEPT]
    times = {(one.case.name, one.case.operation, one.case.size_bytes): one.median_s for one in pairs}
    num_pairs = {timing.case.name: len(timing.case.groups) for timing in pairs}
    # 2 · (λ + α) − (λ + 2·α) = λ, up to the time of the few bytes
    starts = [2 * times[name, "all_gather", SHORT_BYTES] - times[name, "all_reduce", SHORT_BYTES] for name in num_pairs]
    launch = max(0.0, statistics.mean(starts))
    levels = {}
    for name in num_pairs:
        short, long = times[name, "all_reduce", SHORT_BYTES], times[name, "all_reduce", LONG_BYTES]
        if long <= short:
            raise EmulationError(f"{name}: {LONG_BYTES} bytes in {long:.3g} s, {SHORT_BYTES} in {short:.3g} s")
        # pairs across one link share its bandwidth, pairs inside buildings have links of their own
        flows = 1 if name == INSIDE else num_pairs[name]
        rate = flows * (LONG_BYTES - SHORT_BYTES) / (long - short)
        levels[name] = LinkFigure(max(0.0, short - launch) / 2, rate)
    return LinkFigures(levels, launch, _message_overhead_s([one for one in timings if one.case.name == SWEPT]))


def _message_overhead_s(swept: Sequence[Timing]) -> float | None:
    """Return the seconds per message: the slope over chunks, divided by the messages of a chunk; None without a sweep.

    A chunk has the messages of a ring on both levels, for both passes.
    """
    if not swept:
        return None
    children = swept[0].case.children
    messages = 2 * (len(children) - 1 + max(map(len, children)) - 1)
    slope, _ = statistics.linear_regression([one.case.num_chunks for one in swept], [one.median_s for one in swept])
    return max(0.0, slope) / messages


def measured_topology(topology: Topology, figures: LinkFigures, source: str) -> Topology:
    """Return ``topology`` with measured links. Links inside buildings stay as stated if no building has two hosts.

    Args:
        source: source in the provenance of every figure.
    """
    measured = Provenance(source=source, status="measured")
    regions = tuple(
        region.model_copy(update={"buildings": tuple(_building(b, figures, measured) for b in region.buildings)})
        for region in topology.regions
    )
    trunks = []
    for trunk in topology.trunks:
        found = figures.levels["–".join(trunk.between)]
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


def _building(building: Building, figures: LinkFigures, measured: Provenance) -> Building:
    own = building.accelerator
    accelerator = own.model_copy(
        update={
            "collective_launch_s": figures.launch_s,
            "provenance": own.provenance | {"collective_launch_s": measured},
        }
    )
    links = {name: _link(getattr(building.links, name), figures, measured) for name in BuildingLinks.model_fields}
    return building.model_copy(update={"accelerator": accelerator, "links": BuildingLinks(**links)})


def _link(link: LevelLink, figures: LinkFigures, measured: Provenance) -> LevelLink:
    technology, found, update = link.technology, figures.levels.get(INSIDE), {}
    if figures.message_overhead_s is not None:
        update["message_overhead_s"] = figures.message_overhead_s
    if found is not None:
        update["efficiency_fraction"] = min(1.0, found.bytes_per_s / technology.bandwidth_bytes_per_s)
    provenance = technology.provenance | dict.fromkeys(update, measured)
    reached = technology.model_copy(update={**update, "provenance": provenance})
    latency = link.one_way_latency_s if found is None else found.latency_s
    return link.model_copy(update={"technology": reached, "one_way_latency_s": latency})
