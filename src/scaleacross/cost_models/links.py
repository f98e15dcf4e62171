"""Link figures per level as arrays, for one or many allocations, and the bandwidth that one group has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.groups import GroupShape, RelaxedShape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK, Levels
from scaleacross.cost_models.network.drivers import Drives


class Links(NamedTuple):
    """Level figures as arrays (..., NUM_LEVELS); ``Levels`` has them for one allocation, the search for many.

    Attributes:
        curves: tables (tables, operations, group sizes, sizes) of measured collectives inside a domain, if any;
            ``curve`` (...) is the index of the one that holds.
        num_links, loss, packet_bytes: figures that settings of a connection depend on (``network.transport``); None for
            ideal connections.
        adapter: bytes/s of the network adapter, where settings of a connection let a flow use less of it than
            ``bandwidth``; None: the same.
        uplink: share of the uplinks on the way for traffic farther out (``Levels``); None: no limit.
        ratio: bytes of a message over bytes sent across a level, where messages are encoded.
        message_overhead: what every message of a further chunk adds, s; None: nothing.
        egress: capacity for an all-to-all, whose many flows use all hashed links, and in bounds all inter-building
            links out of a building; None: the same as ``capacity``.
        ring_share: share of the capacity that rings and trees attain, whose few flows are hashed onto links; None: all.
        drives: figures of the accelerators for copy engines and hosts as drivers; None: not needed.
        in_switch: whether the switches of domains add up what passes, (...).
        two_buildings: in bounds, whether an allocation has at most two buildings.
    """

    bandwidth: Floats
    capacity: Floats
    latency: Floats
    curves: Floats | None = None
    curve: Ints | int = 0
    num_links: Floats | None = None
    loss: Floats | None = None
    packet_bytes: Floats | None = None
    adapter: Floats | None = None
    uplink: Floats | None = None
    ratio: Floats | None = None
    message_overhead: Floats | None = None
    egress: Floats | None = None
    ring_share: Floats | None = None
    drives: Drives | None = None
    in_switch: Bools | bool = False
    two_buildings: Bools | bool = False

    def without_others(self, shape: GroupShape) -> Links:
        """Links of a group that is alone on inter-building links and on the uplinks to them.

        A relaxed shape may cross inter-building links instead of other levels, so no capacity limits it anywhere.
        """
        capacity = np.array(self.capacity)
        capacity[..., 0 if isinstance(shape, RelaxedShape) else CAMPUS :] = np.inf
        return self._replace(capacity=capacity, uplink=None)

    def only_trunks(self) -> Links:
        """Links where adapters and links inside buildings are infinitely fast: only inter-building links limit."""
        bandwidth, capacity = np.full_like(self.bandwidth, np.inf), np.array(self.capacity)
        capacity[..., :CAMPUS] = np.inf
        return self._replace(bandwidth=bandwidth, capacity=capacity, uplink=None, adapter=None, curves=None)


OF_LEVELS = ("bandwidth", "capacity", "latency", "num_links", "loss", "packet_bytes", "uplink", "message_overhead")
"""Figures that ``Links`` copies from ``Levels``."""


def links_of(levels: Levels) -> Links:
    """The link figures of one allocation."""
    curves, curve = _tables([levels.curves])
    drives, own = Drives.of(levels.accelerators), {name: getattr(levels, name) for name in OF_LEVELS}
    return Links(curves=curves, curve=curve, in_switch=levels.in_switch, drives=drives, **own)


def stacked_links(levels: Sequence[Levels], rows: Ints | None = None) -> Links:
    """The link figures of many allocations, one row each; with ``rows`` those of ``levels[rows[i]]`` in row i."""
    rows = np.arange(len(levels)) if rows is None else rows
    stacked = {name: np.stack([getattr(one, name) for one in levels])[rows] for name in OF_LEVELS}
    curves, curve = _tables([one.curves for one in levels])
    in_switch = np.array([one.in_switch for one in levels])[rows]
    table = curve if isinstance(curve, int) else curve[rows]
    return Links(curves=curves, curve=table, in_switch=in_switch, drives=None, **stacked)


def _tables(tables: Sequence[Floats | None]) -> tuple[Floats | None, Ints | int]:
    """The distinct tables, stacked, and the index of each row's table; a row without a table has one of NaN."""
    distinct = list({id(table): table for table in tables}.values())
    some = next((table for table in distinct if table is not None), None)
    if some is None:
        return None, 0
    stacked = np.stack([np.full_like(some, np.nan) if table is None else table for table in distinct])
    if len(distinct) == 1:
        return stacked, 0
    place = {id(table): index for index, table in enumerate(distinct)}
    return stacked, np.array([place[id(table)] for table in tables])


