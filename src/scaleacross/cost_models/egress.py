"""Bytes between buildings and what they cost: every collective of a decision, group by group.

A group of n ranks with k of the fill's buildings in it sends, per collective of size S (``traffic.Flow``), over each hop from
one of its buildings to the next one and from the last back to the first:

* all-gather, reduce-scatter   S · (k−1)/k, as a ring of buildings does (the least that k buildings can exchange)
* all-reduce                   twice that
* all-to-all                   between any two buildings with a and b members, S · a · b / n in each direction
* send                         a rank's 2v messages per micro-batch are S each: v forward and v backward over a hop between
                               neighbours, v−1 of both over the way back from the last stage to the first

Sizes are those of the busiest pipeline rank, as everywhere in the cost models. A hop between two buildings takes the path of
least latency (``levels.trunk_graph``) and pays every trunk on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, permutations

import networkx as nx
import numpy as np

from scaleacross.cost_models.levels import trunk_graph
from scaleacross.cost_models.settings import Ints
from scaleacross.cost_models.traffic import Flow
from scaleacross.spec.parallelism import GRID_AXES, Degrees, GridAxis
from scaleacross.spec.placement import BuildingShare, strides
from scaleacross.spec.topology import Topology

Members = tuple[int, ...]
"""Members of a group per building of the fill, in its order."""
Patterns = Mapping[Members, int]
"""Groups of an axis by where their members sit."""
Prices = Mapping[tuple[int, int], float]
"""Price of a byte from one building of the fill to another, by their numbers in it."""


def hop_prices(topology: Topology, fill: Sequence[BuildingShare]) -> Prices:
    """Currency units per byte between any two buildings of a fill; a trunk without a price costs nothing."""
    graph = trunk_graph(topology)
    names = [share.building for share in fill]
    out = {}
    for (i, here), (j, there) in permutations(enumerate(names), 2):
        path = nx.shortest_path(graph, here, there, weight="latency_s")
        out[i, j] = float(sum(graph.edges[edge]["price_per_byte"] for edge in pairwise(path)))
    return out


def group_patterns(fill: Sequence[BuildingShare], degree: int, stride: int) -> Patterns:
    """Where the members of every group of ``degree`` positions at ``stride`` sit, from the cuts of the device list."""
    counts = [share.num_accelerators for share in fill]
    owner: Ints = np.repeat(np.arange(len(counts)), counts).reshape(-1, degree, stride)
    members = np.stack([(owner == building).sum(axis=1).ravel() for building in range(len(counts))], axis=1)
    rows, times = np.unique(members, axis=0, return_counts=True)
    return {tuple(map(int, row)): int(number) for row, number in zip(rows, times, strict=True)}


def axis_patterns(
    degrees: Degrees, axis_order: Sequence[GridAxis], fill: Sequence[BuildingShare]
) -> dict[str, Patterns]:
    """Patterns of every grid axis, ``ep`` and ``expert``."""
    stride = strides(degrees, axis_order)
    out = {str(axis): group_patterns(fill, degrees.of(axis), stride[axis]) for axis in GRID_AXES}
    out["ep"] = group_patterns(fill, degrees.ep, stride["dp_shard"])
    out["expert"] = group_patterns(fill, degrees.dp_shard // degrees.ep, stride["dp_shard"] * degrees.ep)
    return out


def egress_price(sent: Sequence[Flow], patterns: Mapping[str, Patterns], prices: Prices, num_chunks: int) -> float:
    """Currency units per step for everything that passes between buildings."""
    return sum(
        flow.per_step * number * _group_price(flow, members, prices, num_chunks)
        for flow in sent
        for members, number in patterns[flow.shape].items()
    )


def _group_price(flow: Flow, members: Members, prices: Prices, num_chunks: int) -> float:
    """Price of one collective of one group."""
    inside = [building for building, number in enumerate(members) if number]
    if len(inside) < 2:
        return 0.0
    back = (inside[-1], inside[0])
    if flow.op == "all_to_all":
        shared = ((a, b, members[a] * members[b] / sum(members)) for a, b in permutations(inside, 2))
        return flow.size_bytes * sum(share * prices[a, b] for a, b, share in shared)
    if flow.op == "send":
        onward = sum(prices[hop] + prices[hop[::-1]] for hop in pairwise(inside)) / 2
        again = (prices[back] + prices[back[::-1]]) / 2 * (num_chunks - 1) / num_chunks
        return flow.size_bytes * (onward + again)
    times = 2 if flow.op == "all_reduce" else 1
    each = flow.size_bytes * (len(inside) - 1) / len(inside)
    return times * each * sum(prices[hop] for hop in (*pairwise(inside), back))
