"""How the groups of an axis lie over the link levels: the only thing that collectives need to know about a placement.

A group of an axis with degree d and stride s holds the positions b + j + i·s, i = 0…d−1.
For every level l (see ``levels``):

* fanout[l]   children of level l that one group touches inside one child of level l+1, the largest over all groups
              (≥ 1, real)
* members[l]  ranks of one group in one child of level l, the smallest over the groups that cross level l
* leaving[l]  groups that cross level l and have a rank in one child of it, the largest over children
* crossing[l] of these what one link carries: inside buildings all, as they share the child's uplink; beyond, those whose rings
              step from one building to the same other one, the most of any two, as each two have a trunk of their own
* pairs[l]    neighbour pairs (ranks i, i+1) of one group whose link is exactly level l, for the group that crosses
              farthest (most pairs on the outermost level)
* tail        ranks behind the last region boundary of a group (campus boundary where no group crosses regions), the
              smallest over groups that have one, else d
* exchanged[l] what an all-to-all of all groups puts on the fullest link of level l, over what one rank sends in all: with m
              of a group's ranks in a child Σ m·(d−m)/d over all groups; beyond buildings Σ m·m'/d over the groups and the pairs
              of buildings whose way a trunk is on, as if it were the thinnest of its level (``trunk_routes``)
* spacing     ranks between two consecutive such boundaries, the largest over groups (1 when there are not two)
* taken[l]    share of what a group gathers in a child of level l+1 that a child of level l in it takes in: (n−m)/n where m of
              the n ranks there are its own, the largest over children and groups; (f−1)/f where all are equal
* farthest_fanout[l], farthest_members[l], farthest_taken[l]   fanout, members and taken of those groups alone that cross the
              outermost level that any crosses; members where none of them crosses level l are all ranks that one has in a child
* entering    what gathers of all groups bring into a building with others in its region, over what one rank gathers in all:
              Σ (d−m)/d with m of a group's ranks in it, over all links that lead there, as if these were the thinnest one of
              campus level; of the building that takes longest (``trunk_routes``)

Two ways to get them: ``exact_shape`` counts on the device list; ``relaxed_shape`` bounds them in closed form, over
arrays, whatever the alignment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.columns import columns_of
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK, REGION, SCALE_UP, Levels


@dataclass(frozen=True)
class GroupShape:
    """Shape arrays (..., NUM_LEVELS) and degree, tail, spacing, entering (...), broadcastable against candidates."""

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

    @cached_property
    def farthest(self) -> GroupShape:
        """With fanout, members and taken of the groups that cross farthest alone. A collective is assumed to last as long as
        theirs: links farther out are slower."""
        return replace(self, fanout=self.farthest_fanout, members=self.farthest_members, taken=self.farthest_taken)

    @cached_property
    def span(self) -> Ints:
        """Outermost level that a group crosses, −1 when the group is a single rank. Shape (...)."""
        crossed = self.fanout > 1
        outermost = NUM_LEVELS - 1 - np.argmax(crossed[..., ::-1], axis=-1)
        return np.where(crossed.any(axis=-1), outermost, -1)

    def taken_in(self, *, by_rank: bool) -> Floats:
        """Share of a tensor that a child of each level takes in, (..., NUM_LEVELS): (f−1)/f, its children's parts being equal.

        ``by_rank``: parts belong to ranks (gather, scatter); then the child with the smallest share of its parent's ranks takes
        in ``taken``, which is more where children are unequal. A child's own parts and all that it takes in, level by level
        outwards, are the whole: 1 − m/d, of m of d ranks, is (n−m)/n of its parent and m/n of what that takes in.
        """
        equal = (self.fanout - 1) / self.fanout
        return np.where(self.fanout > 1, self.taken, 0.0) if by_rank else equal

    def take(self, row: int | Ints) -> GroupShape:
        """One of several rows, or some of them."""
        return type(self)(*(column[row] for column in columns_of(self)))


def stacked_shapes(shapes: Sequence[GroupShape]) -> GroupShape:
    """One row per shape."""
    return GroupShape(*map(np.array, zip(*map(columns_of, shapes), strict=True)))


def exact_shape(degree: int, stride: int, levels: Levels) -> GroupShape:
    """Shape of the groups of an axis, counted on the device list of ``levels``.

    Groups that start in the same aligned unit lie alike, so one of them is counted for all; neighbouring ranks that share
    an aligned unit are counted as one. Cost: O(positions / unit · levels) of machine code.

    Raises:
        ValueError: the axis does not tile the device list.
    """
    from scaleacross.cost_models.group_loop import count  # late: it brings the compiler

    extent = degree * stride
    if levels.num_positions % extent:
        raise ValueError(f"degree {degree} with stride {stride} does not tile {levels.num_positions} positions")
    unit = math.gcd(stride, levels.alignment)
    together = math.gcd(extent, levels.alignment) // stride if unit == stride else 1
    together = together if together * stride in (extent, levels.alignment) else 1
    alike = together == degree  # each group in one unit: the first is counted for all
    child = levels.children(levels.num_positions if alike else unit * together)
    counted = count(child, degree // together, stride // unit)
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
    counted.pairs[SCALE_UP] += (together - 1) * (degree // together)
    tail = degree - (1 + counted.boundary) * float(together)
    counted.taken[:, SCALE_UP] = (counted.children[:, SCALE_UP] - 1) / counted.children[:, SCALE_UP]
    (fanout, members, taken), farthest = zip(counted.children, members, counted.taken, strict=True)
    measures = (np.array(float(degree)), fanout, members, crossing, counted.pairs)
    spacing = np.array(max(1.0, counted.gap * float(together)))
    return GroupShape(
        *measures, np.array(tail), spacing, exchanged, leaving, *farthest[:2], taken, farthest[2], np.array(entering)
    )


def busiest_ways(building: Ints, region: Ints, kind: Ints | int = 0, kinds: int = 1) -> Floats:
    """Most rings that step from one building to the same other one in its region, and in another, (2, kinds).

    Args:
        building, region: of every rank of every group, (groups, ranks).
        kind: of every group, (groups,), below ``kinds``; of each by itself.
    """
    low, out = int(building.min()), np.zeros((2, kinds))
    width = int(building.max()) - low + 1
    there, beyond = np.roll(building, -1, axis=1), region != np.roll(region, -1, axis=1)
    way = (np.reshape(kind, (-1, 1)) * width + building - low) * width + there - low
    for level, steps in enumerate(((building != there) & ~beyond, beyond)):
        counts = np.bincount(way[steps], minlength=kinds * width * width)
        out[level] = counts.reshape(kinds, -1).max(axis=1)
    return out


@dataclass(frozen=True)
class RelaxedShape(GroupShape):
    """Bounds on the shape of an axis instead of its shape; ``collectives`` makes lower bounds of times from them.

    ``fanout`` is the ratio of the children that some group touches at least (its products from outside are what
    counts), ``members`` an upper bound, ``crossing`` and ``leaving`` lower bounds for whichever level from l outwards a group
    crosses instead of l. ``known`` (...) marks axes inside a host, whose shape is exact.
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

    At most ⌈size/stride⌉ ranks of a group fit in a child; where the axis' whole extent d·s exceeds a child, some group
    crosses. Where no group fits in a child, all that have ranks in one cross a level from l outwards, hence one of
    these levels is crossed by at least its share of them.

    Groups that leave a building, or cross one border, step to at most b − 1 others of b buildings: as the step moves on, so do
    both its ends. Those that cross a border of a region, which may be on either side, take 2·(b − 1) ways at most. Where more is
    known of a fill, those that cross one border take fewer (``ways``).

    Args:
        sizes: largest child of each level in accelerators, (..., NUM_LEVELS + 1); sizes[..., 0] = 1, last the whole.
        must_cross: groups that are known to cross one border of buildings and of regions whatever the fill, (..., 2).
        least: size that the fullest child of each level has at least in any fill, (..., NUM_LEVELS); 1 when unknown.
        host: every device list is cut at multiples of this only; extents that divide it lie inside a host.
        buildings: b.
        ways: between two buildings that ``must_cross`` groups spread over at most, (...); b − 1 when unknown.
    """
    d, s = (np.asarray(value, dtype=np.float64)[..., None] for value in (degree, stride))
    fitting = np.minimum(d, np.maximum(1.0, np.ceil(sizes / s)))
    crosses = d * s > sizes
    if must_cross is not None:
        crosses[..., CAMPUS:NUM_LEVELS] |= must_cross > 0
    within = np.where(crosses, np.minimum(fitting, np.maximum(1.0, d - 1)), d)
    within = np.where(sizes < sizes[..., -1:], within, d)
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
    far = fanout[..., CAMPUS:].max(axis=-1) > 1
    behind = np.where(pairs[..., REGION] > 0, within[..., REGION], within[..., CAMPUS])
    tail = np.where(far, np.minimum(d[..., 0] - 1, behind), d[..., 0])
    spacing = np.maximum(1.0, d[..., 0] - 1)
    known = host % (d * s)[..., 0] == 0
    exchanged = np.where(fanout > 1, (d - 1) / d * leaving, 0.0)  # m·(d−m) ≥ d−1 for any m of d
    loads, taken = (tail, spacing, exchanged, leaving), (fanout - 1) / fanout
    farthest = fanout, members, taken, taken, np.zeros_like(tail)
    return RelaxedShape(d[..., 0], fanout, members, crossing, pairs, *loads, *farthest, known)


def largest_children(levels: Levels) -> Floats:
    """``sizes`` for ``relaxed_shape``: largest child of each level in a fill, and the whole, (NUM_LEVELS + 1,)."""
    sizes = [1.0]
    for cut in levels.cuts[1:]:
        sizes.append(float(np.diff(np.concatenate([cut, [levels.num_positions]])).max()))
    return np.array([*sizes, float(levels.num_positions)])
