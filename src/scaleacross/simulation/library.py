"""Least times of NCCL's protocols over nodes (``schedules.collective.protocols``); used by ``calls``.

They bound rings and trees, and their handshakes bound all-to-alls, wherever the groups lie. Over several buildings the
bound is that of one building (assumed), without reductions in switches. There is no bound where the scale-up technology
has no measured curves, or where messages are encoded. No driver is faster than kernels.
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
    """A group of ``degree`` ranks on ``nodes`` nodes, each joined by ``technology``; ``crosses``: spans buildings."""

    degree: int
    nodes: int
    technology: NetworkTechnology
    crosses: bool = False

    @property
    def ranks(self) -> float:
        """Ranks per node, in the mean."""
        return self.degree / self.nodes

    @property
    def switched(self) -> bool:
        """Whether nodes reduce in their switches."""
        return self.technology.in_switch_reduction and self.ranks > 1 and not self.crosses

    @property
    def share(self) -> float:
        """Bytes that a node sends in a tree, over the bytes of the tensor."""
        return float(tree_share(self.nodes)) if self.switched else 2.0

    def ring_s(self, op: CurveOp, size: float, rate: float) -> float:
        """Return the seconds of a ring with its fastest protocol."""
        turns = 2 if op == "all_reduce" else 1
        ways = ring_ways(turns, self.degree, self.nodes, rate, self._slower(op))
        return float(min(way.fixed_s + size * max(way.s_per_byte) for way in ways))

    def tree_s(self, size: float, rate: float) -> float:
        """Return the seconds of a tree all-reduce with its fastest protocol, or through the switches of the nodes."""
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
        """Return the measured over the assumed seconds of small messages within a node; 1 where none were measured.

        The measurement is that of most ranks, up to the ranks of a node. Some curves start at large messages and are
        skipped.
        """
        curves = curves_of(self.technology, op)
        small = [num_ranks for num_ranks, times in curves.items() if min(times) <= SMALL_BYTES]
        known = max((num_ranks for num_ranks in small if num_ranks <= max(2, round(self.ranks))), default=0)
        measured = measured_s(self.technology, op, known, SMALL_BYTES) if known else None
        return 1.0 if measured is None else measured / float(in_node_s(2 if op == "all_reduce" else 1, known))


def library_of(machine: Machine, shape: str, row: int, way: Way) -> Library | None:
    """Return the library of a row's groups, by the technology slowest at small messages; None where it has no bound."""
    groups = machine.shapes[shape]
    nodes, technologies = _nodes_of(machine, shape, row)
    if nodes < 2 or way.coding.levels or not all(one.curves for one in technologies):
        return None
    each = [Library(groups.degree, nodes, one, crosses=len(technologies) > 1) for one in technologies]
    return max(each, key=lambda one: one.ring_s("all_gather", SMALL_BYTES, np.inf))


def handshakes_s(machine: Machine, shape: str, row: int) -> float:
    """Return seconds of an empty all-to-all over the nodes of a row's groups, launch included; 0 within a node."""
    nodes, technologies = _nodes_of(machine, shape, row)
    if nodes < 2 or not all(one.curves for one in technologies):
        return 0.0
    points, seconds = np.array(EXCHANGE_S).T
    return float(np.interp(nodes, points, seconds))


def _nodes_of(machine: Machine, shape: str, row: int) -> tuple[int, list[NetworkTechnology]]:
    """Return the number of nodes of a row's groups, and the scale-up technology of every building that they use."""
    fabric, blocks = machine.fabric, machine.shapes[shape].members[row]
    buildings = [fabric.buildings[int(one)] for one in np.unique(fabric.building[blocks])]
    nodes = len(np.unique(fabric.units[RACK, blocks]))
    return nodes, [one.links.scale_up.technology for one in buildings]
