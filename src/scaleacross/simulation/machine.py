"""Blocks, process groups and links of a placement, folded into classes, with the link loads of each class.

``simulate_step`` and ``table_step`` build a ``Machine``; everything after them reads it. One thing of each class is simulated
for all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from scaleacross.simulation import patterns
from scaleacross.simulation.fabric import (
    NUM_LEVELS,
    RACK,
    Fabric,
    Floats,
    Ints,
    Slowdown,
    block_width,
    build_fabric,
)
from scaleacross.simulation.first_classes import initial, relations, routes
from scaleacross.simulation.folding import Classes, mean_loads, refine, unfolded
from scaleacross.simulation.patterns import Groups, Pattern, PatternKey
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.placement import Placement, communicator_axes, strides
from scaleacross.spec.topology import Topology
from scaleacross.workloads.equal_copies import EVERY_COPY, EqualCopies

Load = list[tuple[int, float]]
WAITED: Final = ("tp", "cp", "cp_inner", "cp_outer", "ep")
"""Group shapes whose collectives every micro-batch's layers wait for."""


class Children(NamedTuple):
    """Children of one level that a group touches.

    Attributes:
        blocks: (children,) blocks of the group in each child.
        together: (children,) blocks of the group in the child's parent.
        siblings: (children,) children of that parent that the group touches, this one included.
    """

    blocks: Ints
    together: Ints
    siblings: Ints


