"""Times of NCCL's rings and trees over nodes, as arrays (``schedules.collective.protocols``).

They apply where the scale-up technology has measured curves, which tell how fast an accelerator and its host are at
small messages. The constants are those of one building's fabric. Over several buildings they are assumed to be lower
bounds, and no switches reduce for a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats
from scaleacross.cost_models.collective_curves import curve_s
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import CAMPUS, RACK
from scaleacross.cost_models.links import Links, ring_bandwidth
from scaleacross.schedules.collective.protocols import (
    EXCHANGE_S,
    SMALL_BYTES,
    Way,
    in_node_s,
    ring_ways,
    switched_s,
    tree_share,
    tree_ways,
)
from scaleacross.spec.network import CurveOp


def nodes_of(shape: GroupShape) -> Floats:
    """Scale-up domains over which a group is spread, (...); for a relaxed shape the fewest."""
    nodes: Floats = 1.0 + shape.pairs[..., RACK:].sum(axis=-1)
    return nodes


def least_tree_share(shape: GroupShape) -> Floats:
    """x of a tree, (...): the least share that remains if switches reduce in every node; 2 beyond one building."""
    share: Floats = np.where(shape.span >= CAMPUS, 2.0, tree_share(nodes_of(shape)))
    return share


def exchange_latency_s(shape: GroupShape, links: Links) -> Floats:
    """Seconds of an all-to-all of no bytes, launch included, (...); for a relaxed shape the least.

    They are the handshakes of nodes, wherever these lie. They are 0 inside one node, and where the curves of a bound's
    links bound nothing.
    """
    if links.curves is None:
        return np.zeros(shape.degree.shape)
    nodes, seconds = np.array(EXCHANGE_S).T
    ranks = np.maximum(2.0, shape.degree)
    bounded = curve_s(links.curves, links.curve, "all_to_all", ranks, np.asarray(SMALL_BYTES)) != 0
    return np.where((shape.span >= RACK) & bounded, np.interp(nodes_of(shape), nodes, seconds), 0.0)


class _Line(NamedTuple):
    """Seconds of one protocol: fixed, and per byte."""

    fixed_s: Floats
    s_per_byte: Floats


@dataclass(frozen=True)
class ProtocolTimes:
    """Times of groups of an exact shape whose technology has curves. What no size changes is computed once.

    Attributes:
        each: spreads values of the shapes over sizes.
    """

    shape: GroupShape
    links: Links
    curves: Floats
    each: Callable[[Floats], Floats]
    _rings: dict[CurveOp, list[_Line]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def hold(self) -> bool:
        """Whether the constants hold for any of the groups."""
        return bool(self._over_nodes.any())

    def ring_s(self, op: CurveOp, size: Floats) -> Floats:
        """Seconds of a ring, launch included; 0 where the constants do not hold."""
        if op not in self._rings:
            turns = 2 if op == "all_reduce" else 1
            self._rings[op] = _lines(ring_ways(turns, self._degree, self._nodes, self._rate, self._slower(op)))
        return np.where(self._over_nodes, _fastest(self._rings[op], size), 0.0)

    def layered_s(self, ring_s: Floats) -> Floats:
        """Lower bound, s, on a hierarchical collective with one phase, a ring over nodes; 0 with several phases."""
        return np.where(self._one_phase, ring_s, 0.0)

    def tree_s(self, size: Floats) -> Floats:
        """Seconds of a double tree's all-reduce, launch included; 0 where the constants do not hold."""
        out = _fastest(self._tree, size)
        if self.switched.any():
            # the curve without its time at small messages is that of bytes inside a node
            inside = self._curve("all_reduce", size) - self._curve("all_reduce", np.asarray(SMALL_BYTES))
            figures = self._nodes, np.log2(self._nodes), self._rate, self._slower("all_reduce")
            by_switches = switched_s(np.maximum(size, 1.0), np.maximum(0.0, inside), *figures, np.minimum)
            out = np.where(self.switched, np.minimum(out, by_switches), out)
        return np.where(self._over_nodes, out, 0.0)

    @cached_property
    def _tree(self) -> list[_Line]:
        doublings, slower = np.log2(self._nodes), self._slower("all_reduce")
        return _lines(tree_ways(self._degree, self._nodes, doublings, self._rate, slower))

    @cached_property
    def _one_phase(self) -> Bools:
        one_phase = (self.shape.fanout > 1).sum(axis=-1) == 1
        return self.each(np.where(one_phase, 1.0, 0.0)) > 0

    @cached_property
    def share(self) -> Floats:
        """x of the tree that ``tree_s`` times: 2, or what remains if switches reduce."""
        return np.where(self.switched, self.each(least_tree_share(self.shape)), 2.0)

    @cached_property
    def switched(self) -> Bools:
        """Whether nodes reduce in their switches."""
        in_switch = np.broadcast_to(np.asarray(self.links.in_switch, dtype=np.float64), self.shape.degree.shape)
        within = self.each(np.where(self.shape.span < CAMPUS, 1.0, 0.0)) > 0
        return self._over_nodes & within & (self.each(in_switch) > 0) & (self._ranks > 1)

    @cached_property
    def _over_nodes(self) -> Bools:
        return self.each(np.where(self.shape.span >= RACK, 1.0, 0.0)) > 0

    @cached_property
    def _degree(self) -> Floats:
        return self.each(self.shape.degree)

    @cached_property
    def _nodes(self) -> Floats:
        return self.each(nodes_of(self.shape))

    @cached_property
    def _ranks(self) -> Floats:
        return np.maximum(1.0, self._degree / self._nodes)

    @cached_property
    def _rate(self) -> Floats:
        return self.each(ring_bandwidth(self.shape, self.links)[..., RACK:].min(axis=-1))

    def _slower(self, op: CurveOp) -> Floats:
        known = np.maximum(2.0, self._ranks)
        measured = curve_s(self.curves, self.links.curve, op, known, np.asarray(SMALL_BYTES))
        ratio = measured / in_node_s(2 if op == "all_reduce" else 1, known)
        return np.where(np.isnan(ratio), 1.0, ratio)

    def _curve(self, op: CurveOp, size: Floats) -> Floats:
        return curve_s(self.curves, self.links.curve, op, self._ranks, size)


def _lines(ways: list[Way]) -> list[_Line]:
    """Every way as a ``_Line`` with the slowest of its limits."""
    return [_Line(fixed, reduce(np.maximum, limits)) for fixed, limits in ways]


def _fastest(lines: list[_Line], size: Floats) -> Floats:
    out: Floats = reduce(np.minimum, [one.fixed_s + size * one.s_per_byte for one in lines])
    return out
