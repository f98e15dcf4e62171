"""Egress costs of candidates: exact on one placement, and the least of any placement.

Egress is linear in the bytes that a candidate sends, and its unit prices depend on degrees and placement alone. So they
are kept, and the least over all placements is one product of a table (placements × kinds of traffic) and a vector of
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.distinct import distinct
from scaleacross.cost_models.egress import (
    Prices,
    UnitPrices,
    flow_price,
    group_patterns,
    hop_prices,
    kinds_of,
    unit_prices,
)
from scaleacross.cost_models.traffic import Flow, Volumes, sent
from scaleacross.solvers.pools import AcceleratorPool, Allocation, shares
from scaleacross.spec.parallelism import GRID_AXES, Degrees, GridAxis
from scaleacross.spec.placement import axis_orders, communicator_axes

SHAPES: Final = (*GRID_AXES, "cp_inner", "cp_outer", "ep", "expert")


@dataclass
class EgressPricing:
    """Unit prices on one pool, kept by degrees and allocation."""

    pool: AcceleratorPool
    _prices: dict[Allocation, Prices] = field(default_factory=dict)
    _units: dict[tuple[Allocation, int, int], UnitPrices] = field(default_factory=dict)
    _tables: dict[Degrees, Floats] = field(default_factory=dict)

    def exact(
        self,
        degrees: Degrees,
        axis_order: Sequence[GridAxis],
        allocation: Allocation,
        sent: Sequence[Flow],
        num_chunks: int,
    ) -> float:
        """Return currency units per step on one placement."""
        groups = communicator_axes(degrees, axis_order)
        return sum(flow_price(flow, self._unit(allocation, *groups[flow.shape]), num_chunks) for flow in sent)

    def least(self, volumes: Volumes) -> Floats:
        """Return the least currency units per step on any placement, (n,); 0 where one building holds the candidate."""
        candidates = volumes.candidates
        out = np.zeros(len(candidates))
        spread = candidates.world_size > max(building.num_accelerators for building in self.pool.buildings)
        amounts = sent_amounts(volumes).reshape(len(candidates), -1)
        axes = tuple(Degrees.model_fields)
        kinds = distinct(*(getattr(candidates, axis) for axis in axes))
        for kind, row in enumerate(kinds.first):
            alike = np.flatnonzero((kinds.code == kind) & spread)
            if len(alike):
                table = self._table(Degrees(**{axis: int(getattr(candidates, axis)[row]) for axis in axes}))
                out[alike] = (table @ amounts[alike].T).min(axis=0, initial=np.inf)
        return out

    def _table(self, degrees: Degrees) -> Floats:
        """Return the unit prices of every placement, (placements, shapes · kinds)."""
        if degrees not in self._tables:
            active = [axis for axis in GRID_AXES if degrees.of(axis) > 1]
            idle = [axis for axis in GRID_AXES if axis not in active]
            allocations = self.pool.allocations_of(degrees)
            groups = [
                communicator_axes(degrees, (*idle, *order)) for order in axis_orders(active, degrees.expert_lanes > 1)
            ]
            pairs = {pair: index for index, pair in enumerate({pair for group in groups for pair in group.values()})}
            # many orders give every communicator the same (degree, stride), so each such row is kept once
            rows = np.unique([[pairs[group[shape]] for shape in SHAPES] for group in groups], axis=0)
            units = np.array(
                [[self._unit(allocation, *pair) for pair in pairs] for allocation in allocations], dtype=np.float64
            )
            table = units.reshape(len(allocations), len(pairs), len(UnitPrices._fields))[:, rows]
            self._tables[degrees] = table.reshape(len(allocations) * len(rows), len(SHAPES) * len(UnitPrices._fields))
        return self._tables[degrees]

    def _unit(self, allocation: Allocation, degree: int, stride: int) -> UnitPrices:
        key = (allocation, degree, stride)
        if key not in self._units:
            if allocation not in self._prices:
                self._prices[allocation] = hop_prices(self.pool.topology, shares(allocation))
            self._units[key] = unit_prices(group_patterns(shares(allocation), degree, stride), self._prices[allocation])
        return self._units[key]


def sent_amounts(volumes: Volumes) -> Floats:
    """Return bytes per step that each kind of unit price multiplies, (n, SHAPES, UnitPrices)."""
    out = np.zeros((len(volumes.candidates), len(SHAPES), len(UnitPrices._fields)))
    for one in sent(volumes):
        times = np.where(one.per_border > 0, one.per_border, sum(one.phases.values()))
        for kind, often in enumerate(kinds_of(one.op, volumes.candidates.num_chunks)):
            out[:, SHAPES.index(one.shape), kind] += often * times * one.size_bytes
    return out
