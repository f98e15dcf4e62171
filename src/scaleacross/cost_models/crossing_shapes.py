"""Shapes of the groups of single pipeline ranks beyond buildings.

A shape (``groups``) describes the worst-placed groups of an axis and all groups that share a link with them. Single
ranks may fare better: not all ranks' groups cross buildings, and those that do need not cross at the same time. Where
stages lie in separate buildings, the groups of most pipeline ranks never leave one. Where all ranks' groups cross, each
rank has only a part of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.columns import column_names, columns_of
from scaleacross.cost_models.groups import GroupShape, RelaxedShape, exact_shape
from scaleacross.cost_models.layout import Axis
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, REGION, Levels

SHARD_COMMUNICATORS: Final = ("cp", "dp_shard", "expert")
"""Communicators that gather parameters."""
OWN: Final = ("fanout", "farthest_fanout", "leaving", "pairs", "crossing", "exchanged")
"""Columns of a shape that tell one pipeline rank's groups beyond buildings from those of others."""


def shapes_of_ranks(shape: GroupShape, axis: Axis, pipeline: Axis, levels: Levels) -> GroupShape:
    """Shapes of the groups of every pipeline rank, one row each.

    Inside buildings a row equals ``shape``, the one row of all groups of the axis. Beyond buildings it describes the
    rank's own groups that cross farthest, with the inter-building links to themselves.
    """
    ranks = pipeline[0]
    rows = {name: np.repeat(getattr(shape, name), ranks, axis=0) for name in column_names(GroupShape)}
    for rank in range(ranks if int(shape.span[0]) >= CAMPUS else 0):
        own = exact_shape(*axis, levels, pipeline, rank)
        for name in OWN:
            rows[name][rank, CAMPUS:] = getattr(own, name)[CAMPUS:]
        rows["entering"][rank] = own.entering
        if own.span < CAMPUS:  # all groups of this rank are as far apart
            for name in ("fanout", "members", "taken"):
                rows[f"farthest_{name}"][rank] = rows[name][rank]
    return GroupShape(**rows).alike(CAMPUS)


def apart(
    groups: Mapping[str, Group], axes: Mapping[str, Axis], levels: Levels, names: Sequence[str]
) -> dict[str, Group]:
    """Groups of every pipeline rank alone on inter-building links, a row each, by communicator that crosses them."""

    def of_ranks(group: Group, axis: Axis) -> Group:
        make = partial(shapes_of_ranks, group.shape, axis, axes["pp"], levels)
        return group.kept(("alone", axis, axes["pp"]), lambda: replace(group, shape=make()))

    crossing = [name for name in names if int(groups[name].shape.span[0]) >= CAMPUS]
    return {name: of_ranks(groups[name], axes[name]) for name in crossing}


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


def near_shape(shape: GroupShape, where: Bools | bool = True) -> GroupShape:
    """Shapes (n rows) as ranks see them whose groups stay in one building; rows not in ``where``, or that cross none,
    are unchanged. Relaxed shapes bound these; the least that groups touch inside buildings stays the least."""
    inside, where = np.arange(NUM_LEVELS) < CAMPUS, np.asarray(where & (shape.span >= CAMPUS))
    if isinstance(shape, RelaxedShape):
        return _without_levels(shape, where[..., None] & ~inside, where)
    every = replace(shape, farthest_fanout=shape.fanout, farthest_members=shape.members, farthest_taken=shape.taken)
    pairs = zip(columns_of(shape), columns_of(crossing_only(every, np.where(inside, shape.fanout, 1.0))), strict=True)
    return GroupShape(
        *(np.where(where.reshape(*where.shape, *(1,) * (own.ndim - where.ndim)), near, own) for own, near in pairs)
    )


def crossing_only(shape: GroupShape, fanout: Floats) -> GroupShape:
    """Restrict shapes to the far levels that some groups cross, those with ``fanout`` above 1.

    On a far level that is not crossed, neighbours are as far apart as on the outermost level that is.
    """
    parts = {name: np.array(getattr(shape, name)) for name in column_names(GroupShape)} | {"fanout": fanout}
    parts["farthest_fanout"][..., CAMPUS:] = fanout[..., CAMPUS:]
    for level in (REGION, CAMPUS):
        # a level without a crossing is idle; its neighbour pairs count on the next crossed level inside
        stays = fanout[..., level] <= 1
        crossed = fanout[..., :level] > 1
        outermost = np.where(crossed.any(axis=-1), level - 1 - np.argmax(crossed[..., ::-1], axis=-1), 0)
        moved = np.where(stays, parts["pairs"][..., level], 0.0)
        parts["pairs"][..., level] -= moved
        parts["pairs"] += moved[..., None] * (np.arange(NUM_LEVELS) == outermost[..., None])
        for name, value in (
            ("members", parts["degree"]),
            ("farthest_members", parts["degree"]),
            ("crossing", 1.0),
            ("leaving", 1.0),
            ("exchanged", 0.0),
        ):
            parts[name][..., level] = np.where(stays, value, parts[name][..., level])
    crossing = (fanout[..., CAMPUS:] > 1).any(axis=-1)
    parts |= {
        "tail": np.where(crossing, parts["tail"], parts["degree"]),
        "entering": np.where(crossing, parts["entering"], 0.0),
    }
    # ranks also wait for groups inside a building, as slow as all of these together
    return GroupShape(**parts).alike()


def _without_levels(shape: RelaxedShape, levels: Bools, some: Bools) -> RelaxedShape:
    """Relaxed shapes whose groups cross none of ``levels``, (..., NUM_LEVELS), ``some`` of which are all beyond
    buildings."""
    nothing = {"fanout": 1.0, "farthest_fanout": 1.0, "crossing": 1.0, "leaving": 1.0, "pairs": 0.0, "exchanged": 0.0}
    nothing |= {"taken": 0.0, "farthest_taken": 0.0}
    parts = {name: np.where(levels, value, getattr(shape, name)) for name, value in nothing.items()}
    for name in ("members", "farthest_members"):
        parts[name] = np.where(levels, shape.degree[..., None], getattr(shape, name))
    tail, entering = np.where(some, shape.degree, shape.tail), np.where(some, 0.0, shape.entering)
    return replace(shape, **parts, tail=tail, entering=entering)
