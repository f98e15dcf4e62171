"""Link loads of one phase of a collective: bytes on every link per byte of progress, and the fixed time of a ring.

``machine`` calls this module for every axis of a plan, ``table_step`` for the exchanges of embedding vectors.

A *stream* stands for all messages of one phase of a schedule of ``schedules.collective`` within one group. All ranks of
a phase advance together. The simulation therefore moves the phase as one flow: ``load`` bytes on a link for each byte
of progress, then a fixed time. Extra time of the schedule's steps on heterogeneous links is part of the fixed time
(``ring_fixed_s``, which tests compare with a step-by-step simulation). Phases:

* ring          all ranks in ascending order; it enters and leaves a domain once, over the nics of all its members of
                the group
* level phases  hierarchical: rings among counterparts of the children of one level, 1/m of a child's bytes per member
* pairwise      every rank to every other
* message       a pipeline rank to the next

Loads of a nic or port are those of one accelerator. Loads of shared links sum over all groups of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from scaleacross.simulation.fabric import CAMPUS, INSIDE, NUM_LEVELS, RACK, SCALE_UP, Fabric, Floats, Ints

PatternKey = tuple[str, str]
"""Shape of the group, and kind of stream: ring, pairwise, the number of a level, or (shape pp) forward and backward."""


class Groups(NamedTuple):
    """Process groups of an axis. One row stands for ``copies`` groups that use the same blocks.

    Attributes:
        members: (rows, k) blocks of each group, ascending.
        each: ranks of one group in one block.
        copies: groups per row; ``each · copies`` is the width of a block.
    """

    members: Ints
    each: int
    copies: int

    @property
    def degree(self) -> int:
        """Ranks of a group."""
        return int(self.members.shape[1]) * self.each


class Pattern(NamedTuple):
    """Sparse loads of a stream, one entry per (row, link).

    Attributes:
        row: (entries,) row of ``Groups.members``; of messages, the sending block.
        link: (entries,) number of the link.
        load: (entries,) bytes on the link per byte of progress.
        cap: (rows,) largest progress rate of a stream, bytes/s.
        pairs: (entries,) pairs of ranks of all copies of the row that send across the link; counted on inter-building
            links only.
    """

    row: Ints
    link: Ints
    load: Floats
    cap: Floats
    pairs: Floats


def groups_of(fabric: Fabric, degree: int, stride: int) -> Groups:
    """Return the groups of an axis: global ranks b + i·stride, i = 0 … degree − 1."""
    width, blocks = fabric.width, np.arange(fabric.num_blocks)
    if stride % width == 0:
        step, length, each = stride // width, degree, 1
    else:
        step, length, each = 1, degree * stride // width, width // stride
    grid = blocks.reshape(-1, length, step).transpose(0, 2, 1).reshape(-1, length)
    return Groups(grid, each, width // each)


class _Loads:
    """Accumulator of (row, link) loads, from which ``pattern`` builds the result."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.rows: list[Ints] = []
        self.links: list[Ints] = []
        self.loads: list[Floats] = []
        self.pairs: list[Floats] = []

    def add(self, row: Ints, link: Ints, load: Floats | float, pairs: Floats | float = 0.0) -> None:
        """Add loads on links; entries whose link is -1 are dropped."""
        there = link >= 0
        self.rows.append(row[there])
        self.links.append(link[there])
        for parts, values in ((self.loads, load), (self.pairs, pairs)):
            parts.append(np.broadcast_to(np.asarray(values, dtype=np.float64), link.shape)[there])

    def nics(self, row: Ints, source: Ints, target: Ints, load: Floats | float) -> None:
        self.add(row, self.fabric.nic(source, inward=False), load)
        self.add(row, self.fabric.nic(target, inward=True), load)

    def shared(self, row: Ints, source: Ints, target: Ints, level: Ints, load: Floats, pairs: Floats) -> None:
        """Add loads on the uplinks up to ``level`` (out of the source's units, into the target's) and on inter-building
        links.

        ``pairs`` of ranks cross the inter-building links.
        """
        fabric = self.fabric
        for inner in INSIDE:
            at = level >= inner
            for way, blocks in enumerate((source, target)):
                self.add(row[at], fabric.uplinks[way, inner, fabric.units[inner, blocks[at]]], load[at])
        crossing = np.flatnonzero(level >= CAMPUS)
        ends = np.stack([fabric.building[source[crossing]], fabric.building[target[crossing]]])
        for a, b in np.unique(ends, axis=1).T.tolist():
            here = crossing[(ends[0] == a) & (ends[1] == b)]
            for link in fabric.trunk_links[a, b][0]:
                self.add(row[here], np.full(len(here), link), load[here], pairs[here])

    def pattern(self, cap: Floats) -> Pattern:
        """Return all loads, summed over equal (row, link) pairs."""
        if not self.rows:
            return Pattern(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), cap, np.zeros(0))
        row, link = (np.concatenate(parts) for parts in (self.rows, self.links))
        places, inverse = np.unique(row * len(self.fabric.capacity) + link, return_inverse=True)
        load, pairs = (
            np.bincount(inverse, np.concatenate(parts), len(places)).astype(np.float64)
            for parts in (self.loads, self.pairs)
        )
        return Pattern(places // len(self.fabric.capacity), places % len(self.fabric.capacity), load, cap, pairs)


def in_unit(fabric: Fabric, groups: Groups, level: int) -> Ints:
    """Return (rows, k): ranks of the group in the same unit of ``level`` as each of its blocks."""
    if level == SCALE_UP:
        return np.full(groups.members.shape, groups.each)
    units = fabric.units[level, groups.members]
    # one key per (row, unit), so that equal units of different groups are counted apart
    key = np.arange(len(units))[:, None] * (int(units.max()) + 1) + units
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    here: Ints = counts[inverse.reshape(units.shape)] * groups.each
    return here


def ring(fabric: Fabric, groups: Groups, port_rate: Floats) -> Pattern:
    """Return the loads of one ring through all ranks. Progress is the bytes that each rank passes on.

    ``port_rate``: (rows,) rate inside a scale-up domain, bytes/s.
    """
    source = groups.members
    rows = np.broadcast_to(np.arange(len(source))[:, None], source.shape)
    inside = in_unit(fabric, groups, RACK)
    loads = _Loads(fabric)
    many = inside > 1
    loads.add(rows[many], fabric.port(source[many]), 1.0 / port_rate[rows[many]])
    cap = np.where(many.any(axis=1), port_rate, np.inf)
    if source.shape[1] > 1:
        row, start, end = rows.reshape(-1), source.reshape(-1), np.roll(source, -1, axis=1).reshape(-1)
        level, rate, _ = fabric.hop(start, end)
        leaves = level >= RACK
        # a ring leaves its domain over the nics of all its members there, each with an equal share
        share = 1.0 / inside
        crossing = np.zeros(len(source), dtype=bool)
        crossing[row[leaves]] = True
        here = crossing[rows]
        loads.nics(rows[here], source[here], source[here], share[here])
        row, start, end, level = (part[leaves] for part in (row, start, end, level))
        lanes = (inside.reshape(-1)[leaves] * groups.copies).astype(np.float64)
        loads.shared(row, start, end, level, np.full(len(row), float(groups.copies)), lanes)
        np.minimum.at(cap, row, rate[leaves] * inside.reshape(-1)[leaves])
    return loads.pattern(cap)


def level_phase(fabric: Fabric, groups: Groups, level: int) -> Pattern:
    """Return the loads of rings among the children of ``level`` (rack or wider). Progress: bytes leaving each child."""
    source = groups.members
    target, fanout = _counterparts(fabric, groups, level)
    moves = fanout > 1
    rows = np.broadcast_to(np.arange(len(source))[:, None], source.shape)
    inside = in_unit(fabric, groups, level)
    loads, cap = _Loads(fabric), np.full(len(source), np.inf)
    if moves.any():
        row, start, end = rows[moves], source[moves], target[moves]
        reached, rate, _ = fabric.hop(start, end)
        members = inside[moves]
        loads.nics(row, start, start, 1.0 / members)
        both = np.full(len(row), float(groups.copies * groups.each))
        loads.shared(row, start, end, reached, both / members, both)
        np.minimum.at(cap, row, rate * members)
    return loads.pattern(cap)


def _counterparts(fabric: Fabric, groups: Groups, level: int) -> tuple[Ints, Ints]:
    """Return two (rows, k) arrays: each block's counterpart in the next child of its parent, and that parent's number
    of children.

    Children are units of ``level``, parents units of the next wider level.
    """
    units = fabric.units[level, groups.members]
    parents = fabric.units[level + 1, groups.members] if level + 1 < NUM_LEVELS else np.zeros_like(units)
    # groups of equal shape relative to their first block share one solution
    shapes = np.stack([units - units[:, :1], parents - parents[:, :1]], axis=1)
    known: dict[bytes, int] = {}
    alike = np.array([known.setdefault(shape.tobytes(), len(known)) for shape in shapes])
    found = [_next_child(*shapes[row]) for row in np.unique(alike, return_index=True)[1]]
    index, fanout = (np.stack(parts)[alike] for parts in zip(*found, strict=True))
    return np.take_along_axis(groups.members, index, axis=1), fanout


def _next_child(units: Ints, parents: Ints) -> tuple[Ints, Ints]:
    """Return the index of each member's counterpart, and the number of its parent's children in the group."""
    index, fanout = np.arange(len(units)), np.ones(len(units), dtype=np.int64)
    for parent in np.unique(parents):
        children = np.unique(units[parents == parent])
        places = [np.flatnonzero((units == child) & (parents == parent)) for child in children]
        for number, here in enumerate(places):
            there = places[(number + 1) % len(places)]
            # a smaller next child serves several members with its last one
            index[here] = there[np.minimum(np.arange(len(here)), len(there) - 1)]
            fanout[here] = len(children)
    return index, fanout


def pairwise(fabric: Fabric, groups: Groups, port_rate: Floats, distinct: Callable[[Floats], Floats]) -> Pattern:
    """Return the loads of an all-to-all. Progress is the bytes that a rank addresses to the whole group, itself
    included.

    ``distinct``: (...) number of places that a token may be meant for -> share of its copies that go to distinct
    places.
    """
    source, degree = groups.members, groups.degree
    rows = np.broadcast_to(np.arange(len(source))[:, None], source.shape)
    loads, cap = _Loads(fabric), np.full(len(source), np.inf)
    many = in_unit(fabric, groups, RACK) > 1
    sent = (degree - 1) / degree * float(distinct(np.array(float(degree))))
    loads.add(rows[many], fabric.port(source[many]), sent / port_rate[rows[many]])
    np.minimum.at(cap, rows[many], port_rate[rows[many]] / sent)
    for level in range(RACK, NUM_LEVELS):
        inside = in_unit(fabric, groups, level)
        # bytes that leave this rank's unit; copies of a token for the same unit travel once
        out = (degree - inside) / degree * distinct(degree / inside)
        leaves = out > 0
        if not leaves.any():
            continue
        row, start, share = rows[leaves], source[leaves], out[leaves]
        if level == RACK:
            loads.nics(row, start, start, share)
        if level in INSIDE:
            whole = share * groups.each * groups.copies
            for way in range(2):
                loads.add(row, fabric.uplinks[way, level, fabric.units[level, start]], whole)
        rate = fabric.rates[min(level, INSIDE[-1]), fabric.building[start]]
        np.minimum.at(cap, row, rate / share)
    _between_buildings(fabric, groups, loads, distinct)
    return loads.pattern(cap)


def spread(
    fabric: Fabric, own: Ints, ratios: Mapping[int, float], backward: bool
) -> tuple[list[list[tuple[int, float]]], Floats, Floats]:
    """Return the loads of an all-to-all with one stream per rank, which sends evenly to the whole group, itself
    included.

    Progress is all bytes that the rank sends.

    Args:
        own: (ranks,) blocks of the group, one accelerator each.
        ratios: level -> compression ratio of bytes whose outermost level it is; 1 where it is missing.
        backward: the rank receives from all instead.

    Returns:
        (link, bytes per byte of progress) pairs of each rank; (ranks,) largest latency, s; (ranks,) compressed share of
        its bytes.
    """
    degree = len(own)
    row, target = np.repeat(np.arange(degree), degree), np.tile(own, degree)
    source = own[row]
    level, _, latency = fabric.hop(source, target)
    ratio = np.array([ratios.get(one, 1.0) for one in range(NUM_LEVELS)])[level]
    share = 1.0 / degree / ratio
    loads = _Loads(fabric)
    other = (source != target) * share
    port = np.bincount(row, other, degree) / fabric.rates[SCALE_UP, fabric.building[own]]
    loads.add(np.arange(degree), fabric.port(own), port)
    far = level >= RACK
    loads.add(row[far], fabric.nic(source[far], inward=backward), share[far])
    ends = (target[far], source[far]) if backward else (source[far], target[far])
    loads.shared(row[far], *ends, level[far], share[far], np.ones(int(far.sum())))
    found = loads.pattern(np.full(degree, np.inf))
    paths: list[list[tuple[int, float]]] = [[] for _ in range(degree)]
    for at, link, load in zip(found.row.tolist(), found.link.tolist(), found.load.tolist(), strict=True):
        paths[at].append((link, load))
    coded: Floats = np.bincount(row, (ratio > 1) / degree, degree).astype(np.float64)
    return paths, latency.reshape(degree, degree).max(axis=1), coded


def _between_buildings(fabric: Fabric, groups: Groups, loads: _Loads, distinct: Callable[[Floats], Floats]) -> None:
    """Add loads of an all-to-all between buildings: members here · members there / d of a rank's bytes per pair."""
    buildings, degree = fabric.building[groups.members], groups.degree
    per = [(buildings == index).sum(axis=1) * groups.each for index in range(len(fabric.buildings))]
    for (a, b), (path, _) in fabric.trunk_links.items():
        rows = np.flatnonzero((per[a] > 0) & (per[b] > 0))
        if not len(rows):
            continue
        pairs = per[a][rows] * per[b][rows] * groups.copies
        sent = pairs / degree * distinct(degree / per[a][rows])
        for link in path:
            loads.add(rows, np.full(len(rows), link), sent, pairs)


def message(fabric: Fabric, source: Ints, target: Ints, port_rate: Floats) -> Pattern:
    """Return the loads of a message from every block of ``source`` to its ``target``: one row per pair.

    Progress is the bytes of one rank's message.
    """
    rows = np.arange(len(source))
    level, rate, _ = fabric.hop(source, target)
    near = level == SCALE_UP
    loads = _Loads(fabric)
    loads.add(rows[near], fabric.port(source[near]), 1.0 / port_rate[near])
    far = ~near
    loads.nics(rows[far], source[far], target[far], 1.0)
    every = np.full(int(far.sum()), float(fabric.width))
    loads.shared(rows[far], source[far], target[far], level[far], every, every)
    return loads.pattern(np.where(near, port_rate, rate))


def ring_fixed_s(block_bytes: float, rate: Floats, latency: Floats) -> float:
    """Return the seconds of a ring of d hops beyond (d−1)·C, where C is the time of one block over the slowest hop.

    Hop j takes c_j = block / rate_j and then latency α_j. A block moves on once it has arrived and the block before it
    has left. The last block to arrive therefore waits C at the slowest hop, except on the steps that move it over other
    hops. Each of these steps adds α_j − (C − c_j). The result is the largest sum over walks of d−1 hops, and over
    shorter ones that contain the slowest hop.
    """
    cost = block_bytes / rate
    slowest = float(cost.max())
    gain = latency - (slowest - cost)
    # no hop shortens a walk, so the longest walk is the ring without its smallest gain
    if (gain >= 0).all():
        return float(gain.sum() - gain.min())
    # turned so that the first hop is a slowest one, equal up to rounding
    slow = cost >= slowest * (1 - 1e-12)
    first, last = int(np.argmax(slow)), len(gain) - 1
    gain, slow = np.roll(gain, -first), np.roll(slow, -first)
    sums = np.append(0.0, np.cumsum(gain))
    at = np.maximum.accumulate(np.where(slow, np.arange(len(gain)), 0))  # the last slowest hop up to each
    inside = (sums[1:-1] - np.minimum.accumulate(sums[:-1])[at[:-1]]).max()
    ending = sums[-1] - sums[1 : at[last] + 1].min(initial=np.inf)  # the walk of all hops is one too long
    # a walk over the turn has the first hop, and leaves out the least stretch of hops between
    over = sums[-1] - (sums[2:-1] - np.maximum.accumulate(sums[1:-2])).min(initial=np.inf)
    return float(max(inside, ending, over))
