"""The count of ``groups.exact_shape`` as a compiled loop over groups and their ranks."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK, REGION, SCALE_UP
from scaleacross.machine_code import compiled

NEVER: Final = 1 << 62
"""Initial value of minima: more ranks than any group has."""


class Counted(NamedTuple):
    """Counts over the groups of an axis; ranks that share an aligned unit count as one.

    Attributes:
        children: most children of a level in one child of the next level, over all groups (row 0) and over those whose
            outermost crossed level is s (row 1 + s), (1 + NUM_LEVELS, NUM_LEVELS).
        fewest: fewest ranks in one child over the groups that cross the level (of all where none does); as
            ``children``.
        taken: largest share of a group's ranks in a child of the next level that one child in it does not hold; rows
            and shape as ``children``.
        leaving: most groups that cross a level with a rank in one child, (NUM_LEVELS,).
        sent: largest Σ m·(ranks − m) over the groups of one child, m ranks of a group in it, (NUM_LEVELS,).
        pairs: neighbours whose link is of a level, of the group with most of them farthest out; a row for every s,
            (NUM_LEVELS, NUM_LEVELS).
        spans: whether some group's outermost crossed level is s, (NUM_LEVELS,).
        ways: most rings from one building to the same other one, inside its region and beyond, (2,).
        between: Σ m·m' over the groups for every two buildings, (buildings, buildings).
        entering: Σ (ranks − m)/ranks over the groups with a rank in a building, (buildings,).
        boundary: last rank before a region boundary, or a building's where no group crosses regions; −1 if none.
        gap: most ranks between two such boundaries in one group.
    """

    children: Floats
    fewest: Ints
    taken: Floats
    leaving: Floats
    sent: Floats
    pairs: Floats
    spans: Bools
    ways: Floats
    between: Floats
    entering: Floats
    boundary: int
    gap: int


def count(child: Ints, ranks: int, offsets: int, buildings: int) -> Counted:
    """Count all groups of an axis.

    Args:
        child: child of every level from rack outwards that holds each global rank, (NUM_LEVELS − 1, positions).
        ranks: ranks of a group.
        offsets: distance between two consecutive ranks of a group.
        buildings: more than the number of any building.
    """
    num_children = int(child[0, -1]) + 1  # finest children, numbered in order
    kinds = 1 + NUM_LEVELS, NUM_LEVELS
    most, fewest = np.ones(kinds), np.full((2, *kinds), NEVER)  # fewest: of all, of those that cross
    taken, entering = np.zeros(kinds), np.zeros(buildings)
    leaving, sent = np.zeros((2, NUM_LEVELS, num_children))
    ways, members, between = np.zeros((2, buildings, buildings)), np.zeros(buildings), np.zeros((buildings, buildings))
    pairs, step = np.zeros(kinds), np.full(ranks, NUM_LEVELS)  # the end of a group ends every stretch
    found = most, fewest, taken, leaving, sent, pairs, ways, members, between, entering
    boundary, gap = _play(child, offsets, step, *found)
    crossed = np.where(fewest[1] < NEVER, fewest[1], fewest[0])
    busiest, spans = (leaving.max(axis=1), sent.max(axis=1)), fewest[0, 1:, RACK] < NEVER
    beyond = ways.max(axis=(1, 2)), between, entering
    return Counted(most, crossed, taken, *busiest, pairs[:-1], spans, *beyond, boundary, gap)


@compiled
def _play(
    child: Ints,
    offsets: int,
    step: Ints,
    most: Floats,
    fewest: Ints,
    taken: Floats,
    leaving: Floats,
    sent: Floats,
    pairs: Floats,
    ways: Floats,
    members: Floats,
    between: Floats,
    entering: Floats,
) -> tuple[int, int]:
    """Fill the tables of ``Counted`` and return its ``boundary`` and ``gap``.

    Row s of ``pairs`` has the farthest group so far whose outermost crossed level is s; the last row the current group.
    """
    ranks, groups = len(step), child.shape[1] // len(step)
    outermost, boundary, gap = -1, -1, 0
    for group in range(groups if ranks > 1 else 0):
        start = group // offsets * offsets * ranks + group % offsets
        # the first and the last rank of a group are farthest apart, so this finds the outermost level of all groups
        outermost = max(outermost, _step(child, start, start + (ranks - 1) * offsets))
    for group in range(groups):
        start, before, span = group // offsets * offsets * ranks + group % offsets, -1, SCALE_UP
        alike = group > 0
        for rank in range(ranks - 1):
            level = _step(child, start + rank * offsets, start + (rank + 1) * offsets)
            alike = alike and level == step[rank]
            step[rank] = level
        if not alike:
            for level in range(NUM_LEVELS):
                pairs[-1, level] = 0.0
            for rank in range(ranks - 1):
                pairs[-1, step[rank]] += 1.0
                span = max(span, step[rank])
                if step[rank] >= max(CAMPUS, outermost):
                    gap = max(gap, rank - before) if before >= 0 else gap
                    boundary, before = max(boundary, rank), rank
            _keep_farther(pairs, span)
        # how far a group crosses is only known after all of its steps
        for level in range(RACK, NUM_LEVELS):
            crosses = pairs[-1, level] > 0
            _load(child, start, offsets, step, level, crosses, leaving, sent)
            if not alike:  # extremes are those of the group before
                _stretches(step, level, crosses, span, most, fewest, taken)
        if outermost >= CAMPUS:
            _buildings(child, start, offsets, step, ways, members, between, entering)
    return boundary, gap


@compiled
def _step(child: Ints, here: int, there: int) -> int:
    """Outermost level on which two global ranks are in different children; 0 inside one scale-up domain."""
    level = SCALE_UP
    # a child of one level lies in one child of the next, so ranks that share it share all farther out
    while level < REGION and child[level, here] != child[level, there]:
        level += 1
    return level


@compiled
def _keep_farther(pairs: Floats, span: int) -> None:
    """Keep the current group's pairs if it has more on the outermost level where its row and that of ``span`` differ."""
    level = NUM_LEVELS - 1
    while level > SCALE_UP and pairs[span, level] == pairs[-1, level]:
        level -= 1
    if pairs[-1, level] > pairs[span, level]:
        for each in range(NUM_LEVELS):
            pairs[span, each] = pairs[-1, each]


