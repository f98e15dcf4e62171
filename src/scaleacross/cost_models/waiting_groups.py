"""Groups that pipeline ranks wait for; a rank whose groups stay in a building waits for no inter-building link.

Pipeline stages may lie one behind the other over unequal buildings. Then a border divides only the groups of a few
stages. Ranks are distinguished where a building of the allocation has room for ``EXTENTS`` extents E = degree · stride
of an axis. Such a building holds whole blocks of E global ranks, and among these whole children of every level too
small for a group. So what bounds say of groups inside buildings (``groups.relaxed_shape``) also holds for the ranks
that stay there. With larger extents all ranks wait like those whose groups lie worst.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.axes import Calls
from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.columns import concatenated
from scaleacross.cost_models.crossing_shapes import crossing_only, near_shape, shapes_of_ranks
from scaleacross.cost_models.groups import GroupShape, RelaxedShape, largest_children
from scaleacross.cost_models.layout import Axis
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, REGION, Levels
from scaleacross.cost_models.links import links_of

EXTENTS: Final = 4
"""Extents of an axis that a building must have room for, so that its ranks are distinguished."""
WAITED_GROUPS: Final = ("tp", "cp", "cp_inner", "cp_outer", "ep")
"""Communicators for which a stage waits for its own group only."""
CROSSING_LOADS: Final = ("crossing", "leaving", "exchanged", "entering")
"""Shape figures of inter-building links that count all groups there; of a rank alone on these links, its own groups."""


class RankGroups(NamedTuple):
    """Groups of one communicator by pipeline rank.

    Attributes:
        kinds: groups that lie alike, one row each. The first of several kinds stays inside buildings.
        of: index into ``kinds`` of every rank, (ranks,). Ranks with groups that cross buildings also have groups of the
            first kind, and wait for the longer ones.
    """

    kinds: tuple[Group, ...]
    of: Ints

    @classmethod
    def alike(cls, group: Group, ranks: int) -> RankGroups:
        """The same group on all ranks."""
        return cls((group,), np.zeros(ranks, dtype=np.int64))

    def calls(self, of_kind: Callable[[Group], Calls]) -> Calls:
        """Calls of every rank, (ranks,) per column, without messages; where all ranks are alike, those of the one
        kind."""
        every = [of_kind(group) for group in self.kinds]
        if len(every) == 1:
            return every[0]
        columns = zip(*(one[:-1] for one in every), strict=True)
        return Calls.of(None if parts[0] is None else self._longest(parts) for parts in columns)

    def _longest(self, seconds: Sequence[Floats]) -> Floats:
        # a rank whose groups cross buildings waits for groups of the first kind, too
        longest: Floats = np.maximum(np.concatenate(seconds, axis=-1), seconds[0])
        return longest[..., self.of]

    def on(self, ranks: Ints) -> Group:
        """The group of each of ``ranks``, its row among those of all kinds."""
        first = self.kinds[0]
        shape = first.kept("kinds", lambda: concatenated([group.shape for group in self.kinds]))
        return replace(first, shape=shape, rows=self.of[ranks])

    def each(self, figures: Callable[[Group], Floats]) -> Floats:
        """Stack of a figure (...,) of every rank's groups, (..., ranks)."""
        return np.stack([figures(group) for group in self.kinds], axis=-1)[..., self.of]


def told_apart(extent: Ints | int, largest: Floats | Ints | float, ranks: Ints | int) -> Bools:
    """Whether each of ``ranks`` pipeline ranks waits for its own groups only, not for those that lie worst; broadcasts.

    Args:
        extent: global ranks that one group spans.
        largest: accelerators of the fullest building.
    """
    return np.asarray((np.asarray(ranks) > 1) & (EXTENTS * np.asarray(extent) <= largest))


