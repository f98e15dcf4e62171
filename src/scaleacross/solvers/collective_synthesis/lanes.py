"""A small network as lanes: who can send to whom, at what rate and latency, and which capacities are shared.

A message from u to v at rate r occupies r of every capacity on its lane while it is sent, and arrives one latency
later. A plain link is a lane with a capacity of its own. A switch gives every rank a port out and a port in that its
lanes share. An uplink is shared by all lanes that leave its unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import networkx as nx

from scaleacross.errors import InputError
from scaleacross.spec.link_graph import LinkGraph

CAPACITY_UNITS: Final = 10**6
"""Integer parts of a capacity. A rate is rounded down to one, so messages exceed a capacity by less than 1e-6 each."""


class Lane(NamedTuple):
    """A direct way from one rank to another; ``uses``: indices of capacities in the order a message meets them."""

    source: int
    destination: int
    bytes_per_s: float
    latency_s: float
    uses: tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """Ranks 0 … n−1, lanes, and the capacities (bytes/s) that lanes share."""

    num_ranks: int
    lanes: tuple[Lane, ...]
    capacities: tuple[float, ...]

    @property
    def reversed(self) -> Network:
        """The network with every lane reversed. A gather on it, backwards in time, is a reduce-scatter here."""
        turned = (
            lane._replace(source=lane.destination, destination=lane.source, uses=lane.uses[::-1]) for lane in self.lanes
        )
        return Network(self.num_ranks, tuple(turned), self.capacities)

    @property
    def mirrored(self) -> bool:
        """Whether reversed lanes give the same network: equal lanes both ways, and no shared capacity."""
        private = len({use for lane in self.lanes for use in lane.uses}) == sum(len(lane.uses) for lane in self.lanes)
        figures = {lane[:4] for lane in self.lanes}
        return private and figures == {lane[:4] for lane in self.reversed.lanes}

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Directed graph of ranks and lanes."""
        graph = nx.DiGraph()
        graph.add_nodes_from(range(self.num_ranks))
        graph.add_edges_from((lane.source, lane.destination) for lane in self.lanes)
        return graph

    def require_connected(self) -> None:
        """Raise InputError, naming ranks, if some rank cannot reach another."""
        components = list(nx.strongly_connected_components(self.graph))
        if len(components) > 1:
            lonely = min(components, key=len)
            raise InputError(
                f"no collective among {self.num_ranks} ranks: {_named(lonely)} cannot both reach and be reached by the others; "
                "add links (a link is used in one direction unless both_ways is set)"
            )


@dataclass(frozen=True)
class Instance:
    """An all-gather of equal chunks, ``num_chunks`` per rank; rank c // num_chunks has chunk c.

    Times are in ticks of ``tick_s`` seconds. A message takes less than two ticks too long.
    """

    network: Network
    chunk_bytes: float
    num_chunks: int
    tick_s: float

    @cached_property
    def busy(self) -> tuple[int, ...]:
        """[lane] -> ticks for which a chunk occupies it."""
        return tuple(max(1, self._ticks(self.chunk_bytes / lane.bytes_per_s)) for lane in self.network.lanes)

    @cached_property
    def delay(self) -> tuple[int, ...]:
        """[lane] -> ticks from the start of a message to its arrival."""
        return tuple(b + self._ticks(lane.latency_s) for b, lane in zip(self.busy, self.network.lanes, strict=True))

    @cached_property
    def demand(self) -> tuple[Mapping[int, int], ...]:
        """[lane] -> capacity -> parts of CAPACITY_UNITS that a message occupies."""
        return tuple(
            {
                # 1e-3 absorbs rounding where a rate is a whole number of parts
                use: max(1, math.floor(lane.bytes_per_s / self.network.capacities[use] * CAPACITY_UNITS + 1e-3))
                for use in lane.uses
            }
            for lane in self.network.lanes
        )

    @property
    def chunks(self) -> range:
        """Numbers of all chunks."""
        return range(self.network.num_ranks * self.num_chunks)

    def origin(self, chunk: int) -> int:
        """Rank that has ``chunk`` at the start."""
        return chunk // self.num_chunks

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Directed graph of ranks, with the least ``delay`` of the lanes from one to another."""
        graph = nx.DiGraph()
        graph.add_nodes_from(range(self.network.num_ranks))
        for lane, delay in zip(self.network.lanes, self.delay, strict=True):
            old = graph.get_edge_data(lane.source, lane.destination, {"delay": delay})["delay"]
            graph.add_edge(lane.source, lane.destination, delay=min(old, delay))
        return graph

    @cached_property
    def distance(self) -> dict[int, dict[int, int]]:
        """[u][v] -> least ticks from u to v, for a chunk alone on the network."""
        return {u: dict(found) for u, found in nx.all_pairs_dijkstra_path_length(self.graph, weight="delay")}

    def _ticks(self, seconds: float) -> int:
        return math.ceil(seconds / self.tick_s - 1e-9)


def network_of(graph: LinkGraph) -> Network:
    """The lanes of a graph file, with one capacity per link and direction and two per port of a switch."""
    lanes: list[Lane] = []
    capacities: list[float] = []

    def capacity(rate: float) -> int:
        capacities.append(rate)
        return len(capacities) - 1

    for group in graph.links:
        for a, b in group.pairs:
            for source, destination in ((a, b), (b, a)) if group.both_ways else ((a, b),):
                own = (capacity(group.bandwidth_bytes_per_s),)
                lanes.append(Lane(source, destination, group.bandwidth_bytes_per_s, group.latency_s, own))
    for switch in graph.switches:
        ports = {
            rank: (capacity(switch.bandwidth_bytes_per_s), capacity(switch.bandwidth_bytes_per_s))
            for rank in switch.ranks
        }
        lanes += [
            Lane(a, b, switch.bandwidth_bytes_per_s, switch.latency_s, (ports[a][0], ports[b][1]))
            for a in switch.ranks
            for b in switch.ranks
            if a != b
        ]
    return Network(graph.num_ranks, tuple(lanes), tuple(capacities))


def _named(ranks: Iterable[int]) -> str:
    listed = sorted(ranks)
    shown = ", ".join(map(str, listed[:8])) + (" …" if len(listed) > 8 else "")
    return f"rank {shown}" if len(listed) == 1 else f"ranks {shown}"
