"""What NCCL's protocols take over nodes (``schedules.collective.protocols``), for one class of groups.

Rings and trees take it at least, all-to-alls its handshakes, wherever their groups lie: over several buildings what they would
take in one (assumed), without reductions in switches. Nothing where the scale-up technology has no measured curves, and for
messages that are encoded. No driver is faster than kernels.
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
    """d ranks of a class of groups on n nodes, joined inside them by ``technology``; ``crosses``: over several buildings."""

    degree: int
    nodes: int
    technology: NetworkTechnology
    crosses: bool = False

    @property
    def ranks(self) -> float:
        """Ranks in a node."""
        return self.degree / self.nodes

    @property
    def switched(self) -> bool:
        """Whether nodes reduce in their switches."""
        return self.technology.in_switch_reduction and self.ranks > 1 and not self.crosses

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
    """By the technology that is slowest at small messages; None where the constants do not hold."""
    groups = machine.shapes[shape]
    nodes, technologies = _nodes_of(machine, shape, row)
    if nodes < 2 or way.coding.levels or not all(one.curves for one in technologies):
        return None
    each = [Library(groups.degree, nodes, one, crosses=len(technologies) > 1) for one in technologies]
    return max(each, key=lambda one: one.ring_s("all_gather", SMALL_BYTES, np.inf))


def handshakes_s(machine: Machine, shape: str, row: int) -> float:
    """An all-to-all of no bytes over the nodes of a class of groups, launch included; 0 inside one node."""
    nodes, technologies = _nodes_of(machine, shape, row)
    if nodes < 2 or not all(one.curves for one in technologies):
        return 0.0
    points, seconds = np.array(EXCHANGE_S).T
    return float(np.interp(nodes, points, seconds))


def _nodes_of(machine: Machine, shape: str, row: int) -> tuple[int, list[NetworkTechnology]]:
    """Nodes of a class of groups, and of every building that it lies in what joins accelerators inside a node."""
    fabric, blocks = machine.fabric, machine.shapes[shape].members[row]
    buildings = [fabric.buildings[int(one)] for one in np.unique(fabric.building[blocks])]
    nodes = len(np.unique(fabric.units[RACK, blocks]))
    return nodes, [one.links.scale_up.technology for one in buildings]