@dataclass(frozen=True)
class Machine:
    """Blocks, groups and links of a placement, and their classes.

    Attributes:
        shapes: axis -> its groups (``expert``: shard groups of routed experts).
        patterns: (shape, kind) -> stream; "forward" and "backward" of shape "pp" are messages, one row per block.
        classes: classes of all *things*: blocks, then the groups of every shape, then links.
        offsets: number of the first thing of every shape, and of "links"; "blocks" is the number of blocks.
        following: (blocks,) block of the next pipeline rank; the first after the last.
        preceding: (blocks,) block of the previous pipeline rank.
    """

    fabric: Fabric
    shapes: Mapping[str, Groups]
    patterns: Mapping[PatternKey, Pattern]
    classes: Classes
    offsets: Mapping[str, int]
    following: Ints
    preceding: Ints
    _children: dict[tuple[str, int, int], Children] = field(default_factory=dict, compare=False)

    @cached_property
    def link_class(self) -> Ints:
        """(links,) class of each link, numbered from 0."""
        return np.unique(self.classes.of[self.offsets["links"] :], return_inverse=True)[1]

    @cached_property
    def capacities(self) -> Floats:
        """(link classes,) capacity of a link of each class, bytes/s."""
        return self.fabric.capacity[np.unique(self.link_class, return_index=True)[1]]

    @cached_property
    def block_classes(self) -> tuple[int, ...]:
        """Numbers of the classes of blocks."""
        return tuple(np.unique(self.classes.of[: self.fabric.num_blocks]).tolist())

    @cached_property
    def _class_sizes(self) -> Ints:
        return np.bincount(self.classes.of, minlength=len(self.classes.first))

    def first(self, thing: int) -> int:
        """Return the block that is simulated for a class of blocks."""
        return int(self.classes.first[thing])

    def num_ranks(self, block_class: int) -> int:
        """Return the number of ranks in a class of blocks."""
        return int(self._class_sizes[block_class]) * self.fabric.width

    def neighbour(self, block_class: int, forward: bool) -> int:
        """Return the class of the next (or previous) pipeline rank."""
        there = (self.following if forward else self.preceding)[self.first(block_class)]
        return int(self.classes.of[there])

    def group_of(self, shape: str, block_class: int) -> int:
        """Return the class of the group of ``shape`` that contains a class of blocks."""
        return int(self.classes.of[self.offsets[shape] + self._row_of_block[shape][self.first(block_class)]])

    @cached_property
    def _row_of_block(self) -> Mapping[str, Ints]:
        """Shape -> (blocks,) row of each block's groups."""
        out = {}
        for shape, groups in self.shapes.items():
            row = np.empty(self.fabric.num_blocks, dtype=np.int64)
            row[groups.members] = np.arange(len(groups.members))[:, None]
            out[shape] = row
        return out

    def row(self, shape: str, group_class: int) -> int:
        """Return the row of ``shape`` that is simulated for a class of its groups."""
        return int(self.classes.first[group_class]) - self.offsets[shape]

    def members(self, shape: str, group_class: int) -> list[int]:
        """Return the classes of the blocks in a group."""
        return [
            int(one) for one in np.unique(self.classes.of[self.shapes[shape].members[self.row(shape, group_class)]])
        ]

    def children(self, shape: str, row: int, level: int) -> Children:
        """Return the children of ``level`` that the group of ``row`` touches."""
        key = shape, row, level
        if key not in self._children:
            units = self.fabric.units[:, self.shapes[shape].members[row]]
            own, parents = units[level], units[level + 1] if level + 1 < NUM_LEVELS else np.zeros_like(units[level])
            count = int(own.max()) + 1
            child, blocks = np.unique(parents * count + own, return_counts=True)
            _, of, siblings = np.unique(child // count, return_inverse=True, return_counts=True)
            together = np.bincount(of, blocks)[of]
            self._children[key] = Children(blocks, together, siblings[of])
        return self._children[key]

    def load(self, key: PatternKey, thing: int) -> Load:
        """Return the loads on link classes of a class of groups (for messages: of sending blocks)."""
        return self._loads[key].get(thing, [])

    @cached_property
    def _loads(self) -> Mapping[PatternKey, dict[int, Load]]:
        sizes = np.bincount(self.link_class)
        out = {}
        for key, pattern in self.patterns.items():
            base = 0 if key[0] == "pp" else self.offsets[key[0]]
            rows = len(pattern.cap)
            row_class = self.classes.of[base : base + rows]
            out[key] = mean_loads(pattern.row, pattern.link, pattern.load, row_class, self.link_class, sizes)
        return out

    @cached_property
    def pairs_across(self) -> Mapping[PatternKey, dict[int, int]]:
        """Pattern -> inter-building link -> pairs of ranks that send across it while all groups of the pattern run."""
        out = {}
        for key, pattern in self.patterns.items():
            there = pattern.pairs > 0
            links, inverse = np.unique(pattern.link[there], return_inverse=True)
            counts = np.bincount(inverse, pattern.pairs[there], len(links))
            out[key] = {link: round(count) for link, count in zip(links.tolist(), counts.tolist(), strict=True)}
        return out

    @cached_property
    def link_loads(self) -> Mapping[PatternKey, Floats]:
        """Pattern -> (links,) bytes on every link when each group of the pattern progresses by one byte."""
        count = len(self.fabric.capacity)
        return {
            key: np.bincount(pattern.link, pattern.load, count).astype(np.float64)
            for key, pattern in self.patterns.items()
        }


def build_machine(
    topology: Topology,
    placement: Placement,
    degrees: Degrees,
    kinds: Mapping[str, Sequence[str]],
    block_facts: Floats | None = None,
    copies: EqualCopies = EVERY_COPY,
    max_blocks: int | None = None,
    slowdown: Slowdown | None = None,
    width: int | None = None,
    waited: Collection[str] = WAITED,
) -> Machine:
    """Build the machine of a placement.

    Args:
        kinds: shape -> kinds of streams that its collectives need: "ring", "pairwise", "levels".
        block_facts: (blocks, any) further facts by which blocks differ (micro-batches, speed).
        copies: copies of a token that an all-to-all of experts sends only once to a place.
        max_blocks: largest number of classes of blocks; None: nothing is folded.
        width: global ranks per block; None: as many as are equivalent.
        waited: group shapes that computation waits for in every micro-batch.
    """
    fabric = build_fabric(topology, placement, width or block_width(topology, placement, degrees), slowdown)
    axes = communicator_axes(degrees, placement.axis_order)
    shapes = {shape: patterns.groups_of(fabric, *axes[shape]) for shape in kinds}
    streams: dict[PatternKey, Pattern] = {}
    for shape, needed in kinds.items():
        port_rate = fabric.rates[0, fabric.building[shapes[shape].members[:, 0]]]
        for kind in needed:
            equal = copies if shape == "ep" else EVERY_COPY
            streams.update(_streams(fabric, shape, shapes[shape], kind, port_rate, equal))
    stride = strides(degrees, placement.axis_order)["pp"]
    global_ranks = np.arange(fabric.num_blocks) * fabric.width
    at = global_ranks // stride % degrees.pp
    # the last pipeline rank is followed by the first, as chunks of a looped schedule need it
    following, preceding = ((global_ranks + ((at + way) % degrees.pp - at) * stride) // fabric.width for way in (1, -1))
    if degrees.pp > 1:
        port_rate = fabric.rates[0, fabric.building]
        streams["pp", "forward"] = patterns.message(fabric, global_ranks // fabric.width, following, port_rate)
        streams["pp", "backward"] = patterns.message(fabric, global_ranks // fabric.width, preceding, port_rate)
    offsets, count = {"blocks": fabric.num_blocks}, fabric.num_blocks
    for shape, groups in shapes.items():
        offsets[shape], count = count, count + len(groups.members)
    offsets["links"] = count
    total = count + len(fabric.capacity)
    if max_blocks is None:
        classes = unfolded(total)
    else:
        held = [groups for shape, groups in shapes.items() if shape in waited]
        known = initial(fabric, shapes, streams, at, routes(fabric, held, at, following), block_facts)
        related = relations(shapes, streams, offsets, following if degrees.pp > 1 else None)
        classes = refine(known, related, fabric.num_blocks, max_blocks, offsets["links"])
    return Machine(fabric, shapes, streams, classes, offsets, following, preceding)


def _streams(
    fabric: Fabric, shape: str, groups: Groups, kind: str, port_rate: Floats, copies: EqualCopies
) -> dict[PatternKey, Pattern]:
    """Return the streams of one kind; kind levels has one per level crossed. ``port_rate``: (rows,) bytes/s."""
    if kind == "ring":
        return {(shape, "ring"): patterns.ring(fabric, groups, port_rate)}
    if kind == "pairwise":
        return {(shape, "pairwise"): patterns.pairwise(fabric, groups, port_rate, copies.distinct_share)}
    found = ((level, patterns.level_phase(fabric, groups, level)) for level in range(RACK, NUM_LEVELS))
    return {(shape, str(level)): pattern for level, pattern in found if len(pattern.row)}


def outer_levels(machine: Machine, shape: str, row: int) -> list[tuple[int, int]]:
    """Return (level, most children of one parent that the group of ``row`` touches), if several, outermost first."""
    out = []
    for level in range(NUM_LEVELS - 1, RACK - 1, -1):
        fanout = int(machine.children(shape, row, level).siblings.max())
        if fanout > 1:
            out.append((level, fanout))
    return out


def fewest_members(machine: Machine, shape: str, row: int, level: int) -> int:
    """Return the ranks of the group of ``row`` in the smallest child of ``level`` that has a sibling."""
    children = machine.children(shape, row, level)
    return int(children.blocks[children.siblings > 1].min()) * machine.shapes[shape].each


def taken_in(machine: Machine, shape: str, row: int, *, by_rank: bool) -> list[tuple[int, float]]:
    """Return (level, share of a tensor that a child receives) for ``outer_levels``, in their order.

    By default all children of a parent hold equal parts. With ``by_rank`` (gather, scatter) every rank holds an equal
    part; the child with the smallest part of its parent then receives most, and its share is returned.
    """
    levels = outer_levels(machine, shape, row)
    if not by_rank:
        return [(level, (fanout - 1) / fanout) for level, fanout in levels]
    every = [(level, machine.children(shape, row, level)) for level, _ in levels]
    return [(level, float(((one.together - one.blocks) / one.together).max())) for level, one in every]


def depth_latency_s(machine: Machine, shape: str, row: int, level: int) -> float:
    """Return the largest latency between neighbours in a group whose outermost level is ``level``, s, else NaN."""
    blocks = machine.shapes[shape].members[row]
    reached, _, latency = machine.fabric.hop(blocks, np.roll(blocks, -1))
    here = latency[reached == level]
    return float(here.max()) if len(here) else math.nan
