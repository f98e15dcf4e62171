"""Groups that stages wait for, pipeline rank by pipeline rank: one whose own groups stay in a building waits for no trunk.

Where pipeline stages lie one behind the other over unequal buildings, only the groups of the few stages that a border divides
cross it. That is told apart where a building of the fill has room for ``EXTENTS`` extents E = degree · stride of an axis. Then it
holds whole blocks of E positions, and among these whole children of every level that no group fits in. So what bounds say
of groups inside buildings (``groups.relaxed_shape``) is true of the ranks that stay there, too. Of larger extents all ranks wait
as those do whose groups lie worst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.axes import Calls
from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.columns import column_names, columns_of
from scaleacross.cost_models.far_shapes import shapes_of_ranks
from scaleacross.cost_models.groups import GroupShape, RelaxedShape, largest_children
from scaleacross.cost_models.layout import Axis
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, REGION, Levels
from scaleacross.cost_models.links import links_of

EXTENTS: Final = 4
"""Extents of an axis for which a building has room, so that its ranks are told apart."""
WAITED_GROUPS: Final = ("tp", "cp", "cp_inner", "cp_outer", "ep")
"""Communicators of which a stage waits for its own group alone."""
FAR_LOADS: Final = ("crossing", "leaving", "exchanged", "entering")
"""Figures of links between buildings that count all groups there, of a rank that has these links to itself its own alone."""


class RankGroups(NamedTuple):
    """Groups of one communicator by pipeline rank: ``kinds`` that lie alike, one row each; ``of`` which a rank has, (ranks,).

    The first kind stays in buildings. Ranks with groups that cross have such groups, too, and wait for the longer ones.
    """

    kinds: tuple[Group, ...]
    of: Ints

    @classmethod
    def alike(cls, group: Group, ranks: int) -> RankGroups:
        """The same on all ranks."""
        return cls((group,), np.zeros(ranks, dtype=np.int64))

    def calls(self, of_kind: Callable[[Group], Calls]) -> Calls:
        """Of every rank, (ranks,), none with messages; one row where all ranks are alike."""
        every = [of_kind(group) for group in self.kinds]
        if len(every) == 1:
            return every[0]
        columns = zip(*(one[:-1] for one in every), strict=True)
        return Calls.of(None if parts[0] is None else self._longest(parts) for parts in columns)

    def _longest(self, seconds: Sequence[Floats]) -> Floats:
        longest: Floats = np.maximum(np.concatenate(seconds, axis=-1), seconds[0])
        return longest[..., self.of]

    def each(self, figures: Callable[[Group], Floats]) -> Floats:
        """Figures (...,) of every rank's groups, (..., ranks)."""
        return np.stack([figures(group) for group in self.kinds], axis=-1)[..., self.of]


def told_apart(extent: Ints | int, largest: Floats | Ints | float, ranks: Ints | int) -> Bools:
    """Whether each of ``ranks`` pipeline ranks waits for its own groups, which reach over ``extent`` positions, with ``largest``
    accelerators of the fullest building; arrays."""
    return np.asarray((np.asarray(ranks) > 1) & (EXTENTS * np.asarray(extent) <= largest))


def near_shape(shape: GroupShape, where: Bools) -> GroupShape:
    """The shapes (n rows), of those that cross buildings, where asked, as for ranks whose groups stay in one."""
    inside, where = np.arange(NUM_LEVELS) < CAMPUS, where & (shape.span >= CAMPUS)
    every = replace(shape, farthest_fanout=shape.fanout, farthest_members=shape.members, farthest_taken=shape.taken)
    pairs = zip(columns_of(shape), columns_of(_crossing_only(every, np.where(inside, shape.fanout, 1.0))), strict=True)
    return GroupShape(
        *(np.where(where[..., None] if own.ndim > where.ndim else where, near, own) for own, near in pairs)
    )


