"""Which fault units a failure hits, from the placement.

Every class of failure takes a domain: an accelerator, a host, a rack, a zone, a building. A domain hits the fault units
(``dp_replicate`` groups) that have a member in it. A link between two buildings takes what it cuts off: nothing while another
path joins them; otherwise every unit that is not whole on the better side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import networkx as nx
import numpy as np

from scaleacross.spec.goodput import Strike
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.placement import BuildingShare, strides
from scaleacross.spec.reliability import (
    NODE_DAYS_TO_ACCELERATOR_SECONDS,
    FailureClass,
    Failures,
    default,
)
from scaleacross.spec.topology import Building, Topology

DOMAINS: Final[tuple[FailureClass, ...]] = ("accelerator", "host", "rack", "zone", "building")
"""Classes of failures that take a contiguous run of accelerators, innermost first."""
TAKES_A_HOST: Final = ("accelerator", "host")


def domain_size(building: Building, level: FailureClass) -> int:
    """Accelerators of one domain."""
    if level == "accelerator":
        return 1
    if level == "host":
        return building.accelerators_per_host
    return building.accelerators_per("rack" if level == "rack" else "zone" if level == "zone" else "building")


def units_hit(
    topology: Topology,
    fill: Sequence[BuildingShare],
    degrees: Degrees,
    axis_order: Sequence[GridAxis],
    level: FailureClass,
) -> dict[int, int]:
    """Fault units hit by the loss of one domain of a class -> number of domains in use that hit so many.

    Positions that lie between two cuts of domains and of units are alike; one is looked at for all.

    Raises:
        KeyError: a building of the fill is not in the topology.
    """
    stride = strides(degrees, axis_order)["dp_replicate"]
    sizes = [domain_size(topology.building(share.building), level) for share in fill]
    bases = [0, *np.cumsum([share.num_accelerators for share in fill]).tolist()]
    unit = math.gcd(stride, *sizes, *bases[1:])
    found: dict[int, int] = {}
    for share, size, base in zip(fill, sizes, bases, strict=False):
        position = np.arange(base, base + share.num_accelerators, unit)
        domain = (position - base) // size
        group = position // stride % degrees.dp_replicate
        pairs = np.unique(domain * degrees.dp_replicate + group)
        _, hit = np.unique(pairs // degrees.dp_replicate, return_counts=True)
        for number, domains in zip(*np.unique(hit, return_counts=True), strict=True):
            found[int(number)] = found.get(int(number), 0) + int(domains)
    return found


def only_copies(
    topology: Topology,
    fill: Sequence[BuildingShare],
    degrees: Degrees,
    axis_order: Sequence[GridAxis],
    level: FailureClass,
) -> int:
    """Shards of the state whose copies, one per fault unit, all lie in one domain of a class; the most over domains.

    Raises:
        KeyError: a building of the fill is not in the topology.
    """
    domain, seen = [], 0
    for share in fill:
        own = np.arange(share.num_accelerators) // domain_size(topology.building(share.building), level)
        domain.append(seen + own)
        seen = int(domain[-1][-1]) + 1
    stride, units = strides(degrees, axis_order)["dp_replicate"], degrees.dp_replicate
    copies = np.concatenate(domain).reshape(-1, units, stride)
    together = (copies == copies[:, :1]).all(axis=1)
    return int(np.bincount(copies[:, 0][together], minlength=1).max())


def units_cut_off(
    topology: Topology, fill: Sequence[BuildingShare], degrees: Degrees, axis_order: Sequence[GridAxis]
) -> list[tuple[tuple[str, str], int]]:
    """Links between buildings -> fault units that the loss of one takes, 0 where another path stays."""
    used, out = [share.building for share in fill], []
    graph = nx.MultiGraph()
    graph.add_nodes_from(building.name for building in topology.buildings)
    graph.add_edges_from((*trunk.between, index) for index, trunk in enumerate(topology.trunks))
    inside = _buildings_of_units(fill, degrees, axis_order)
    for index, trunk in enumerate(topology.trunks):
        left = graph.copy()
        left.remove_edge(*trunk.between, key=index)
        sides = [side & set(used) for side in nx.connected_components(left)]
        whole = max(sum(owners <= side for owners in inside) for side in sides)
        out.append((trunk.between, degrees.dp_replicate - whole))
    return out


def _buildings_of_units(
    fill: Sequence[BuildingShare], degrees: Degrees, axis_order: Sequence[GridAxis]
) -> list[set[str]]:
    stride, base = strides(degrees, axis_order)["dp_replicate"], 0
    inside: list[set[str]] = [set() for _ in range(degrees.dp_replicate)]
    step = math.gcd(stride, *(share.num_accelerators for share in fill))
    for share in fill:
        position = np.arange(base, base + share.num_accelerators, step)
        for group in np.unique(position // stride % degrees.dp_replicate):
            inside[int(group)].add(share.building)
        base += share.num_accelerators
    return inside


def strikes_of(
    failures: Failures,
    topology: Topology,
    fill: Sequence[BuildingShare],
    degrees: Degrees,
    axis_order: Sequence[GridAxis],
) -> tuple[Strike, ...]:
    """Rates of everything that hits the placed plan, failures per second of the job, by class and units hit."""
    swapped = failures.host_swap_fraction
    fraction = default("host_swap_fraction") if swapped is None else swapped
    out = [*_by_node(failures, topology, fill, degrees, axis_order, fraction)]
    for level in DOMAINS:
        between_s = failures.mtbf_s(level)
        if between_s is not None:
            for hit, domains in units_hit(topology, fill, degrees, axis_order, level).items():
                taken = 1.0 if level in TAKES_A_HOST else 0.0
                out.append(Strike(cause=level, rate_per_s=domains / between_s, units_hit=hit, host_swap_fraction=taken))
    between_s = failures.mtbf_s("inter_building_link")
    if between_s is not None:
        cut = [hit for _, hit in units_cut_off(topology, fill, degrees, axis_order) if hit]
        for hit in sorted(set(cut)):
            rate = cut.count(hit) / between_s
            out.append(Strike(cause="inter_building_link", rate_per_s=rate, units_hit=hit))
    return tuple(out)


def fewest_strikes(failures: Failures, num_accelerators: int, accelerators_per_host: int) -> tuple[Strike, ...]:
    """What hits any placement on so many accelerators at least: each failure of a host or an accelerator hits one unit.

    ``accelerators_per_host``: of the largest host, so that the hosts are as few as can be.
    """
    swapped = failures.host_swap_fraction
    rates = {
        "node": (
            num_accelerators * failures.node_rate / NODE_DAYS_TO_ACCELERATOR_SECONDS,
            default("host_swap_fraction") if swapped is None else swapped,
        )
    }
    for level, units in (("accelerator", num_accelerators), ("host", num_accelerators / accelerators_per_host)):
        between_s = failures.mtbf_s(level)  # type: ignore[arg-type]
        if between_s is not None:
            rates[level] = (units / between_s, 1.0)
    return tuple(
        Strike(cause=cause, rate_per_s=rate, units_hit=1, host_swap_fraction=taken)
        for cause, (rate, taken) in rates.items()
        if rate
    )


def _by_node(
    failures: Failures,
    topology: Topology,
    fill: Sequence[BuildingShare],
    degrees: Degrees,
    axis_order: Sequence[GridAxis],
    fraction: float,
) -> Iterator[Strike]:
    """Failures per node-day: each takes one host."""
    if failures.node_rate == 0:
        return
    total = sum(share.num_accelerators for share in fill) * failures.node_rate / NODE_DAYS_TO_ACCELERATOR_SECONDS
    hosts = units_hit(topology, fill, degrees, axis_order, "host")
    for hit, domains in hosts.items():
        rate = total * domains / sum(hosts.values())
        yield Strike(cause="host", rate_per_s=rate, units_hit=hit, host_swap_fraction=fraction)