def alone_shape(shape: GroupShape, where: Bools, ranks: Ints | int) -> GroupShape:
    """Lower bound on shapes (n rows) for any of ``ranks`` pipeline ranks whose groups cross farthest; only rows in
    ``where`` change.

    Such a rank has inter-building links to itself (``crossing_shapes.slowest_apart``). All ranks' all-to-alls load a link,
    and their gathers enter a building; some rank has 1/``ranks`` of that load or more. Relaxed shapes may cross these
    links in place of any other.
    """
    relaxed, crossing = isinstance(shape, RelaxedShape), np.arange(NUM_LEVELS) >= CAMPUS
    where = np.asarray(where & (relaxed | (shape.span >= CAMPUS)))
    if not where.any():
        return shape
    own = where[..., None] & (crossing | relaxed)
    parts = {name: np.where(own, 1.0, getattr(shape, name)) for name in ("crossing", "leaving")}
    parts["exchanged"] = np.where(own, shape.exchanged / np.asarray(ranks)[..., None], shape.exchanged)
    parts["entering"] = np.where(where, shape.entering / np.asarray(ranks), shape.entering)
    # groups that leave a region may step inside regions less often than others do
    nearer = own & (np.arange(NUM_LEVELS) == CAMPUS) & (shape.fanout[..., REGION:] > 1)
    for name, least in (("fanout", 1.0), ("farthest_fanout", 1.0), ("pairs", 0.0)):
        parts[name] = np.where(nearer, least, getattr(shape, name))
    return replace(shape, **parts).alike(CAMPUS)


def least_shape(shape: GroupShape, extent: Ints, largest: Ints | int, ranks: Ints) -> GroupShape:
    """Shapes (n rows) of the pipeline ranks that wait least; arguments as in ``told_apart``."""
    apart = told_apart(extent, largest, ranks)
    return alone_shape(near_shape(shape, apart), ~apart & (ranks > 1), ranks)


def waiting_groups(
    groups: Mapping[str, Group], axes: Mapping[str, Axis], levels: Levels, names: Sequence[str] = WAITED_GROUPS
) -> dict[str, RankGroups]:
    """Groups that each pipeline rank waits for, of those communicators ``names`` whose groups do not all lie alike.

    Args:
        groups: of every communicator, one row each.
        axes: degree and stride of pp and of all communicators on ``levels``.
    """
    ranks, largest = axes["pp"][0], int(largest_children(levels)[CAMPUS])
    apart = [name for name in names if told_apart(math.prod(axes[name]), largest, ranks)]
    return groups_of_ranks(groups, axes, levels, apart)


def groups_of_ranks(
    groups: Mapping[str, Group], axes: Mapping[str, Axis], levels: Levels, names: Sequence[str]
) -> dict[str, RankGroups]:
    """Groups of every pipeline rank, of those communicators ``names`` that cross buildings; other arguments as of
    ``waiting_groups``. Empty where there is one pipeline rank."""
    out = {}
    for name in names if axes["pp"][0] > 1 else ():
        group = groups[name]
        if int(group.shape.span[0]) >= CAMPUS and int(group.shape.degree[0]) == axes[name][0]:
            lie = partial(_of_ranks, group, axes[name], axes["pp"], levels)
            out[name] = group.kept(("waiting", axes[name], axes["pp"]), lie)
    return out


def _of_ranks(group: Group, axis: Axis, pipeline: Axis, levels: Levels) -> RankGroups:
    """Groups of every pipeline rank, sorted into kinds by the levels that they cross. Those that cross buildings have
    the inter-building links to themselves."""
    own = shapes_of_ranks(group.shape, axis, pipeline, levels)
    fanout, of = np.unique(own.fanout, axis=0, return_inverse=True)
    kinds = [near_shape(group.shape, np.ones(1, dtype=bool))]
    for number, one in enumerate(fanout):
        alike = own.take(np.flatnonzero(of.reshape(-1) == number))
        alone = {name: getattr(alike, name).max(axis=0, keepdims=True) for name in CROSSING_LOADS}
        kinds.append(crossing_only(replace(group.shape, **alone), one[None]))
    return RankGroups(tuple(_lying(group, shape, levels) for shape in kinds), 1 + of.reshape(-1))


def _lying(group: Group, shape: GroupShape, levels: Levels) -> Group:
    """``group`` with another shape; groups inside buildings are also given the links of each accelerator type."""
    out = replace(group, shape=shape)
    own = levels.by_type if int(shape.span[0]) < CAMPUS else {}
    return replace(out, by_type={name: replace(out, links=links_of(one)) for name, one in own.items()})
