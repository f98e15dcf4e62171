"""Paths over inter-building links: one fixed path for every pair of buildings, independent of the plan.

The weight of a link is its one-way latency plus the time that ``Topology.routed_message_bytes`` occupy it. The weight
of a path is the sum. The path of least weight is used; of equal ones the one with fewer links. Routers choose in the
same way (in OSPF, RFC 2328, the cost of a link is commonly a reference bandwidth over that of the link). With 0 bytes
the paths have least latency.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from scaleacross.spec.network import Trunk
from scaleacross.spec.topology import Topology, attainable_trunk_bytes_per_s


class Path(NamedTuple):
    """Buildings from one end to the other, and the inter-building links between them."""

    buildings: tuple[str, ...]
    trunks: tuple[Trunk, ...]


@dataclass(frozen=True)
class TrunkPaths:
    """Paths of one topology, computed when first used; a path may pass a building that the job does not use."""

    topology: Topology
    _from: dict[str, dict[str, Path]] = field(default_factory=dict, repr=False, compare=False)

    def between(self, here: str, there: str) -> Path:
        """Return the path between two buildings; the way back has the same links, and a path to itself has none.

        Raises:
            KeyError: no building has such a name.
        """
        # one direction decides, so that ties are broken alike both ways
        first, last = sorted((here, there))
        if first not in self._from:
            self._from[first] = self._cheapest(first)
        path = self._from[first][last]
        return path if first == here else Path(path.buildings[::-1], path.trunks[::-1])

    def latency_s(self, here: str, there: str) -> float:
        """One-way latency of a message, s."""
        return sum(trunk.one_way_latency_s for trunk in self.between(here, there).trunks)

    def bytes_per_s(self, here: str, there: str) -> float:
        """Rate of the path's slowest link, bytes/s per direction; inf inside a building."""
        trunks = self.between(here, there).trunks
        return min((attainable_trunk_bytes_per_s(self.topology, trunk) for trunk in trunks), default=math.inf)

    def price_per_byte(self, here: str, there: str) -> float:
        """Currency units per byte over the whole path; a link without a price adds 0."""
        return sum(trunk.egress_price_per_byte or 0.0 for trunk in self.between(here, there).trunks)

    def _cheapest(self, start: str) -> dict[str, Path]:
        """Paths of least weight from one building to every other (Dijkstra)."""
        found: dict[str, Path] = {}
        least = {start: (0.0, 0)}
        reached = [(least[start], Path((start,), ()))]
        while reached:
            (cost_s, length), path = heapq.heappop(reached)
            here = path.buildings[-1]
            if here in found:
                continue
            found[here] = path
            for there, more_s, trunk in self._leaving[here]:
                cost = (cost_s + more_s, length + 1)
                if there not in found and cost <= least.get(there, cost):
                    least[there] = cost
                    heapq.heappush(reached, (cost, Path((*path.buildings, there), (*path.trunks, trunk))))
        return found

    @cached_property
    def _leaving(self) -> dict[str, list[tuple[str, float, Trunk]]]:
        """Links that leave each building: neighbour, weight in s, link."""
        out: dict[str, list[tuple[str, float, Trunk]]] = defaultdict(list)
        for trunk in self.topology.trunks:
            busy_s = self.topology.routed_message_bytes / attainable_trunk_bytes_per_s(self.topology, trunk)
            for here, there in (trunk.between, trunk.between[::-1]):
                out[here].append((there, trunk.one_way_latency_s + busy_s, trunk))
        return out
