"""Lower bounds of a collective on a network of lanes.

Any schedule, any chunking. For a set S of ranks, everything that starts outside and is needed inside must enter through
the lanes into S, whose rates and shared capacities add up to cap(S):

    all-gather      T ≥ bytes of ranks outside S / cap(S) + least latency into S
    all-reduce      T ≥ size / cap(S) (S needs the sum of the others), and over all ranks
                    T ≥ 2(n−1)·size / Σ_v cap({v}) (Patarasuk and Yuan, 2009), each with a latency as above

The sets tried are the minimum cuts towards every rank. Maximum flow at the rate that the bound implies finds them,
until nothing tighter appears (Dinkelbach's iteration; the gather bound over all sets is that of ForestColl, arXiv
2402.06787). Where lanes share capacities, cap(S) is an upper bound on the flow into S, so the result stays a lower
bound of time.

A given chunking. k chunks from outside must enter S whole. Let the last one enter through an entry rank: from there it
still has to get to the farthest rank of S on lanes inside S:

    T ≥ head + k·chunk / cap(S) + least latency + max_{w∈S} min_{v entry} distance_S(v, w)

(head: time until some chunk from outside can be at an exit rank; 0 where exit ranks have chunks of their own.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import networkx as nx

from scaleacross.solvers.collective_synthesis.lanes import Instance, Lane, Network

Ranks = frozenset[int]
_TICKS: Final = 2**24
"""Ticks, per chunk of a rank, of the lower bound on the gather: rounding then adds less than 1e-5 to its time."""
_MOST_TICKS: Final = 2**40
"""Ticks of a message on the slowest lane at most: with their products by ``CAPACITY_UNITS`` they fit into 64 bits."""
_ALL: Final = "all"
_GOAL: Final = "goal"


def gather_bound_s(network: Network, size_bytes: float) -> float:
    """Lower bound in seconds on any all-gather of ``size_bytes`` in all."""
    share = size_bytes / network.num_ranks
    return max(
        (network.num_ranks - len(inside)) * share / entering_bytes_per_s(network, inside)
        + _least_latency(network, inside)
        for inside in tight_sets(network)
    )


def instance_of(network: Network, chunk_bytes: float, num_chunks: int) -> Instance:
    """The all-gather of ``num_chunks`` chunks of every rank, with ticks that suit its time.

    Ticks follow the lower bound on the gather. A mean over lanes would grow with slow lanes that no fast schedule uses.
    """
    bound_s = gather_bound_s(network, chunk_bytes * num_chunks * network.num_ranks)
    slowest_s = max(chunk_bytes / lane.bytes_per_s + lane.latency_s for lane in network.lanes)
    return Instance(network, chunk_bytes, num_chunks, max(bound_s / num_chunks / _TICKS, slowest_s / _MOST_TICKS))


def all_reduce_bound_s(network: Network, size_bytes: float) -> float:
    """Lower bound in seconds on any all-reduce of ``size_bytes``."""
    sets, n = tight_sets(network), network.num_ranks
    cuts = max(size_bytes / entering_bytes_per_s(network, s) + _least_latency(network, s) for s in sets)
    singles = sum(entering_bytes_per_s(network, frozenset([rank])) for rank in range(n))
    return max(cuts, 2 * (n - 1) * size_bytes / singles + min(lane.latency_s for lane in network.lanes))


def chunked_bound_ticks(instance: Instance) -> int:
    """Lower bound in ticks on any all-gather of whole chunks."""
    return max(_chunked(instance, inside) for inside in tight_sets(instance.network))


def tight_sets(network: Network) -> list[Ranks]:
    """All single ranks, and the sets whose cuts bind an all-gather towards some rank."""
    found = {frozenset([rank]) for rank in range(network.num_ranks)}
    for rank in range(network.num_ranks):
        found.update(_binding(network, rank))
    return sorted(found, key=lambda s: (len(s), sorted(s)))


def entering_bytes_per_s(network: Network, inside: Ranks) -> float:
    """cap(S) of the set ``inside``: upper bound on the bytes per second that can flow into it."""
    flow = _pipes(network, 1.0)
    for rank in range(network.num_ranks):
        flow.add_edge(rank, _GOAL) if rank in inside else flow.add_edge(_ALL, rank)
    return float(nx.maximum_flow_value(flow, _ALL, _GOAL))


def _binding(network: Network, rank: int) -> Iterator[Ranks]:
    """Yield minimum cuts towards ``rank`` when every other rank injects one unit, for longer times until all arrive."""
    time, units = 0.0, network.num_ranks - 1
    for _ in range(network.num_ranks):
        flow = _pipes(network, time)
        flow.add_edges_from((_ALL, source, {"capacity": 1.0}) for source in range(network.num_ranks) if source != rank)
        value, (outside, _) = nx.minimum_cut(flow, _ALL, rank)
        if time > 0 and value >= units * (1 - 1e-9):
            return
        inside = frozenset(range(network.num_ranks)) - frozenset(outside)
        yield inside
        time = (network.num_ranks - len(inside)) / entering_bytes_per_s(network, inside)


def _pipes(network: Network, seconds: float) -> nx.DiGraph:
    """Graph of the bytes that can flow within ``seconds``: a lane leads through a pipe for every capacity it shares.

    A flow may leave a pipe on another lane that meets it there. So this graph carries at least as much as the network.
    """
    sharing = Counter(use for lane in network.lanes for use in lane.uses)
    flow = nx.DiGraph()
    flow.add_nodes_from(range(network.num_ranks))
    for lane in network.lanes:
        shared = [use for use in lane.uses if sharing[use] > 1]
        ends = [lane.source, *(end for use in shared for end in (("in", use), ("out", use))), lane.destination]
        for number, (here, there) in enumerate(pairwise(ends)):
            if number % 2:
                flow.add_edge(here, there, capacity=network.capacities[shared[number // 2]] * seconds)
            else:
                before = flow.get_edge_data(here, there, {"capacity": 0.0})["capacity"]
                flow.add_edge(here, there, capacity=before + lane.bytes_per_s * seconds)
    return flow


def _chunked(instance: Instance, inside: Ranks) -> int:
    network = instance.network
    entering = [i for i, lane in enumerate(network.lanes) if _enters(lane, inside)]
    outside = [rank for rank in range(network.num_ranks) if rank not in inside]
    exits = {network.lanes[i].source for i in entering}
    head = min(instance.distance[rank][leave] for rank in outside for leave in exits)
    chunks = len(outside) * instance.num_chunks
    crossing = int(chunks * instance.chunk_bytes / entering_bytes_per_s(network, inside) / instance.tick_s)
    if len(entering) == 1:  # a single lane sends chunks one after another, each rounded up
        crossing = chunks * instance.busy[entering[0]]
    latency = min(instance.delay[i] - instance.busy[i] for i in entering)
    entries = {network.lanes[i].destination for i in entering}
    return head + crossing + latency + _tail(instance, inside, entries)


def _tail(instance: Instance, inside: Ranks, entries: Iterable[int]) -> int:
    """Ticks from the nearest entry rank to the farthest rank, inside the set."""
    reached = nx.multi_source_dijkstra_path_length(instance.graph.subgraph(inside), set(entries), weight="delay")
    return int(max(reached.values()))


def _least_latency(network: Network, inside: Ranks) -> float:
    return min(lane.latency_s for lane in network.lanes if _enters(lane, inside))


def _enters(lane: Lane, inside: Ranks) -> bool:
    return lane.destination in inside and lane.source not in inside
