"""Alpha-beta time of one collective over the link levels, for any array of group shapes.

Symbols: d ranks in the group, S bytes of the full tensor, level l with f_l children per parent (``fanout``), α_l
latency, W_l bandwidth that one group has for leaving a child:

    W_l = min(members_l · bandwidth_l, capacity_l / crossing_l)

Members count because every rank of a child drives its own NIC; crossing groups share the child's uplink when all of
them send at once.

Algorithms (all-gather; reduce-scatter mirrors it, all-reduce is one of each):

* ring          (d−1)/d · S / min_l W_l + Σ_l (ranks that step over level l) · α_l. One ring through all ranks in
                position order, split over the NICs of a child; every level carries the whole stream, so the thinnest
                one sets the pace.
* hierarchical  Σ_l (f_l−1)/f_l · S / W_l + Σ_l (f_l−1) · α_l. Outermost level first with shards, then inwards; it meets
                the cut bound (K−1)/K · S per building at K buildings and pays few long latencies.
* tree          all-reduce only: 2 · S / min_l W_l + 2 · Σ_l ⌈log2 f_l⌉ · α_l (double binary tree, pipelined).

Sources: ring and tree volumes as in the NCCL tests' performance notes (bus bandwidth factors (d−1)/d and 2(d−1)/d);
hierarchical decomposition as in Cho et al., BlueConnect (2019). Regime: messages large enough for full bandwidth; the
fixed start-up cost of a collective is ``launch_s``. Sharing with *other* axes' traffic is not modelled here.

Where the scale-up technology has measured curves (``collective_curves``), they take the place of level 0:

* a group inside one domain       the curve of its operation, launch included
* a group across domains          the algorithms above over the levels from rack outwards; hierarchical adds its inner
                                  phase by the curve of f_0 ranks; and none is faster than the curve of min(d, domain)
                                  ranks: fewer bytes over faster links with the same software

An operation without a curve is priced by the formulas above at every level.

Beside NCCL 2.27.5's own tuning constants for nodes of 8 H100 (published in meta-pytorch/autoparallel), with one 400 Gbit/s
port per accelerator at 0.9 of line rate: 4 GiB gathers on 2 to 32 nodes within 7 %, all-reduces on 4 to 32 nodes within 6 %;
on two nodes its tree through the switches is 28 % faster than our best. A 1 KiB gather takes 18 to 73 µs here, 23 to 314 µs
on its rings, which step through every rank; a 1 KiB all-reduce 16 to 64 µs, 25 to 65 µs there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np

from scaleacross.cost_models.collective_curves import curve_s
from scaleacross.cost_models.groups import GroupShape, RelaxedShape
from scaleacross.cost_models.levels import NUM_LEVELS, RACK, SCALE_UP
from scaleacross.cost_models.links import Links, group_bandwidth
from scaleacross.cost_models.settings import Bools, Floats, Ints
from scaleacross.spec.network import CurveOp

ALGORITHM_NAMES = ("none", "ring", "hierarchical", "tree", "pairwise", "point_to_point", "measured")
NONE, RING, HIERARCHICAL, TREE, PAIRWISE, POINT_TO_POINT, MEASURED = range(len(ALGORITHM_NAMES))

ALL_LEVELS: Final = np.ones(NUM_LEVELS, dtype=bool)
OUTER_LEVELS: Final = np.arange(NUM_LEVELS) >= RACK

GatherOp = Literal["all_gather", "reduce_scatter"]


class Timed(NamedTuple):
    """Seconds and index into ALGORITHM_NAMES."""

    time_s: Floats
    algorithm: Ints


class Laws(NamedTuple):
    """Ring, hierarchical and (all-reduce by a) tree as seconds per byte and fixed seconds, each (...)."""

    ring_s_per_byte: Floats
    ring_s: Floats
    hierarchical_s_per_byte: Floats
    hierarchical_s: Floats
    tree_s_per_byte: Floats
    tree_s: Floats


@dataclass(frozen=True)
class Group:
    """Groups on their links: the time of every collective; what no size changes is worked out once.

    ``rows`` (n,), if given, names the row of ``shape`` that each of n sizes meets: many candidates share few groups.
    """

    shape: GroupShape
    links: Links
    launch_s: float
    rows: Ints | None = None

    @cached_property
    def degree(self) -> Floats:
        """Ranks of the group that each size meets."""
        return self._each(self.shape.degree)

    def _each(self, values: Floats) -> Floats:
        """``values`` of the shapes, for every size."""
        return values if self.rows is None else values[self.rows]

    def gather(self, size_bytes: Floats, op: GatherOp = "all_gather") -> Timed:
        """All-gather (or reduce-scatter: ``op`` chooses the curve) of a full tensor of ``size_bytes``."""
        size = np.asarray(size_bytes)

        def across(counted: Bools) -> Timed:
            laws = self._laws(counted)
            inner = self._inner_s(op, size) if counted is OUTER_LEVELS else 0.0
            hierarchical = laws.hierarchical_s_per_byte * size + laws.hierarchical_s + inner
            return self._best([(RING, laws.ring_s_per_byte * size + laws.ring_s), (HIERARCHICAL, hierarchical)])

        return self._timed(op, size, across)

    def all_reduce(self, size_bytes: Floats) -> Timed:
        """All-reduce of ``size_bytes``."""
        size = np.asarray(size_bytes)

        def across(counted: Bools) -> Timed:
            laws = self._laws(counted)
            ring = 2 * (laws.ring_s_per_byte * size + laws.ring_s)
            hierarchical = 2 * (laws.hierarchical_s_per_byte * size + laws.hierarchical_s)
            if counted is OUTER_LEVELS:
                both = self._inner_s("reduce_scatter", size) + self._inner_s("all_gather", size)
                hierarchical = hierarchical + np.where(np.isnan(both), self._inner_s("all_reduce", size), both)
            tree = laws.tree_s_per_byte * size + laws.tree_s
            return self._best([(RING, ring), (HIERARCHICAL, hierarchical), (TREE, tree)])

        return self._timed("all_reduce", size, across)

    def all_to_all(self, sent_bytes: Floats, copies: float = 0.0) -> Timed:
        """All-to-all in which every rank sends ``sent_bytes`` in all, evenly to the d ranks, itself included.

        A rank's bytes for ranks outside its child of level l are (d − members_l)/d of them; all members send through
        the child's W_l. Where they are ``copies`` equal copies per token, a token is sent but once to each child that it
        is meant for (``distinct_share``); 0: every copy is sent.
        """
        shape, links, size, degree = self.shape, self.links, np.asarray(sent_bytes), self.shape.degree[..., None]
        outside = np.maximum(0.0, degree - shape.members) / degree
        if isinstance(shape, RelaxedShape):  # m·(d−m) ≥ d−1 for any members m of d
            uplink = (degree - 1) / degree * shape.crossing / links.capacity
            each = np.where(shape.fanout > 1, np.maximum(outside / links.bandwidth, uplink), 0.0)
        else:
            each = outside * shape.members / group_bandwidth(shape, links)
        latency = np.where(shape.fanout > 1, links.latency, 0.0)
        each = each * distinct_share(degree / shape.members, copies)
        inside = size * distinct_share(shape.degree, copies)

        def across(counted: Bools) -> Timed:
            s_per_byte, fixed_s = ((counted * figures).max(axis=-1) for figures in (each, latency))
            return self._best([(PAIRWISE, size * self._each(s_per_byte) + self._each(fixed_s))])

        return self._timed("all_to_all", inside, across)

    def _timed(self, op: CurveOp, size: Floats, across: Callable[[Bools], Timed]) -> Timed:
        """The curve of ``op`` inside a domain, ``across`` the outer levels beyond it, all levels without a curve."""
        links, degree = self.links, self.degree
        if links.curves is None:
            return across(ALL_LEVELS)
        inside = curve_s(links.curves, links.curve, op, degree, size)
        outside = across(OUTER_LEVELS)
        time = np.where(self._crosses, np.maximum(outside.time_s, inside), inside)
        algorithm = np.where(self._crosses, outside.algorithm, np.where(degree > 1, MEASURED, NONE))
        unknown = np.isnan(inside)
        if unknown.any():
            plain = across(ALL_LEVELS)
            time = np.where(unknown, plain.time_s, time)
            algorithm = np.where(unknown, plain.algorithm, algorithm)
        return Timed(time, algorithm)

    def _inner_s(self, op: CurveOp, size: Floats) -> Floats:
        """Inner phase of a hierarchical collective, by the curve of f_0 ranks; a relaxed shape does not know f_0."""
        if self.links.curves is None or isinstance(self.shape, RelaxedShape):
            return np.zeros(())
        return curve_s(self.links.curves, self.links.curve, op, self._each(self.shape.fanout[..., SCALE_UP]), size)

    def _best(self, options: list[tuple[int, Floats]]) -> Timed:
        winner, time = (np.asarray(part) for part in options[0])
        for code, other in options[1:]:
            winner, time = np.where(other < time, code, winner), np.minimum(time, other)
        alone = self.degree <= 1
        return Timed(np.where(alone, 0.0, time + self.launch_s), np.where(alone, NONE, winner))

    @cached_property
    def _crosses(self) -> Bools:
        crosses = np.any(self.shape.fanout[..., RACK:] > 1, axis=-1)
        return crosses if self.rows is None else crosses[self.rows]

    def _laws(self, counted: Bools) -> Laws:
        return self._outer_laws if counted is OUTER_LEVELS else self._all_laws

    @cached_property
    def _all_laws(self) -> Laws:
        return Laws(*(self._each(law) for law in laws(self.shape, self.links, ALL_LEVELS)))

    @cached_property
    def _outer_laws(self) -> Laws:
        return Laws(*(self._each(law) for law in laws(self.shape, self.links, OUTER_LEVELS)))


def gather(size_bytes: Floats, shape: GroupShape, links: Links, launch_s: float, op: GatherOp = "all_gather") -> Timed:
    """All-gather (or reduce-scatter) of a full tensor of ``size_bytes``; zero for a group of one."""
    return Group(shape, links, launch_s).gather(size_bytes, op)


def all_reduce(size_bytes: Floats, shape: GroupShape, links: Links, launch_s: float) -> Timed:
    """All-reduce of ``size_bytes``; zero for a group of one."""
    return Group(shape, links, launch_s).all_reduce(size_bytes)


def all_to_all(sent_bytes: Floats, shape: GroupShape, links: Links, launch_s: float, copies: float = 0.0) -> Timed:
    """All-to-all in which every rank sends ``sent_bytes`` in all (``Group.all_to_all``); zero for a group of one."""
    return Group(shape, links, launch_s).all_to_all(sent_bytes, copies)


def distinct_share(places: Floats, copies: float) -> Floats:
    """Expected number of distinct places of ``copies`` equally likely ones, over ``copies``: C·(1 − (1 − 1/C)^k) / k.

    1 for no copies.
    """
    if not copies:
        return np.ones_like(places, dtype=np.float64)
    share: Floats = places * (1.0 - (1.0 - 1.0 / places) ** copies) / copies
    return share


def laws(shape: GroupShape, links: Links, counted: Bools) -> Laws:
    """The formulas of the module docstring; only ``counted`` levels limit bandwidth or are phases."""
    if isinstance(shape, RelaxedShape):
        return _bounds(shape, links, counted)
    bandwidth = np.where(counted, group_bandwidth(shape, links), np.inf)
    thinnest, steps = bandwidth.min(axis=-1), shape.fanout - 1
    return Laws(
        (shape.degree - 1) / shape.degree / thinnest,
        (shape.pairs * links.latency).sum(axis=-1),
        (steps / shape.fanout / bandwidth).sum(axis=-1),
        (counted * steps * links.latency).sum(axis=-1),
        2 / thinnest,
        2 * (np.ceil(np.log2(shape.fanout)) * links.latency).sum(axis=-1),
    )


def _bounds(shape: RelaxedShape, links: Links, counted: Bools) -> Laws:
    """Lower bounds of ``laws`` over all exact shapes that a relaxed one stands for, on monotone links.

    With n_l children touched by some group, fanouts f_l ≥ n_l/n_{l+1} and members ≤ d/n_l, so

        Σ (f_l−1)/f_l / (members_l · bandwidth_l) ≥ Σ (n_l−n_{l+1}) / (d · bandwidth_l),

    least for the least n_l where bandwidth falls outwards; f−1 and ⌈log2 f⌉ are at least log2 f, so latencies are at
    least Σ log2(n_l/n_{l+1}) · α_l, least likewise; and half of the tensor or more leaves a child through one uplink.
    """
    bandwidth = np.where(counted, group_bandwidth(shape, links), np.inf)
    thinnest, degree, crossed = bandwidth.min(axis=-1), shape.degree, (shape.fanout > 1) & counted
    doublings = np.log2(shape.fanout)
    steps = (counted * (shape.fanout - 1) * links.latency).sum(axis=-1)
    hops = (np.ceil(doublings) * links.latency).sum(axis=-1)
    uplink = np.where(crossed, shape.crossing / links.capacity, 0.0).max(axis=-1) / 2
    nics = (counted * shape.pairs / links.bandwidth).sum(axis=-1) / degree
    return Laws(
        (degree - 1) / degree / thinnest,
        (shape.pairs * links.latency).sum(axis=-1),
        np.maximum(nics, uplink),
        np.where(shape.known, steps, (counted * doublings * links.latency).sum(axis=-1)),
        2 / thinnest,
        2 * np.where(shape.known, hops, (doublings * links.latency).sum(axis=-1)),
    )
