"""Shapes of the groups of single pipeline ranks beyond buildings.

A shape (``groups``) describes the worst-placed groups of an axis and all groups that share a link with them. Single
ranks may fare better: not all ranks' groups cross buildings, and those that do need not cross at the same time. Where
stages lie in separate buildings, the groups of most pipeline ranks never leave one. Where all ranks' groups cross, each
rank has only a part of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.columns import column_names
from scaleacross.cost_models.groups import GroupShape, busiest_ways
from scaleacross.cost_models.layout import Axis
from scaleacross.cost_models.levels import CAMPUS, REGION, Levels

SHARD_COMMUNICATORS: Final = ("cp", "dp_shard", "expert")
"""Communicators that gather parameters."""


def shapes_of_ranks(shape: GroupShape, axis: Axis, pipeline: Axis, levels: Levels) -> GroupShape:
    """Shapes of the groups of every pipeline rank, one row each.

    Inside buildings a row equals ``shape``, the one row of all groups of the axis. Beyond buildings it describes the
    rank's own groups, with the inter-building links to themselves. Cost: O(positions / unit), as ``exact_shape``.
    """
    (degree, stride), (ranks, apart) = axis, pipeline
    rows = {name: np.repeat(getattr(shape, name), ranks, axis=0) for name in column_names(GroupShape)}
    if int(shape.span[0]) >= CAMPUS:
        unit = math.gcd(stride, levels.alignment, apart)
        child = levels.children(unit)[CAMPUS - 1 :].reshape(2, -1, degree, stride // unit)
        divided = np.flatnonzero(child[0, :, 0, 0] != child[0, :, -1, -1])
        building, region = child[:, divided].transpose(0, 1, 3, 2).reshape(2, -1, degree)
        blocks, within = np.repeat(divided, stride // unit), np.tile(np.arange(stride // unit), len(divided))
        # pipeline rank of each group: pp has stride ``apart``, and all ranks of a group belong to one pipeline rank
        rank = (blocks * degree * stride + within * unit) // apart % ranks
        between = building[:, 1:] != building[:, :-1], region[:, 1:] != region[:, :-1]
        inside = between[0] & ~between[1], between[1]
        stays = np.ones(ranks, dtype=bool)
        stays[rank] = False
        for name in ("fanout", "members", "taken"):  # ranks whose groups stay in buildings
            rows[f"farthest_{name}"][stays] = rows[name][stays]
        farthest = _farthest(between[1].any(axis=1), rank, ranks)
        for level, child, steps in zip((CAMPUS, REGION), (building, region), inside, strict=True):
            longest = _longest_stretch(steps, between[1]) if level == CAMPUS else np.count_nonzero(steps, axis=1)
            rows["fanout"][:, level] = 1 + _most(longest, rank, ranks)
            rows["farthest_fanout"][:, level] = 1 + _most(longest * farthest, rank, ranks)
            rows["leaving"][:, level] = np.maximum(1, unit * _busiest(child, steps.any(axis=1), rank, ranks))
            rows["pairs"][:, level] = _most(np.count_nonzero(steps, axis=1) * farthest, rank, ranks)
        rows["crossing"][:, CAMPUS:] = np.maximum(1, unit * busiest_ways(building, region, rank, ranks).T)
        members = _members(building, levels.children(unit)[CAMPUS - 1])
        for one in range(ranks):
            own = members[rank == one]
            rows["exchanged"][one, CAMPUS:] = levels.routes.fullest(own.T @ own / degree * unit)
            taken = np.where(own > 0, (degree - own) / degree, 0.0).sum(axis=0)
            rows["entering"][one] = levels.routes.slowest_entry(taken * unit)
    return GroupShape(**rows)


def apart(
    groups: Mapping[str, Group], axes: Mapping[str, Axis], levels: Levels, names: Sequence[str]
) -> dict[str, Group]:
    """Groups of every pipeline rank alone on inter-building links, a row each, by communicator that crosses them."""

    def of_ranks(group: Group, axis: Axis) -> Group:
        make = partial(shapes_of_ranks, group.shape, axis, axes["pp"], levels)
        return group.kept(("alone", axis, axes["pp"]), lambda: replace(group, shape=make()))

    far = [name for name in names if int(groups[name].shape.span[0]) >= CAMPUS]
    return {name: of_ranks(groups[name], axes[name]) for name in far}


def slowest_apart(groups: Mapping[str, Group], axes: Mapping[str, Axis], levels: Levels) -> dict[str, Group]:
    """``apart`` groups of the pipeline rank whose groups cross farthest, one row each, of communicators of passes.

    All ranks go at the pace of this rank.
    """

    def slowest(group: Group) -> Group:
        shape = group.shape
        row = np.lexsort((*shape.crossing[:, CAMPUS:].T, *shape.farthest_fanout[:, CAMPUS:].T))[-1:]
        most = {name: getattr(shape, name).max(axis=0, keepdims=True) for name in ("exchanged", "entering")}
        return replace(group, shape=replace(shape.take(row), **most))

    own = apart(groups, axes, levels, ("tp", "ep", *SHARD_COMMUNICATORS))
    kept = {name: ("slowest", axes[name], axes["pp"]) for name in own}
    return {name: groups[name].kept(kept[name], partial(slowest, group)) for name, group in own.items()}


def _farthest(leaves_region: Bools, rank: Ints, ranks: int) -> Bools:
    """Groups that leave their region, or whose rank has no group that does, (groups,)."""
    return np.asarray(leaves_region | (_most(leaves_region, rank, ranks)[rank] == 0))


def _longest_stretch(steps: Bools, ends: Bools) -> Ints:
    """Most steps of every group between two ends, (groups,)."""
    # steps so far minus steps up to the last end are the steps of the current stretch
    counted = np.cumsum(steps, axis=1)
    stretch: Ints = counted - np.maximum.accumulate(np.where(ends, counted, 0), axis=1)
    return np.asarray(stretch.max(axis=1, initial=0))


def _members(child: Ints, every: Ints) -> Floats:
    """Members of every group in every child, (groups, children).

    ``child`` holds the child of each member; ``every`` spans the numbers of all children.
    """
    children = int(every.max() - every.min()) + 1
    number = np.arange(len(child))[:, None] * children + child - every.min()
    return np.bincount(number.ravel(), minlength=len(child) * children).reshape(-1, children).astype(np.float64)


def _most(values: Ints | Bools, rank: Ints, ranks: int) -> Ints:
    """The largest value over the groups of every rank, (ranks,)."""
    out = np.zeros(ranks, dtype=np.int64)
    np.maximum.at(out, rank, values)
    return out


def _busiest(child: Ints, crosses: Bools, rank: Ints, ranks: int) -> Floats:
    """Most groups of every rank that cross and share one child, (ranks,)."""
    new = np.ones(child.shape, dtype=bool)
    # a group counts once per child, at the first of its ranks there
    new[:, 1:] = child[:, 1:] != child[:, :-1]
    new &= crosses[:, None]
    low = int(child.min())
    width = int(child.max()) - low + 1
    code = (rank[:, None] * width + child - low)[new]
    return np.bincount(code, minlength=ranks * width).reshape(ranks, width).max(axis=1).astype(np.float64)