@compiled
def _load(
    child: Ints, start: int, offsets: int, step: Ints, level: int, crosses: bool, leaving: Floats, sent: Floats
) -> None:
    """Add the ranks of one group to the children of ``level`` that they lie in."""
    begins, ranks = 0, len(step)
    for rank in range(ranks):
        if step[rank] < level:
            continue
        inside, at = rank + 1 - begins, child[level - 1, start + begins * offsets]
        sent[level, at] += inside * (ranks - inside)
        leaving[level, at] += crosses
        begins = rank + 1


@compiled
def _stretches(step: Ints, level: int, crosses: bool, span: int, most: Floats, fewest: Ints, taken: Floats) -> None:
    """Find the extremes of the stretches of one group's ranks, each of which lies in one child of ``level``."""
    begins, children = 0, 1
    parent, smallest = 0, NEVER
    for rank in range(len(step)):
        if step[rank] < level:
            continue
        inside = rank + 1 - begins
        for kind in (0, 1 + span):
            if level == RACK:
                most[kind, SCALE_UP] = max(most[kind, SCALE_UP], inside)
            most[kind, level] = max(most[kind, level], children)
            fewest[0, kind, level] = min(fewest[0, kind, level], inside)
            if crosses:
                fewest[1, kind, level] = min(fewest[1, kind, level], inside)
        smallest = min(smallest, inside)
        if step[rank] > level:
            if children > 1:
                share = (rank + 1 - parent - smallest) / (rank + 1 - parent)
                for kind in (0, 1 + span):
                    taken[kind, level] = max(taken[kind, level], share)
            parent, smallest = rank + 1, NEVER
        begins, children = rank + 1, children + 1 if step[rank] == level else 1


@compiled
def _buildings(
    child: Ints,
    start: int,
    offsets: int,
    step: Ints,
    ways: Floats,
    members: Floats,
    between: Floats,
    entering: Floats,
) -> None:
    """Count the traffic between buildings of one group's ring, all-to-all and gather."""
    for building in range(len(members)):
        members[building] = 0.0
    begins, ranks, last = 0, len(step), start + (len(step) - 1) * offsets
    for rank in range(ranks):
        if step[rank] < CAMPUS:
            continue
        one = child[CAMPUS - 1, start + rank * offsets]
        members[one] += rank + 1 - begins
        begins = rank + 1
        there, crossed = start + begins * offsets, step[rank]
        if begins == ranks:  # the ring closes
            there, crossed = start, _step(child, last, start)
        if crossed >= CAMPUS:
            ways[int(crossed == REGION), one, child[CAMPUS - 1, there]] += 1
    for building in range(len(members)):
        entering[building] += (ranks - members[building]) / ranks if members[building] > 0 else 0.0
        for peer in range(len(members)):
            between[building, peer] += members[building] * members[peer]