def group_bandwidth(shape: GroupShape, links: Links) -> Floats:
    """W_l, bytes/s of all members of a group in one child, (..., NUM_LEVELS); inf where level l is not crossed."""
    whole, inner = _leaving(shape.members, shape, links), uplinks_on_the_way(shape, links)
    return whole if inner is None else np.minimum(whole, shape.members * inner.min(axis=-1))


def ring_bandwidth(shape: GroupShape, links: Links) -> Floats:
    """Bytes/s with which one ring (or tree) through all ranks leaves a child of level l, as ``group_bandwidth``.

    A ring leaves a building from its last scale-up domain there, over the adapters and connections of that domain. More
    ranks in the building do not help: NCCL's rings visit one host after another, and every channel goes the same way.
    """
    reached = links if links.ring_share is None else links._replace(capacity=links.capacity * links.ring_share)
    whole = _leaving(ring_lanes(shape), shape, reached)
    return np.minimum(whole, stream_bandwidth(shape, links))


def ring_lanes(shape: GroupShape) -> Floats:
    """Ranks over which a ring leaves a child of level l: those of its last scale-up domain, (..., NUM_LEVELS)."""
    return np.minimum(shape.members, shape.members[..., RACK, None])


def stream_bandwidth(shape: GroupShape, links: Links) -> Floats | float:
    """Bytes/s of the uplinks on its way for one stream of every group across level l, (..., NUM_LEVELS) or inf.

    A group with m_j ranks in a child of level j sends one stream out of it, and as many groups do as it has room for.
    """
    rate = _on_the_way(shape, links, shape.members, shape.leaving)
    return np.inf if rate is None else np.where(shape.fanout > 1, rate.min(axis=-1), np.inf)


def exchange_s_per_byte(shape: GroupShape, links: Links) -> Floats:
    """Seconds of an all-to-all per byte that a rank sends in all, by level, (..., NUM_LEVELS).

    The time is the longer of two. One is that of the rank's own adapter for what leaves its child of level l, (d −
    members_l)/d. The other is that of the uplink or inter-building link that carries most bytes of all groups.
    """
    degree = shape.degree[..., None]
    outside = np.where(shape.fanout > 1, np.maximum(0.0, degree - shape.members) / degree, 0.0)
    each: Floats = np.maximum(
        outside / links.bandwidth, shape.exchanged / (links.capacity if links.egress is None else links.egress)
    )
    return each


def uplinks_on_the_way(shape: GroupShape, links: Links) -> Floats | None:
    """Bytes/s of the uplink of level j < l for one rank that sends across level l, (..., l, j); None: no limit.

    What leaves a zone leaves its racks first. So the uplink of level j carries what crosses level j and all levels
    farther out. All of its accelerators send, or as many as the groups that cross level l have in a child of level l.
    """
    return _on_the_way(shape, links, np.ones_like(shape.members), shape.leaving * shape.members)


def _on_the_way(shape: GroupShape, links: Links, ranks: Floats, senders: Floats) -> Floats | None:
    """max(ranks_j · uplink_j, capacity_j / senders_l) for all j < l where l is crossed, else inf; bytes before coding.

    None for a relaxed shape: its bounds ignore uplinks, as its groups may lie anywhere.
    """
    if links.uplink is None or isinstance(shape, RelaxedShape) or not np.isfinite(links.uplink).any():
        return None
    ratio = np.ones(()) if links.ratio is None else links.ratio
    each, whole = ranks * links.uplink, links.capacity / ratio
    with np.errstate(invalid="ignore"):
        rate = np.maximum(each[..., None, :], whole[..., None, :] / senders[..., :, None])
    level = np.arange(NUM_LEVELS)
    counts = (level[None, :] < level[:, None]) & np.isfinite(each)[..., None, :] & (shape.fanout > 1)[..., :, None]
    scaled = rate * np.broadcast_to(ratio, (NUM_LEVELS,))[:, None]
    return np.where(counts, scaled, np.inf)


def _leaving(lanes: Floats, shape: GroupShape, links: Links) -> Floats:
    shared = np.minimum(lanes * links.bandwidth, links.capacity / shape.crossing)
    return np.where(shape.fanout > 1, shared, np.inf)
