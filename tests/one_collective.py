"""One collective of groups of a shape on given links, with the best network."""

from __future__ import annotations

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.collectives import GatherOp, Group, Timed
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.links import Links


def gather(size_bytes: Floats, shape: GroupShape, links: Links, launch_s: float, op: GatherOp = "all_gather") -> Timed:
    """All-gather (or reduce-scatter) of a full tensor of ``size_bytes``."""
    return Group(shape, links, launch_s).gather(size_bytes, op)


def all_reduce(size_bytes: Floats, shape: GroupShape, links: Links, launch_s: float) -> Timed:
    """All-reduce of ``size_bytes``."""
    return Group(shape, links, launch_s).all_reduce(size_bytes)


def all_to_all(sent_bytes: Floats, shape: GroupShape, links: Links, launch_s: float) -> Timed:
    """All-to-all in which every rank sends ``sent_bytes`` in all."""
    return Group(shape, links, launch_s).all_to_all(sent_bytes)
