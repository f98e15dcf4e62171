"""Bytes between buildings and their cost: every collective of a decision, group by group.

A group of n ranks in k buildings of the allocation sends, per collective of size S (``traffic.Flow``), over each hop
from one of its buildings to the next one and from the last back to the first:

* all-gather, reduce-scatter   S · (k−1)/k, as a ring of buildings does (the least that k buildings can exchange)
* all-reduce                   twice that
* all-to-all                   between any two buildings with a and b members, S · a · b / n in each direction
* send                         a rank's 2v messages per micro-batch are S each: v forward and v backward over a hop
                               between neighbours, v−1 of both over the way back from the last stage to the first

Sizes are those of the busiest pipeline rank, as everywhere in the cost models. A hop between two buildings pays every
inter-building link on its path (``spec.trunk_paths``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, permutations
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.traffic import Flow, Op
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.placement import BuildingShare, communicator_axes
from scaleacross.spec.topology import Topology
from scaleacross.spec.trunk_paths import TrunkPaths

Members = tuple[int, ...]
"""Members of a group per building, in the order of the allocation."""
Patterns = Mapping[Members, int]
"""Number of groups of an axis by their members per building."""
Prices = Mapping[tuple[int, int], float]
"""Currency units per byte from one building to another, by their indices in the allocation."""


def hop_prices(topology: Topology, allocation: Sequence[BuildingShare]) -> Prices:
    """Currency units per byte between any two buildings of an allocation; 0 over links without a price."""
    paths = TrunkPaths(topology)
    pairs = permutations(enumerate(share.building for share in allocation), 2)
    return {(i, j): paths.price_per_byte(here, there) for (i, here), (j, there) in pairs}


def group_patterns(allocation: Sequence[BuildingShare], degree: int, stride: int) -> Patterns:
    """Groups of ``degree`` ranks at ``stride``, counted by their members per building."""
    counts = [share.num_accelerators for share in allocation]
    owner: Ints = np.repeat(np.arange(len(counts)), counts).reshape(-1, degree, stride)
    members = np.stack([(owner == building).sum(axis=1).ravel() for building in range(len(counts))], axis=1)
    rows, times = np.unique(members, axis=0, return_counts=True)
    return {tuple(map(int, row)): int(number) for row, number in zip(rows, times, strict=True)}


def axis_patterns(
    degrees: Degrees, axis_order: Sequence[GridAxis], allocation: Sequence[BuildingShare]
) -> dict[str, Patterns]:
    """Patterns of every grid axis, ``ep`` and ``expert``."""
    return {name: group_patterns(allocation, *group) for name, group in communicator_axes(degrees, axis_order).items()}


class UnitPrices(NamedTuple):
    """Currency units for one byte of every group of an axis, by kind of message; the formulas of the module docstring.

    ``ring`` is for gather and scatter (twice for all-reduce), ``pairs`` for all-to-all. ``onward`` and ``back`` are for
    the messages of a pipeline: between neighbours, and from the last stage to the first.
    """

    ring: float
    pairs: float
    onward: float
    back: float


def unit_prices(patterns: Patterns, prices: Prices) -> UnitPrices:
    """Currency units per byte for all groups of an axis together, by kind of message."""
    ring = pairs = onward = back = 0.0
    for members, number in patterns.items():
        inside = [building for building, count in enumerate(members) if count]
        if len(inside) < 2:
            continue
        neighbours, closing = list(pairwise(inside)), (inside[-1], inside[0])
        ring += number * (len(inside) - 1) / len(inside) * sum(prices[hop] for hop in (*neighbours, closing))
        shared = (members[a] * members[b] * prices[a, b] for a, b in permutations(inside, 2))
        pairs += number * sum(shared) / sum(members)
        onward += number * sum(prices[hop] + prices[hop[::-1]] for hop in neighbours) / 2
        back += number * (prices[closing] + prices[closing[::-1]]) / 2
    return UnitPrices(ring, pairs, onward, back)


def kinds_of(op: Op, num_chunks: Ints | int) -> tuple[Floats | float, ...]:
    """How often a byte of a collective costs each of ``UnitPrices``."""
    if op == "send":
        return 0.0, 0.0, 1.0, (num_chunks - 1) / num_chunks
    return {"all_to_all": (0.0, 1.0, 0.0, 0.0), "all_reduce": (2.0, 0.0, 0.0, 0.0)}.get(op, (1.0, 0.0, 0.0, 0.0))


def flow_price(flow: Flow, units: UnitPrices, num_chunks: int) -> float:
    """Currency units per step for one kind of collective, all groups together."""
    each = sum(float(often) * unit for often, unit in zip(kinds_of(flow.op, num_chunks), units, strict=True))
    return (flow.per_border or flow.per_step) * flow.size_bytes * each


def egress_price(sent: Sequence[Flow], patterns: Mapping[str, Patterns], prices: Prices, num_chunks: int) -> float:
    """Currency units per step for all traffic between buildings."""
    return sum(flow_price(flow, unit_prices(patterns[flow.shape], prices), num_chunks) for flow in sent)
