"""Egress of candidates: exact on one placement, and the least that any placement leaves.

Egress is linear in what a candidate sends, and its unit prices depend on degrees and placement alone. So they are kept, and the
least over all placements is one product of a table (placements × kinds of traffic) and a vector of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from math import prod
from typing import Final

import numpy as np

from scaleacross.cost_models.egress import (
    Prices,
    UnitPrices,
    flow_price,
    group_patterns,
    group_strides,
    hop_prices,
    unit_prices,
)
from scaleacross.cost_models.settings import Floats
from scaleacross.cost_models.traffic import Flow
from scaleacross.solvers.fleets import Fill, Fleet, shares
from scaleacross.spec.parallelism import GRID_AXES, Degrees, GridAxis

SHAPES: Final = (*GRID_AXES, "ep", "expert")
KINDS: Final = tuple(UnitPrices(*row) for row in np.eye(len(UnitPrices._fields)).tolist())
"""Unit prices that single out one kind each."""


@dataclass
class EgressPricing:
    """Unit prices on one fleet, remembered."""

    fleet: Fleet
    _prices: dict[Fill, Prices] = field(default_factory=dict)
    _units: dict[tuple[Fill, int, int], UnitPrices] = field(default_factory=dict)
    _tables: dict[Degrees, Floats] = field(default_factory=dict)

    def exact(
        self, degrees: Degrees, axis_order: Sequence[GridAxis], fill: Fill, sent: Sequence[Flow], num_chunks: int
    ) -> float:
        """Currency units per step on one placement."""
        groups = group_strides(degrees, axis_order)
        return sum(flow_price(flow, self._unit(fill, *groups[flow.shape]), num_chunks) for flow in sent)

    def least(self, degrees: Degrees, sent: Sequence[Flow], num_chunks: int) -> float:
        """Currency units per step on the placement that leaves least; 0 where one building holds the candidate."""
        if degrees.world_size <= max(building.num_accelerators for building in self.fleet.buildings) or not sent:
            return 0.0
        amounts = np.zeros((len(SHAPES), len(KINDS)))
        for flow in sent:
            amounts[SHAPES.index(flow.shape)] += [flow_price(flow, kind, num_chunks) for kind in KINDS]
        return float((self._table(degrees) @ amounts.ravel()).min(initial=np.inf))

    def _table(self, degrees: Degrees) -> Floats:
        """Unit prices of every placement, (placements, shapes · kinds)."""
        if degrees not in self._tables:
            active = [axis for axis in GRID_AXES if degrees.of(axis) > 1]
            idle = [axis for axis in GRID_AXES if axis not in active]
            sizes = [degrees.of(axis) for axis in active]
            granules = {prod(some) for count in range(max(1, len(sizes))) for some in combinations(sizes, count)}
            fills = self.fleet.fills(degrees.world_size, sorted(granules))
            orders = [group_strides(degrees, (*idle, *order)) for order in permutations(active)]
            rows = [[self._unit(fill, *groups[shape]) for shape in SHAPES] for fill in fills for groups in orders]
            columns = len(SHAPES) * len(KINDS)
            self._tables[degrees] = np.array(rows, dtype=np.float64).reshape(-1, columns)
        return self._tables[degrees]

    def _unit(self, fill: Fill, degree: int, stride: int) -> UnitPrices:
        key = (fill, degree, stride)
        if key not in self._units:
            if fill not in self._prices:
                self._prices[fill] = hop_prices(self.fleet.topology, shares(fill))
            self._units[key] = unit_prices(group_patterns(shares(fill), degree, stride), self._prices[fill])
        return self._units[key]
