"""Which fault units a failure hits, from the placement.

Every class of failure disables a domain: an accelerator, a host, a rack, a zone, a building. A domain hits the fault
units (``dp_replicate`` groups) that have a member in it. The loss of a link between two buildings hits no unit while
another path joins them. Otherwise it hits every unit that is not whole on the better side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

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
"""Classes of failures that disable a contiguous run of accelerators, innermost first."""
TAKES_A_HOST: Final = ("accelerator", "host")


class Laid(NamedTuple):
    """Degrees laid out on an allocation. Its functions raise KeyError for a building that is not in ``topology``."""

    topology: Topology
    allocation: Sequence[BuildingShare]
    degrees: Degrees
    axis_order: Sequence[GridAxis]

    @property
    def unit_stride(self) -> int:
        """Global ranks from one fault unit to the next."""
        return strides(self.degrees, self.axis_order)["dp_replicate"]

    def sizes(self, level: FailureClass) -> list[int]:
        """Accelerators of one domain of a class, for every building of the allocation."""
        return [domain_size(self.topology.building(share.building), level) for share in self.allocation]


def domain_size(building: Building, level: FailureClass) -> int:
    """Accelerators of one domain of a class."""
    if level == "accelerator":
        return 1
    if level == "host":
        return building.accelerators_per_host
    return building.accelerators_per("rack" if level == "rack" else "zone" if level == "zone" else "building")


def units_hit(laid: Laid, level: FailureClass) -> dict[int, int]:
    """Fault units hit by the loss of one domain of a class -> number of domains in use that hit so many.

    Global ranks between two cuts of domains and of units are alike, so one of them stands for all.
    """
    stride, sizes, units = laid.unit_stride, laid.sizes(level), laid.degrees.dp_replicate
    bases = [0, *np.cumsum([share.num_accelerators for share in laid.allocation]).tolist()]
    unit = math.gcd(stride, *sizes, *bases[1:])
    found: dict[int, int] = {}
    for share, size, base in zip(laid.allocation, sizes, bases, strict=False):
        global_ranks = np.arange(base, base + share.num_accelerators, unit)
        # one code for every pair of a domain and a unit in it
        pairs = np.unique((global_ranks - base) // size * units + global_ranks // stride % units)
        _, hit = np.unique(pairs // units, return_counts=True)
        for number, domains in zip(*np.unique(hit, return_counts=True), strict=True):
            found[int(number)] = found.get(int(number), 0) + int(domains)
    return found


def only_copies(laid: Laid, level: FailureClass) -> int:
    """Largest number of shards, over domains, whose copies (one per fault unit) all lie in one domain of a class."""
    domain, seen = [], 0
    for share, size in zip(laid.allocation, laid.sizes(level), strict=True):
        domain.append(seen + np.arange(share.num_accelerators) // size)
        seen = int(domain[-1][-1]) + 1
    copies = np.concatenate(domain).reshape(-1, laid.degrees.dp_replicate, laid.unit_stride)
    together = (copies == copies[:, :1]).all(axis=1)
    return int(np.bincount(copies[:, 0][together], minlength=1).max())


def units_cut_off(laid: Laid) -> list[tuple[tuple[str, str], int]]:
    """Links between buildings, each with the number of fault units that its loss hits; 0 where another path remains."""
    topology, used, out = laid.topology, [share.building for share in laid.allocation], []
    graph = nx.MultiGraph()
    graph.add_nodes_from(building.name for building in topology.buildings)
    graph.add_edges_from((*trunk.between, index) for index, trunk in enumerate(topology.trunks))
    inside = _buildings_of_units(laid)
    for index, trunk in enumerate(topology.trunks):
        left = graph.copy()
        left.remove_edge(*trunk.between, key=index)
        sides = [side & set(used) for side in nx.connected_components(left)]
        whole = max(sum(owners <= side for owners in inside) for side in sides)
        out.append((trunk.between, laid.degrees.dp_replicate - whole))
    return out


def _buildings_of_units(laid: Laid) -> list[set[str]]:
    stride, units, base = laid.unit_stride, laid.degrees.dp_replicate, 0
    inside: list[set[str]] = [set() for _ in range(units)]
    step = math.gcd(stride, *(share.num_accelerators for share in laid.allocation))
    for share in laid.allocation:
        global_ranks = np.arange(base, base + share.num_accelerators, step)
        for group in np.unique(global_ranks // stride % units):
            inside[int(group)].add(share.building)
        base += share.num_accelerators
    return inside


def strikes_of(failures: Failures, laid: Laid) -> tuple[Strike, ...]:
    """Failures that hit the placed plan, per second of the job, by class and units hit."""
    out = [*_by_node(failures, laid)]
    for level in DOMAINS:
        between_s = failures.mtbf_s(level)
        if between_s is not None:
            for hit, domains in units_hit(laid, level).items():
                taken = 1.0 if level in TAKES_A_HOST else 0.0
                out.append(Strike(cause=level, rate_per_s=domains / between_s, units_hit=hit, host_swap_fraction=taken))
    between_s = failures.mtbf_s("inter_building_link")
    if between_s is not None:
        cut = [hit for _, hit in units_cut_off(laid) if hit]
        for hit in sorted(set(cut)):
            rate = cut.count(hit) / between_s
            out.append(Strike(cause="inter_building_link", rate_per_s=rate, units_hit=hit))
    return tuple(out)


def fewest_strikes(failures: Failures, num_accelerators: int, accelerators_per_host: int) -> tuple[Strike, ...]:
    """Lower bound on failures of any placement on so many accelerators: one of a host or accelerator hits one unit.

    Args:
        accelerators_per_host: of the largest host, so that there are as few hosts as possible.
    """
    per_s = num_accelerators * failures.node_rate / NODE_DAYS_TO_ACCELERATOR_SECONDS
    rates = {"node": (per_s, _swap_fraction(failures))}
    for level, units in (("accelerator", num_accelerators), ("host", num_accelerators / accelerators_per_host)):
        between_s = failures.mtbf_s(level)  # type: ignore[arg-type]
        if between_s is not None:
            rates[level] = (units / between_s, 1.0)
    return tuple(
        Strike(cause=cause, rate_per_s=rate, units_hit=1, host_swap_fraction=taken)
        for cause, (rate, taken) in rates.items()
        if rate
    )


def _by_node(failures: Failures, laid: Laid) -> Iterator[Strike]:
    """Strikes of failures stated per node-day; each disables one host."""
    if failures.node_rate == 0:
        return
    total = (
        sum(share.num_accelerators for share in laid.allocation) * failures.node_rate / NODE_DAYS_TO_ACCELERATOR_SECONDS
    )
    hosts, fraction = units_hit(laid, "host"), _swap_fraction(failures)
    for hit, domains in hosts.items():
        rate = total * domains / sum(hosts.values())
        yield Strike(cause="host", rate_per_s=rate, units_hit=hit, host_swap_fraction=fraction)


def _swap_fraction(failures: Failures) -> float:
    """Share of node failures after which another host replaces the failed one."""
    swapped = failures.host_swap_fraction
    return default("host_swap_fraction") if swapped is None else swapped
