"""Shape of the groups of an axis over the link levels: all that collectives need to know about a placement.

A group of an axis with degree d and stride s holds the global ranks b + j + i·s, i = 0…d−1.
For every level l (see ``levels``):

* fanout[l]   children of level l that one group touches inside one child of level l+1, the largest over groups (≥ 1,
              real)
* members[l]  ranks of one group in one child of level l, the smallest over the groups that cross level l
* leaving[l]  groups that cross level l and have a rank in one child of it, the largest over children
* crossing[l] the part of ``leaving`` that shares one link. Inside buildings that is all of it, because these groups
  share the child's uplink. Every two buildings have a link of their own, so beyond buildings only groups whose rings
  step between the same two buildings share one. The largest over pairs counts.
* pairs[l]    neighbour pairs (ranks i, i+1) of one group whose link is exactly level l, for the group with most of them
              farthest out
* tail        ranks after the last region boundary of a group (building boundary where no group crosses regions), the
              smallest over groups that have one, else d
* exchanged[l] load of an all-to-all of all groups on the busiest link of level l, divided by the bytes that one rank
  sends in all. With m of a group's ranks in a child that is Σ m·(d−m)/d over all groups. Beyond buildings it is
  Σ m·m'/d over the groups and the pairs of buildings whose route uses the link, scaled to the level's slowest
  (``trunk_routes``).
* spacing     ranks between two consecutive such boundaries, the largest over groups (1 when there are not two)
* taken[l]    share of a gather that a child of level l receives from its siblings: (n−m)/n where m of the n ranks of
              their parent are its own, the largest over children and groups; (f−1)/f where all are equal
* farthest_fanout[l], farthest_members[l], farthest_taken[l]   fanout, members and taken of only those groups that cross
  the outermost level that any group crosses. Where none crosses level l, members are all ranks of one in a child.
* nearer[s]   the same three and pairs, of only those groups that cross level s and none farther out, while others cross
  farther. Where there are none, ``NOWHERE``: the figures of groups that cross nothing.
* entering    bytes that the gathers of all groups bring into a building, divided by the bytes that one rank gathers in
              all: Σ (d−m)/d with m of a group's ranks in it. All links into the building count, scaled to the slowest
              one of campus level. The value is that of the slowest building among those with others in their region
              (``trunk_routes``).

``exact_shape`` counts the shape on the device list. ``relaxed_shape`` bounds it in closed form, over arrays, for any
alignment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.columns import columns_of
from scaleacross.cost_models.layout import Axis
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK, REGION, SCALE_UP, Levels

NOWHERE: Final = np.array([1.0, 1.0, 0.0, 0.0])[:, None]
"""Fanout, members, taken and pairs of groups that cross no level, (4, 1)."""


@dataclass(frozen=True)
class GroupShape:
    """Shape arrays (..., NUM_LEVELS) and degree, tail, spacing, entering (...), broadcastable against candidates.

    ``nearer`` has the shape (..., levels s, 4, NUM_LEVELS); with no levels s all groups are taken to lie alike.
    """

    degree: Floats
    fanout: Floats
    members: Floats
    crossing: Floats
    pairs: Floats
    tail: Floats
    spacing: Floats
    exchanged: Floats
    leaving: Floats
    farthest_fanout: Floats
    farthest_members: Floats
    taken: Floats
    farthest_taken: Floats
    entering: Floats
    nearer: Floats

    @cached_property
    def kinds(self) -> GroupShape:
        """The shape of every kind of groups, with a leading axis: those that cross farthest, then nearer ones.

        A collective lasts as long as its slowest groups, which need not cross farthest: where few of a group's ranks are
        in a child, few adapters carry all of its bytes.
        """
        crossed = self.nearer[..., 0, :].max(axis=-1, initial=1.0) > 1
        spans = np.flatnonzero(crossed.any(axis=tuple(range(crossed.ndim - 1))))[::-1].tolist()
        farthest = np.stack([self.farthest_fanout, self.farthest_members, self.farthest_taken, self.pairs])
        kinds = [farthest, *(np.moveaxis(self.nearer[..., span, :, :], -2, 0) for span in spans)]
        fanout, members, taken, pairs = np.stack(kinds, axis=1)
        return replace(self, fanout=fanout, members=members, taken=taken, pairs=pairs)

    def alike(self, outwards: int = 0) -> GroupShape:
        """The shape without ``nearer`` groups that cross level ``outwards`` or a farther one."""
        known = np.arange(self.nearer.shape[-3])[:, None, None] < outwards
        return replace(self, nearer=np.where(known, self.nearer, NOWHERE))

    @cached_property
    def span(self) -> Ints:
        """Outermost level that a group crosses, −1 when the group is a single rank. Shape (...)."""
        crossed = self.fanout > 1
        outermost = NUM_LEVELS - 1 - np.argmax(crossed[..., ::-1], axis=-1)
        return np.where(crossed.any(axis=-1), outermost, -1)

    def taken_in(self, *, by_rank: bool) -> Floats:
        """Share of a tensor that a child of each level receives, (..., NUM_LEVELS): (f−1)/f where parts are equal.

        ``by_rank``: parts belong to ranks (gather, scatter). Then the child with the smallest share of its parent's
        ranks receives most, the share ``taken``. A child's own part and all that it receives, level by level outwards,
        add up to the whole: the 1 − m/d of a child with m of d ranks is (n−m)/n of its parent's part plus m/n of what
        the parent receives.
        """
        equal = (self.fanout - 1) / self.fanout
        return np.where(self.fanout > 1, self.taken, 0.0) if by_rank else equal

    def take(self, row: int | Ints) -> GroupShape:
        """The shape in one row, or the rows of an index array."""
        return type(self)(*(column[row] for column in columns_of(self)))


def stacked_shapes(shapes: Sequence[GroupShape]) -> GroupShape:
    """Stack single shapes into one shape with a row each."""
    return GroupShape(*map(np.array, zip(*map(columns_of, shapes), strict=True)))


def exact_shape(degree: int, stride: int, levels: Levels, pipeline: Axis = (1, 0), rank: int = 0) -> GroupShape:
    """Shape of the groups of an axis, counted on the device list of ``levels``.

    Groups that start in the same aligned unit lie alike, so one is counted for all of them. Neighbouring ranks in one
    aligned unit are counted as one. Cost: O(positions / unit · levels) of machine code.

    Args:
        pipeline: with several ranks, only the groups of pipeline ``rank`` are counted. They must not all lie inside
            an aligned unit.

    Raises:
        ValueError: the axis does not tile the device list.
    """
    from scaleacross.cost_models.group_loop import count  # late: it brings the compiler

    extent = degree * stride
    if levels.num_ranks % extent:
        raise ValueError(f"degree {degree} with stride {stride} does not tile {levels.num_ranks} global ranks")
    ranks, apart = pipeline if pipeline[0] > 1 else (1, levels.num_ranks)
    unit = math.gcd(stride, levels.alignment, apart)
    together = math.gcd(extent, levels.alignment) // stride if unit == stride else 1
    # ranks are merged only where an aligned unit holds a whole number of them, or a whole group
    together = together if together * stride in (extent, levels.alignment) else 1
    alike = together == degree  # each group in one unit: the first is counted for all
    step = levels.num_ranks if alike else unit * together
    child = levels.children(step).reshape(NUM_LEVELS - 1, -1, ranks, apart // step)[:, :, rank]
    # a view with another layout would be compiled for once more
    child = np.ascontiguousarray(child.reshape(NUM_LEVELS - 1, -1))
    # among the units of one pipeline rank, members of an axis outside the pipeline lie closer together
    offsets = (stride if stride < apart else stride // ranks) // unit
    counted = count(child, degree // together, offsets, 1 + len(levels.routes.buildings))
    exchanged, leaving, entering = np.zeros(NUM_LEVELS), np.maximum(1.0, counted.leaving * unit), 0.0
    exchanged[SCALE_UP] = (degree - 1) / degree
    exchanged[RACK:CAMPUS] = counted.sent[RACK:CAMPUS] * float(together**2) / degree * unit
    crossing = leaving.copy()
    if counted.ways.any():
        crossing[CAMPUS:] = np.maximum(1.0, counted.ways * unit)
        exchanged[CAMPUS:] = levels.routes.fullest(counted.between[1:, 1:] * float(together**2) / degree * unit)
        entering = levels.routes.slowest_entry(counted.entering[1:] * unit)
    counted.children[:, SCALE_UP] *= together
    members = counted.fewest * float(together)
    members[:, SCALE_UP] = 1.0
    counted.pairs[:, SCALE_UP] += (together - 1) * (degree // together)
    tail = degree - (1 + counted.boundary) * float(together)
    counted.taken[:, SCALE_UP] = (counted.children[:, SCALE_UP] - 1) / counted.children[:, SCALE_UP]
    by_span = np.stack([counted.children[1:], members[1:], counted.taken[1:], counted.pairs], axis=1)
    farthest = by_span[span := int(np.flatnonzero(counted.spans)[-1])]
    counted.spans[span] = False
    nearer = np.where(counted.spans[:, None, None], by_span, NOWHERE)[:-1]
    measures = (np.array(float(degree)), counted.children[0], members[0], crossing, farthest[3])
    spacing = np.array(max(1.0, counted.gap * float(together)))
    loads = np.array(tail), spacing, exchanged, leaving
    lying = farthest[0], farthest[1], counted.taken[0], farthest[2]
    return GroupShape(*measures, *loads, *lying, np.array(entering), nearer)


@dataclass(frozen=True)
class RelaxedShape(GroupShape):
    """Bounds on the shape of an axis in place of the shape; ``collectives`` turns them into lower bounds on times.

    ``fanout`` is the ratio of the fewest children that some group touches; its products from the outermost level
    inwards are what counts. ``members`` is an upper bound. ``crossing`` and ``leaving`` are lower bounds for whichever
    level from l outwards a group crosses instead of l. ``known`` (...) marks axes inside a host, whose shape is exact.
    """

    known: Bools


def relaxed_shape(
    degree: Ints,
    stride: Ints,
    sizes: Floats,
    must_cross: Ints | None = None,
    least: Floats | None = None,
    host: int = 1,
    buildings: int = 2,
    ways: Ints | None = None,
) -> RelaxedShape:
    """Bounds that hold for any alignment of an axis with this degree and stride, for arrays of axes.

    At most ⌈size/stride⌉ ranks of a group fit in a child. Where the extent d·s of the axis exceeds a child, some group
    crosses. Where no group fits in a child, all groups with ranks in it cross a level from l outwards. Hence one of
    these levels is crossed by at least its share of them.

    Groups that leave a building, or cross one border, step to at most b − 1 others of b buildings: when a step moves
    on, both its ends do. Those that cross a border of a region, which may be on either side, step between at most 2·(b
    − 1) pairs of buildings. Where more is known of an allocation, groups that cross one border use fewer (``ways``).

    Args:
        sizes: largest child of each level in accelerators, (..., NUM_LEVELS + 1); sizes[..., 0] = 1, last the whole.
        must_cross: groups that cross one border of buildings and of regions in every allocation, (..., 2).
        least: least size of the fullest child of each level in any allocation, (..., NUM_LEVELS); 1 when unknown.
        host: every device list is cut at multiples of this only; extents that divide it lie inside a host.
        buildings: b.
        ways: most pairs of buildings that ``must_cross`` groups spread over, (...); b − 1 when unknown.
    """
    d, s = (np.asarray(value, dtype=np.float64)[..., None] for value in (degree, stride))
    fitting = np.minimum(d, np.maximum(1.0, np.ceil(sizes / s)))
    crosses = d * s > sizes
    if must_cross is not None:
        crosses[..., CAMPUS:NUM_LEVELS] |= must_cross > 0
    # a group that crosses a child keeps at most d − 1 ranks in it
    within = np.where(crosses, np.minimum(fitting, np.maximum(1.0, d - 1)), d)
    within = np.where(sizes < sizes[..., -1:], within, d)
    # a child holds no more ranks of a group than its parent
    within = np.minimum.accumulate(within[..., ::-1], axis=-1)[..., ::-1]
    touched = np.ceil(d / within)
    fanout = np.maximum(1.0, touched[..., :-1] / touched[..., 1:])
    members = np.minimum(within, np.floor(d / touched))[..., :-1]
    leaving, crossing, levels = np.ones_like(fanout), np.ones_like(fanout), np.arange(NUM_LEVELS, 0, -1)
    most = max(1, buildings - 1)
    if least is not None:
        in_one = np.where(fitting[..., :-1] < d, least / np.minimum(d, np.ceil(least / s)), 1.0)
        leaving = np.maximum(1.0, in_one / levels)
        crossing = np.maximum(
            1.0, in_one / (levels if most == 1 else np.where(levels > 1, levels - 2 + most, 2 * most))
        )
    if must_cross is not None:
        leaving[..., CAMPUS:] = np.maximum(leaving[..., CAMPUS:], must_cross)
        spread = most if ways is None else np.asarray(ways)[..., None]
        crossing[..., CAMPUS:] = np.maximum(crossing[..., CAMPUS:], np.ceil(must_cross / spread))
    pairs = np.maximum(0.0, touched[..., :-1] - touched[..., 1:])
    crosses_buildings = fanout[..., CAMPUS:].max(axis=-1) > 1
    behind = np.where(pairs[..., REGION] > 0, within[..., REGION], within[..., CAMPUS])
    tail = np.where(crosses_buildings, np.minimum(d[..., 0] - 1, behind), d[..., 0])
    spacing = np.maximum(1.0, d[..., 0] - 1)
    known = host % (d * s)[..., 0] == 0
    exchanged = np.where(fanout > 1, (d - 1) / d * leaving, 0.0)  # m·(d−m) ≥ d−1 for any m of d
    loads, taken = (tail, spacing, exchanged, leaving), (fanout - 1) / fanout
    farthest = fanout, members, taken, taken, np.zeros_like(tail), np.zeros((*tail.shape, 0, 4, NUM_LEVELS))
    return RelaxedShape(d[..., 0], fanout, members, crossing, pairs, *loads, *farthest, known)


def largest_children(levels: Levels) -> Floats:
    """``sizes`` for ``relaxed_shape``: largest child of each level in an allocation, and all, (NUM_LEVELS + 1,)."""
    sizes = [1.0]
    for cut in levels.cuts[1:]:
        sizes.append(float(np.diff(np.concatenate([cut, [levels.num_ranks]])).max()))
    return np.array([*sizes, float(levels.num_ranks)])
