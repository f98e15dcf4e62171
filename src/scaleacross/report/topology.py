"""A topology as tables: buildings, the links between and inside them, and the provenance of figures."""

from __future__ import annotations

from itertools import combinations, groupby
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, count, grid, percent, plural, rate, section
from scaleacross.report.provenance import provenance_counts
from scaleacross.spec.topology import (
    Building,
    BuildingLinks,
    Topology,
    attainable_trunk_bytes_per_s,
    trunk_bytes_per_s,
)
from scaleacross.spec.trunk_paths import TrunkPaths
from scaleacross.units import human_bytes, human_seconds

SHOWN_PATHS: Final = 16


def topology_report(topology: Topology) -> RenderableType:
    """Return totals, buildings, links per level (once for buildings that share them), inter-building links, provenance."""
    parts: list[RenderableType] = [_totals(topology), _buildings(topology)]
    parts += [_links(same) for same in _sharing_links(topology.buildings)]
    if topology.trunks:
        parts.append(_trunks(topology))
        parts += _paths(topology)
    return Group(*parts)


def _totals(topology: Topology) -> RenderableType:
    size = (
        f"{plural(topology.num_accelerators, 'accelerator')} in {plural(len(topology.buildings), 'building')} "
        f"of {plural(len(topology.regions), 'region')}"
    )
    rows: list[tuple[str, str | Text]] = [
        ("topology", topology.name),
        ("size", size),
        ("figures", provenance_counts(topology)),
    ]
    if topology.description:
        rows.insert(1, ("about", topology.description))
    return grid(rows)


def _buildings(topology: Topology) -> RenderableType:
    heads = ("building", "region", "accelerator", "zones", "hosts", "accelerators", "scale-up domain")
    table = columns(heads, right=("zones", "hosts", "accelerators"))
    for building in topology.buildings:
        domain = f"{building.accelerators_per('scale_up')} in a {building.scale_up_domain}"
        sizes = (count(_zones(building)), count(building.hosts), count(building.num_accelerators))
        add(table, building.name, topology.region_of(building.name), building.accelerator.name, *sizes, domain)
    return section("Buildings", table)


def _links(buildings: list[Building]) -> RenderableType:
    """Return the levels inside ``buildings``, which are the same in all of them."""
    heads = ("level", "technology", "per accelerator", "reached", "1:o", "one way", "settings")
    table = columns(heads, right=heads[2:6], flexible=("settings",))
    for level in BuildingLinks.model_fields:
        link = getattr(buildings[0].links, level)
        technology = link.technology
        figures = (rate(technology.bandwidth_bytes_per_s), percent(technology.efficiency_fraction))
        ratio, latency = f"1:{link.oversubscription_ratio:g}", human_seconds(link.one_way_latency_s)
        settings = ", ".join(s for s in (technology.congestion_control, technology.load_balancing) if s != "none")
        add(table, level, technology.name, *figures, ratio, latency, settings or "–")
    names = [building.name for building in buildings]
    label = names[0] if len(names) == 1 else f"each of {names[0]} … {names[-1]} ({len(names)})"
    return section(f"Links inside {label}", table)


def _sharing_links(buildings: tuple[Building, ...]) -> list[list[Building]]:
    """Return runs of neighbouring buildings with equal links."""
    return [list(same) for _, same in groupby(buildings, key=lambda building: building.links.model_dump())]


def _trunks(topology: Topology) -> RenderableType:
    heads = ("trunk", "level", "capacity", "1:o", "after 1:o", "reached", "one way")
    table = columns(heads, right=heads[2:])
    for trunk in topology.trunks:
        here, there = trunk.between
        level = "campus" if topology.region_of(here) == topology.region_of(there) else "region"
        capacity = trunk_bytes_per_s(topology, trunk)
        add(
            table,
            f"{here} – {there}",
            level,
            rate(capacity) + ("" if trunk.bandwidth_bytes_per_s else " (all links)"),
            f"1:{trunk.oversubscription_ratio:g}",
            rate(capacity / trunk.oversubscription_ratio),
            percent(trunk.efficiency_fraction),
            human_seconds(trunk.one_way_latency_s),
        )
    return section("Inter-building links, per direction", table)


def _paths(topology: Topology) -> list[RenderableType]:
    """Return paths over several inter-building links, if any, first those that bypass a direct link."""
    heads = ("between", "path", "capacity", "one way", "their direct link")
    table, paths = columns(heads, right=heads[2:4]), TrunkPaths(topology)
    direct = {frozenset(trunk.between): trunk for trunk in topology.trunks}
    pairs = combinations((building.name for building in topology.buildings), 2)
    several = [pair for pair in pairs if len(paths.between(*pair).trunks) > 1]
    if not several:
        return []
    for here, there in sorted(several, key=lambda pair: frozenset(pair) not in direct)[:SHOWN_PATHS]:
        own = direct.get(frozenset((here, there)))
        unused = "none" if own is None else f"{rate(attainable_trunk_bytes_per_s(topology, own))}, not used"
        figures = (rate(paths.bytes_per_s(here, there)), human_seconds(paths.latency_s(here, there)))
        add(table, f"{here} – {there}", " – ".join(paths.between(here, there).buildings), *figures, unused)
    size = topology.routed_message_bytes
    rule = f"which {human_bytes(size)} pass soonest" if size else "of least latency"
    hidden = f"; {len(several) - SHOWN_PATHS} more not shown" if len(several) > SHOWN_PATHS else ""
    return [section(f"Paths over several inter-building links, {rule} (routed_message_mib){hidden}", table)]


def _zones(building: Building) -> int:
    """Return the number of zones of the building, including a partial last one."""
    return building.num_zones or -(-building.hosts // (building.racks_per_zone * building.hosts_per_rack))
