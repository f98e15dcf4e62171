"""What NCCL's protocols take over the nodes of one building (``schedules.collective.protocols``), for one class of groups.

Rings and trees take it at least, all-to-alls its handshakes, wherever their groups lie. Nothing where the scale-up
technology has no measured curves, and for messages that are encoded. No driver is faster than kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scaleacross.schedules.collective.protocols import (
    EXCHANGE_S,
    SMALL_BYTES,
    in_node_s,
    ring_ways,
    switched_s,
    tree_share,
    tree_ways,
)
from scaleacross.simulation.connections import Way
from scaleacross.simulation.curves import curves_of, measured_s
from scaleacross.simulation.fabric import RACK
from scaleacross.simulation.machine import Machine
from scaleacross.spec.network import CurveOp, NetworkTechnology


@dataclass(frozen=True)
class Library:
    """d ranks of a class of groups on n nodes, joined inside them by ``technology``."""

    degree: int
    nodes: int
    technology: NetworkTechnology

    @property
    def ranks(self) -> float:
        """Ranks in a node."""
        return self.degree / self.nodes

    @property
    def switched(self) -> bool:
        """Whether nodes reduce in their switches."""
        return self.technology.in_switch_reduction and self.ranks > 1

    @property
    def share(self) -> float:
        """Bytes that a node sends in a tree, over those of the tensor."""
        return float(tree_share(self.nodes)) if self.switched else 2.0

    def ring_s(self, op: CurveOp, size: float, rate: float) -> float:
        """A ring by its fastest protocol."""
        turns = 2 if op == "all_reduce" else 1
        ways = ring_ways(turns, self.degree, self.nodes, rate, self._slower(op))
        return float(min(way.fixed_s + size * max(way.s_per_byte) for way in ways))

    def tree_s(self, size: float, rate: float) -> float:
        """A tree's all-reduce by its fastest protocol, or by the switches of the nodes."""
        slower, doublings = self._slower("all_reduce"), math.log2(self.nodes)
        ways = tree_ways(self.degree, self.nodes, doublings, rate, slower)
        out = float(min(way.fixed_s + size * max(way.s_per_byte) for way in ways))
        if not self.switched:
            return out
        inside = max(0.0, self._measured_s("all_reduce", size) - self._measured_s("all_reduce", SMALL_BYTES))
        return min(out, float(switched_s(size, inside, self.nodes, doublings, rate, slower)))

    def _measured_s(self, op: CurveOp, size: float) -> float:
        return measured_s(self.technology, op, max(1, round(self.ranks)), size) or 0.0

    def _slower(self, op: CurveOp) -> float:
        """By the most ranks up to those of a node whose small messages were measured; some curves start at large ones."""
        curves = curves_of(self.technology, op)
        small = [num_ranks for num_ranks, times in curves.items() if min(times) <= SMALL_BYTES]
        known = max((num_ranks for num_ranks in small if num_ranks <= max(2, round(self.ranks))), default=0)
        measured = measured_s(self.technology, op, known, SMALL_BYTES) if known else None
        return 1.0 if measured is None else measured / float(in_node_s(2 if op == "all_reduce" else 1, known))


def library_of(machine: Machine, shape: str, row: int, way: Way) -> Library | None:
    """None where the constants do not hold."""
    groups, fabric = machine.shapes[shape], machine.fabric
    blocks = groups.members[row]
    nodes, buildings = len(np.unique(fabric.units[RACK, blocks])), np.unique(fabric.building[blocks])
    if nodes < 2 or len(buildings) > 1 or way.coding.levels:
        return None
    technology = fabric.buildings[int(buildings[0])].links.scale_up.technology
    return Library(groups.degree, nodes, technology) if technology.curves else None


def handshakes_s(machine: Machine, shape: str, row: int) -> float:
    """An all-to-all of no bytes over the nodes of a class of groups, launch included; 0 inside one node."""
    fabric, blocks = machine.fabric, machine.shapes[shape].members[row]
    nodes = len(np.unique(fabric.units[RACK, blocks]))
    buildings = [fabric.buildings[int(one)] for one in np.unique(fabric.building[blocks])]
    measured = all(one.links.scale_up.technology.curves for one in buildings)
    if nodes < 2 or not measured:
        return 0.0
    points, seconds = np.array(EXCHANGE_S).T
    return float(np.interp(nodes, points, seconds))
