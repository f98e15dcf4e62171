"""Link figures per level as arrays: of one fill, of many fills side by side, and what one group has of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import RACK, Levels
from scaleacross.cost_models.settings import Floats, Ints


class Links(NamedTuple):
    """Level figures as arrays (..., NUM_LEVELS); ``Levels`` has them for one fill, the search for many.

    ``num_links``, ``loss`` and ``packet_bytes`` are what the settings of a connection answer to (``network.transport``); None
    where only the ideal is asked for. ``adapter`` is what the network adapter sends, where settings of a connection let a flow
    use less of it than ``bandwidth`` says; None: the same.

    ``curves`` are tables (tables, operations, group sizes, sizes) of measured collectives inside a domain, if any, and
    ``curve`` (...) says which one holds.
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


def links_of(levels: Levels) -> Links:
    """The link figures of one fill."""
    own = (levels.bandwidth, levels.capacity, levels.latency, *_tables([levels.curves]))
    return Links(*own, levels.num_links, levels.loss, levels.packet_bytes)


def stacked_links(levels: Sequence[Levels]) -> Links:
    """The link figures of many fills, one row each."""
    names = ("bandwidth", "capacity", "latency", "num_links", "loss", "packet_bytes")
    stacked = {name: np.stack([getattr(one, name) for one in levels]) for name in names}
    curves, curve = _tables([one.curves for one in levels])
    return Links(curves=curves, curve=curve, **stacked)


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
    """W_l in bytes/s, inf where level l is not crossed, shape (..., NUM_LEVELS)."""
    return _leaving(shape.members, shape, links)


def ring_bandwidth(shape: GroupShape, links: Links) -> Floats:
    """What one ring (or tree) through all ranks has for leaving a child of level l, as ``group_bandwidth``.

    It leaves a building where it leaves its last scale-up domain, over the adapters and the connections of the ranks in there,
    however many more ranks the building holds: NCCL's rings visit one host after another, and every channel goes the same way.
    """
    return _leaving(np.minimum(shape.members, shape.members[..., RACK, None]), shape, links)


def _leaving(lanes: Floats, shape: GroupShape, links: Links) -> Floats:
    shared = np.minimum(lanes * links.bandwidth, links.capacity / shape.crossing)
    return np.where(shape.fanout > 1, shared, np.inf)