def alone_shape(shape: GroupShape, where: Bools, ranks: Ints | int) -> GroupShape:
    """The shapes (n rows), where asked, as any of ``ranks`` pipeline ranks whose groups cross farthest has them at least.

    Such a rank has links between buildings to itself (``far_shapes.slowest_apart``); of what all-to-alls of all ranks put on a
    link, or gathers bring into a building, some rank has its share or more. Relaxed shapes may cross these links in place of
    any other.
    """
    relaxed, far = isinstance(shape, RelaxedShape), np.arange(NUM_LEVELS) >= CAMPUS
    where = np.asarray(where & (relaxed | (shape.span >= CAMPUS)))
    if not where.any():
        return shape
    own = where[..., None] & (far | relaxed)
    parts = {name: np.where(own, 1.0, getattr(shape, name)) for name in ("crossing", "leaving")}
    parts["exchanged"] = np.where(own, shape.exchanged / np.asarray(ranks)[..., None], shape.exchanged)
    parts["entering"] = np.where(where, shape.entering / np.asarray(ranks), shape.entering)
    # groups that leave a region may step inside regions less often than others do
    nearer = own & (np.arange(NUM_LEVELS) == CAMPUS) & (shape.fanout[..., REGION:] > 1)
    for name, least in (("fanout", 1.0), ("farthest_fanout", 1.0), ("pairs", 0.0)):
        parts[name] = np.where(nearer, least, getattr(shape, name))
    return replace(shape, **parts)


def least_shape(shape: GroupShape, extent: Ints, largest: Ints | int, ranks: Ints) -> GroupShape:
    """Of shapes (n rows) those of the pipeline ranks that wait least for them; other arguments as of ``told_apart``."""
    apart = told_apart(extent, largest, ranks)
    return alone_shape(near_shape(shape, apart), ~apart & (ranks > 1), ranks)


def waiting_groups(
    groups: Mapping[str, Group], axes: Mapping[str, Axis], levels: Levels, names: Sequence[str] = WAITED_GROUPS
) -> dict[str, RankGroups]:
    """Groups that pipeline ranks wait for, where not all of a communicator's lie alike.

    Args:
        groups: of every communicator, one row each.
        axes: degree and stride of pp and of all communicators on ``levels``.
    """
    ranks, out = axes["pp"][0], {}
    largest = int(largest_children(levels)[CAMPUS])
    for name in names:
        group, (degree, stride) = groups[name], axes[name]
        far = int(group.shape.span[0]) >= CAMPUS and int(group.shape.degree[0]) == degree
        if far and told_apart(degree * stride, largest, ranks):
            lie = partial(_of_ranks, group, axes[name], axes["pp"], levels)
            out[name] = group.kept(("waiting", axes[name], axes["pp"]), lie)
    return out


def _of_ranks(group: Group, axis: Axis, pipeline: Axis, levels: Levels) -> RankGroups:
    """The groups of every pipeline rank, by how they lie. Those that cross have links between buildings to themselves."""
    own = shapes_of_ranks(group.shape, axis, pipeline, levels)
    fanout, of = np.unique(own.fanout, axis=0, return_inverse=True)
    kinds = [near_shape(group.shape, np.ones(1, dtype=bool))]
    for number, one in enumerate(fanout):
        alike = own.take(np.flatnonzero(of.reshape(-1) == number))
        alone = {name: getattr(alike, name).max(axis=0, keepdims=True) for name in FAR_LOADS}
        kinds.append(_crossing_only(replace(group.shape, **alone), one[None]))
    return RankGroups(tuple(_lying(group, shape, levels) for shape in kinds), 1 + of.reshape(-1))


def _lying(group: Group, shape: GroupShape, levels: Levels) -> Group:
    """The groups with another shape; those inside buildings by accelerator type, too."""
    out = replace(group, shape=shape)
    own = levels.by_type if int(shape.span[0]) < CAMPUS else {}
    return replace(out, by_type={name: replace(out, links=links_of(one)) for name, one in own.items()})


def _crossing_only(shape: GroupShape, fanout: Floats) -> GroupShape:
    """The shapes of groups of which a part, with this ``fanout``, crosses some far levels only: where it does not, its neighbours
    are as far apart as on the outermost level that it does cross."""
    parts = {name: np.array(getattr(shape, name)) for name in column_names(GroupShape)} | {"fanout": fanout}
    parts["farthest_fanout"][..., CAMPUS:] = fanout[..., CAMPUS:]
    for level in (REGION, CAMPUS):
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
    far = (fanout[..., CAMPUS:] > 1).any(axis=-1)
    parts |= {"tail": np.where(far, parts["tail"], parts["degree"]), "entering": np.where(far, parts["entering"], 0.0)}
    return GroupShape(**parts)
