"""Link figures per level as arrays: of one fill, of many fills side by side, and what one group has of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.groups import GroupShape, RelaxedShape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK, Levels
from scaleacross.cost_models.network.drivers import Drives


class Links(NamedTuple):
    """Level figures as arrays (..., NUM_LEVELS); ``Levels`` has them for one fill, the search for many.

    ``num_links``, ``loss`` and ``packet_bytes`` are what the settings of a connection answer to (``network.transport``); None
    where only the ideal is asked for. ``adapter`` is what the network adapter sends, where settings of a connection let a flow
    use less of it than ``bandwidth`` says; None: the same. ``uplink`` is what traffic farther out has of the uplinks on its way
    (``Levels``; None: not counted), ``ratio`` the bytes of a message over bytes sent across a level, where they are encoded.

    ``message_overhead`` is what every message of a further chunk adds, s; None: nothing.

    ``egress`` is what an all-to-all has in place of the capacity: its many flows fill hashed links, and in bounds it may take all
    trunks out of a building; None: the same.

    ``ring_share`` is what rings and trees reach of the capacity, where their few flows are hashed onto links; None: all of it.

    ``drives`` is what accelerators leave to copy engines and hosts; None: not asked for.

    ``curves`` are tables (tables, operations, group sizes, sizes) of measured collectives inside a domain, if any, and
    ``curve`` (...) says which one holds. ``in_switch`` (...): whether the switches of domains add up what passes.

    ``two_buildings``: in bounds, whether there are no more than these.
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
        """Of a group that no other stands in the way of on trunks and on its way there; of a relaxed shape, which may cross
        trunks instead of other levels, nowhere."""
        capacity = np.array(self.capacity)
        capacity[..., 0 if isinstance(shape, RelaxedShape) else CAMPUS :] = np.inf
        return self._replace(capacity=capacity, uplink=None)

    def only_trunks(self) -> Links:
        """Where trunks alone limit a group: its adapters and the links inside buildings carry anything."""
        bandwidth, capacity = np.full_like(self.bandwidth, np.inf), np.array(self.capacity)
        capacity[..., :CAMPUS] = np.inf
        return self._replace(bandwidth=bandwidth, capacity=capacity, uplink=None, adapter=None, curves=None)


OF_LEVELS = ("bandwidth", "capacity", "latency", "num_links", "loss", "packet_bytes", "uplink", "message_overhead")
"""Figures that links have from ``Levels`` as they are."""


def links_of(levels: Levels) -> Links:
    """The link figures of one fill."""
    curves, curve = _tables([levels.curves])
    drives, own = Drives.of(levels.accelerators), {name: getattr(levels, name) for name in OF_LEVELS}
    return Links(curves=curves, curve=curve, in_switch=levels.in_switch, drives=drives, **own)


def stacked_links(levels: Sequence[Levels], rows: Ints | None = None) -> Links:
    """The link figures of many fills, one row each; with ``rows`` those of ``levels[rows[i]]`` in row i."""
    rows = np.arange(len(levels)) if rows is None else rows
    stacked = {name: np.stack([getattr(one, name) for one in levels])[rows] for name in OF_LEVELS}
    curves, curve = _tables([one.curves for one in levels])
    in_switch = np.array([one.in_switch for one in levels])[rows]
    table = curve if isinstance(curve, int) else curve[rows]
    return Links(curves=curves, curve=table, in_switch=in_switch, drives=None, **stacked)


def _tables(tables: Sequence[Floats | None]) -> tuple[Floats | None, Ints | int]:
    """The distinct tables and which of them each row takes; rows without one take NaN."""
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
    """W_l in bytes/s, inf where level l is not crossed, shape (..., NUM_LEVELS): of all members in one child together."""
    whole, inner = _leaving(shape.members, shape, links), uplinks_on_the_way(shape, links)
    return whole if inner is None else np.minimum(whole, shape.members * inner.min(axis=-1))


def ring_bandwidth(shape: GroupShape, links: Links) -> Floats:
    """What one ring (or tree) through all ranks has for leaving a child of level l, as ``group_bandwidth``.

    It leaves a building where it leaves its last scale-up domain, over the adapters and the connections of the ranks in there,
    however many more ranks the building holds: NCCL's rings visit one host after another, and every channel goes the same way.
    """
    reached = links if links.ring_share is None else links._replace(capacity=links.capacity * links.ring_share)
    whole = _leaving(ring_lanes(shape), shape, reached)
    return np.minimum(whole, stream_bandwidth(shape, links))


def ring_lanes(shape: GroupShape) -> Floats:
    """Ranks over which a ring leaves a child of level l: those of its last scale-up domain, (..., NUM_LEVELS)."""
    return np.minimum(shape.members, shape.members[..., RACK, None])


def stream_bandwidth(shape: GroupShape, links: Links) -> Floats | float:
    """What one stream of every group across level l has of the uplinks on its way, bytes/s, (..., NUM_LEVELS) or inf.

    A group with m_j ranks in a child of level j sends one stream out of it, and as many groups do as it has room for.
    """
    rate = _on_the_way(shape, links, shape.members, shape.leaving)
    return np.inf if rate is None else np.where(shape.fanout > 1, rate.min(axis=-1), np.inf)


def exchange_s_per_byte(shape: GroupShape, links: Links) -> Floats:
    """Seconds of an all-to-all per byte that a rank sends in all, by level, (..., NUM_LEVELS): its own adapter's for what leaves
    its child of level l, (d − members_l)/d, or those of the uplink or trunk that carries most of all groups' bytes."""
    degree = shape.degree[..., None]
    outside = np.where(shape.fanout > 1, np.maximum(0.0, degree - shape.members) / degree, 0.0)
    each: Floats = np.maximum(
        outside / links.bandwidth, shape.exchanged / (links.capacity if links.egress is None else links.egress)
    )
    return each


def uplinks_on_the_way(shape: GroupShape, links: Links) -> Floats | None:
    """What one rank that sends across level l has of the uplink of level j < l on its way, bytes/s, (..., l, j); None: no limit.

    What leaves a zone leaves its racks first: the uplink of level j carries what crosses level j and all levels farther out.
    All of its accelerators send, or as many as the groups that cross level l have in a child of level l.
    """
    return _on_the_way(shape, links, np.ones_like(shape.members), shape.leaving * shape.members)


def _on_the_way(shape: GroupShape, links: Links, ranks: Floats, senders: Floats) -> Floats | None:
    """max(ranks_j · uplink_j, capacity_j / senders_l) for all j < l where l is crossed, else inf, as encoded messages see it.

    None of a relaxed shape: its bounds do without, as its groups may lie anywhere.
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
