"""Collectives as flows: ``Calls`` returns the segments of a collective, one per phase of its algorithm.

``lowering`` and ``table_step`` call it. Algorithms have the names that a plan gives them: ring, tree, hierarchical,
pairwise, measured. Symbols: d ranks, S bytes; f children, latency α and overhead o of a message at a level.

* ring          (d−1)/d · S of progress and ``ring_fixed_s``; twice for an all-reduce
* hierarchical  per level (f−1)/f · S and (f−1)·α, outermost first in a gather, innermost first in a scatter; inside a domain the
                measured time of the f ranks there; every further chunk adds (f−1)·o for its messages
* tree          2·S along the ring's links, pipelined, and 2·Σ⌈log2 f⌉·α
* pairwise      the bytes that every rank sends, and one latency
* measured      the curve of the scale-up technology

Ring, tree and pairwise take at least the time of NCCL's protocols (``library``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from scaleacross.simulation import patterns
from scaleacross.simulation.coding import level_codec_s, ring_codec_s, shortened_links
from scaleacross.simulation.connections import Way
from scaleacross.simulation.curves import measured_s
from scaleacross.simulation.fabric import CAMPUS, RACK, SCALE_UP
from scaleacross.simulation.library import handshakes_s, library_of
from scaleacross.simulation.loads import Loads
from scaleacross.simulation.machine import (
    Machine,
    depth_latency_s,
    fewest_members,
    outer_levels,
    taken_in,
)
from scaleacross.simulation.rings import Rings, haul
from scaleacross.simulation.segments import ALONE, CrossingMessages, Segment, in_a_row, piped
from scaleacross.spec.network import CurveOp
from scaleacross.spec.network_choice import num_pieces
from scaleacross.step.setting import Op
from scaleacross.workloads.equal_copies import EVERY_COPY, EqualCopies


@dataclass
class Calls:
    """Segments of collectives and messages, each computed once and kept.

    Attributes:
        launch_s: time to start a collective, s.
        copies: copies of a token that an all-to-all of experts sends only once to a place.
        seed: draws the links onto which flows are hashed; None: mean over draws.
    """

    machine: Machine
    launch_s: float
    copies: EqualCopies = EVERY_COPY
    seed: int | None = None
    _known: dict[object, tuple[Segment, ...]] = field(default_factory=dict)

    @cached_property
    def loads(self) -> Loads:
        """Link loads of groups and messages."""
        return Loads(self.machine, self.seed)

    @cached_property
    def rings(self) -> Rings:
        """Rates and latencies of the hops of rings."""
        return Rings(self.machine, self.loads)

    def of(
        self, shape: str, group: int, ops: tuple[Op, ...], ways: tuple[Way, ...], size_bytes: float
    ) -> tuple[Segment, ...]:
        """Return the segments of consecutive calls in groups of class ``group``; neighbours on one link are merged."""
        key = (shape, group, ops, ways, size_bytes)
        if key not in self._known:
            out: list[Segment] = []
            for op, way in zip(ops, ways, strict=True):
                for segment in self._segments(shape, group, op, way, size_bytes):
                    joined = in_a_row(out[-1], segment) if out else None
                    out = [*out[:-1], joined] if joined else [*out, segment]
            self._known[key] = tuple(out)
        return self._known[key]

    def message(self, block_class: int, forward: bool, way: Way, size_bytes: float) -> Segment:
        """Return the segment of a message to the next (or previous) pipeline rank."""
        key = (block_class, forward, way, size_bytes)
        if key not in self._known:
            self._known[key] = (self._message(*key),)
        return self._known[key][0]

    def _message(self, block_class: int, forward: bool, way: Way, size_bytes: float) -> Segment:
        machine, direction = self.machine, "forward" if forward else "backward"
        source = machine.first(block_class)
        target = int((machine.following if forward else machine.preceding)[source])
        levels, rates, latencies = machine.fabric.hop(np.array([source]), np.array([target]))
        level, latency = int(levels[0]), float(latencies[0])
        reached = way.rate(level, latency, float(rates[0]), haul(machine.fabric, source, target, level))
        cap = min(float(machine.patterns["pp", direction].cap[source]), reached)
        return Segment(size_bytes, tuple(self.loads.of(("pp", direction), block_class, way)), cap, latency)

    def _segments(self, shape: str, group: int, op: Op, way: Way, size: float) -> Iterator[Segment]:
        """Yield the segments of one collective; none for one rank or no bytes."""
        algorithm = way.algorithm
        degree = self.machine.shapes[shape].degree
        if degree <= 1 or size <= 0:
            return
        if algorithm == "measured":
            yield self._inside(shape, group, op, degree, size, self.launch_s + way.drive.start_s, way)
        elif algorithm == "pairwise":
            yield self._pairwise(shape, group, way, size)
        elif algorithm == "hierarchical":
            levels = list(self._levels(shape, group, op, way, size))
            phases = [*levels, *self._codec(shape, group, op, way, size)]
            if (pieces := num_pieces(size, way.num_chunks, way.chunk_bytes)) > 1:
                crossing = self._crossing_messages(shape, group, way, levels) if op == "all_reduce" else ALONE
                phases = [piped(phases, pieces, crossing, self._messages_s(shape, group, op, way))]
            # seconds missing up to the least time of the library's protocols are added to the first phase
            least_s = self._over_nodes_alone_s(shape, group, op, way, size, levels[0].cap_bytes_per_s)
            early_s = max(0.0, least_s - sum(phase.fixed_s + phase.moving_s for phase in phases))
            yield phases[0]._replace(fixed_s=phases[0].fixed_s + early_s)
            yield from phases[1:]
        else:
            yield self._ring(shape, group, op, way, size)

    def _over_nodes_alone_s(self, shape: str, group: int, op: Op, way: Way, size: float, rate: float) -> float:
        """Return the least seconds of a hierarchical collective with one phase over nodes, which is a ring; else 0."""
        row = self.machine.row(shape, group)
        library = library_of(self.machine, shape, row, way)
        if not library or sum(f > 1 for _, f in self._levels_of(shape, row)) > 1:
            return 0.0
        return library.ring_s(_curve_of(op), size, rate)

    def _codec(self, shape: str, group: int, op: Op, way: Way, size: float) -> Iterator[Segment]:
        """Yield a segment without links for a rank's encoding and decoding, if there is any."""
        row, passes = self.machine.row(shape, group), 2 if op == "all_reduce" else 1
        shares = taken_in(self.machine, shape, row, by_rank=op != "all_reduce")
        seconds = passes * level_codec_s(self.machine, shape, row, way.coding, size, shares)
        if seconds > 0:
            yield Segment(size, (), size / seconds, 0.0)

    def _inside(
        self, shape: str, group: int, op: Op, num_ranks: int, size: float, launch_s: float, way: Way
    ) -> Segment:
        """Return the segment within one scale-up domain: a load on the port.

        It lasts as long as the measured curve says, or without a curve by bandwidth and latency. Drivers other than
        kernels take the longer of both.
        """
        machine, block = self.machine, self._block(shape, group)
        link = machine.fabric.buildings[int(machine.fabric.building[block])].links.scale_up
        moved = (
            size * float(self.copies.distinct_share(float(num_ranks))) if op == "all_to_all" and shape == "ep" else size
        )
        seconds, fixed = measured_s(link.technology, _curve_of(op), num_ranks, moved), 0.0
        if seconds is None or not way.drive.by_kernels:
            turns = 2 if op == "all_reduce" else 1
            steps = 1 if op == "all_to_all" else turns * _steps(num_ranks, SCALE_UP in way.halving)
            rate = way.drive.inside_bytes_per_s(float(machine.fabric.rates[SCALE_UP, machine.fabric.building[block]]))
            moving = turns * (num_ranks - 1) / num_ranks * moved / rate
            fixed = steps * link.one_way_latency_s + launch_s
            seconds = moving if seconds is None else max(moving, seconds - fixed)
        port = int(machine.link_class[machine.fabric.port(np.array([block]))[0]])
        return Segment(size, ((port, seconds / size),), size / seconds, fixed)

    def _pairwise(self, shape: str, group: int, way: Way, size: float) -> Segment:
        """Return the segment of an all-to-all; latency and connections are those of its first and last block."""
        machine, row, key = self.machine, self.machine.row(shape, group), (shape, "pairwise")
        blocks = machine.shapes[shape].members[row]
        cap = min(float(machine.patterns[key].cap[row]), self._peers_rate(shape, row, way))
        latency = max(float(machine.fabric.hop(np.full(len(blocks), one), blocks)[2].max()) for one in blocks[[0, -1]])
        load = tuple(self.loads.of(key, group, way))
        fixed = self.launch_s + way.drive.start_s + latency
        ours = shape == "ep" and self.copies.number  # a dispatcher of its own sends a token once to every place
        return Segment(size, load, cap, fixed if ours else max(fixed, handshakes_s(machine, shape, row)))

    def _peers_rate(self, shape: str, row: int, way: Way) -> float:
        """Return the rate at which connections limit an all-to-all, bytes/s: one per peer for 1/d of the bytes."""
        groups, fabric = self.machine.shapes[shape], self.machine.fabric
        if not way.connections:
            return math.inf
        out = math.inf
        for one in groups.members[row][[0, -1]].tolist():
            level, rate, latency = fabric.hop(np.full(groups.members.shape[1], one), groups.members[row])
            for target, reached, line, seconds in zip(groups.members[row], level, rate, latency, strict=True):
                if reached >= RACK:
                    packets = haul(fabric, one, int(target), int(reached))
                    out = min(out, groups.degree * way.rate(int(reached), float(seconds), float(line), packets))
        return out

    def _ring(self, shape: str, group: int, op: Op, way: Way, size: float) -> Segment:
        """Return the segment of a ring, or of a tree over the links of the ring."""
        machine, row = self.machine, self.machine.row(shape, group)
        degree = machine.shapes[shape].degree
        load, cap = tuple(self.loads.of((shape, "ring"), group, way)), float(machine.patterns[shape, "ring"].cap[row])
        connected, codec_s = float(self.rings.connected(shape, row, way).min()), 0.0
        cap = min(cap, connected)
        if not way.drive.by_kernels and self._in_domain(shape, row) > 1:
            cap = min(cap, way.drive.inside_bytes_per_s(float(machine.fabric.rates[SCALE_UP].min())))
        if way.coding.levels:
            short, codec_s = (
                shortened_links(machine, shape, row, way.coding),
                ring_codec_s(machine, shape, row, way.coding),
            )
            # ``connected`` includes the ratio already; the cap of the plain pattern would ignore it
            cap, load = connected, tuple((link, w / way.coding.ratio if link in short else w) for link, w in load)
        if way.algorithm == "tree":
            levels = [(level, f) for level, f in self._levels_of(shape, row) if f > 1]
            latency = sum(math.ceil(math.log2(f)) * self._latency_s(shape, row, level) for level, f in levels)
            library, fixed = library_of(machine, shape, row, way), self.launch_s + 2 * latency
            moved = (library.share if library else 2.0) * size
            if library:
                fixed = max(fixed, library.tree_s(size, cap) - moved / cap)
            return Segment(moved, load, cap, fixed)
        turns = 2 if op == "all_reduce" else 1
        rate, latencies = self.rings.hops(shape, row, way)
        fixed = patterns.ring_fixed_s(size / degree, rate, latencies)
        moved = turns * (degree - 1) / degree * size
        fixed = self.launch_s + way.drive.start_s + turns * fixed + moved * codec_s
        if library := library_of(machine, shape, row, way):
            fixed = max(fixed, library.ring_s(_curve_of(op), size, cap) - moved / cap)
        return Segment(moved, load, cap, fixed)

    def _levels(self, shape: str, group: int, op: Op, way: Way, size: float) -> Iterator[Segment]:
        """Yield the phases of a hierarchical collective; an all-reduce scatters, then gathers."""
        row = self.machine.row(shape, group)
        phases = list(self._gather_phases(shape, group, row, op, way, size))
        if op != "all_gather":
            yield from (phase for phase in phases[::-1])
        if op == "all_gather" or op == "all_reduce":
            yield from phases

    def _gather_phases(self, shape: str, group: int, row: int, op: Op, way: Way, size: float) -> Iterator[Segment]:
        """Yield the phases of a gather, outermost level first; a scatter runs them in reverse."""
        machine, start = self.machine, self.launch_s + way.drive.start_s
        shares = taken_in(machine, shape, row, by_rank=op != "all_reduce")
        for (level, fanout), (_, share) in zip(outer_levels(machine, shape, row), shares, strict=True):
            phase = self._phase(shape, group, row, way, level, fanout)
            yield phase._replace(amount=share * size, fixed_s=start + phase.fixed_s)
            start = 0.0  # only the first phase pays for the start of the collective
        inside = self._in_domain(shape, row)
        if inside > 1:
            yield self._inside(shape, group, "all_gather" if op == "all_reduce" else op, inside, size, start, way)

    def _phase(self, shape: str, group: int, row: int, way: Way, level: int, fanout: int) -> Segment:
        """Return the phase of one level with amount 0: everything that does not depend on the number of bytes."""
        known = "phase", shape, group, way, level
        if known not in self._known:
            machine, key, latency = self.machine, (shape, str(level)), self._latency_s(shape, row, level)
            members = fewest_members(machine, shape, row, level)
            cap = min(float(machine.patterns[key].cap[row]), members * self._slowest(shape, row, level, latency, way))
            ratio, fixed = way.coding.ratio_on(level), _steps(fanout, level in way.halving) * latency
            load = tuple((link, weight / ratio) for link, weight in self.loads.of(key, group, way))
            self._known[known] = (Segment(0.0, load, cap * ratio, fixed, self.loads.crowd(key, row, way, ratio)),)
        return self._known[known][0]

    def _crossing_messages(self, shape: str, group: int, way: Way, levels: Sequence[Segment]) -> CrossingMessages:
        """Return an all-reduce's messages across its outermost level; ``ALONE`` where it has one level only.

        The phase of the outermost level stands in the middle of ``levels``.
        """
        row = self.machine.row(shape, group)
        outer = outer_levels(self.machine, shape, row)
        if len(levels) <= 2 or not outer:
            return ALONE
        (level, fanout), middle = outer[0], levels[len(levels) // 2]
        steps = _steps(fanout, level in way.halving)
        return CrossingMessages(2 * steps, self._latency_s(shape, row, level), middle.moving_s / steps)

    def _messages_s(self, shape: str, group: int, op: Op, way: Way) -> float:
        """Return the overhead of one chunk's messages, s."""
        machine, row = self.machine, self.machine.row(shape, group)
        overhead = machine.fabric.overhead[:, machine.fabric.building[machine.shapes[shape].members[row]]].max(axis=1)
        outer = outer_levels(machine, shape, row)
        each = sum(_steps(fanout, level in way.halving) * float(overhead[level]) for level, fanout in outer)
        return (2 if op == "all_reduce" else 1) * each

    def _slowest(self, shape: str, row: int, level: int, latency: float, way: Way) -> float:
        """Return the rate limit of one rank's connections across ``level``, bytes/s; the slowest between buildings."""
        if way.at(level) is None:
            return math.inf
        fabric, blocks = self.machine.fabric, self.machine.shapes[shape].members[row]
        line = float(fabric.rates[min(level, CAMPUS - 1), fabric.building[blocks]].min())
        ends = zip(blocks.tolist(), np.roll(blocks, -1).tolist(), strict=True)
        crossing = [haul(fabric, a, b, level) for a, b in ends if fabric.building[a] != fabric.building[b]]
        hauls = crossing if level >= CAMPUS and crossing else [None]
        return min(way.rate(level, latency, line, one) for one in hauls)

    def _levels_of(self, shape: str, row: int) -> Sequence[tuple[int, int]]:
        """Return ``outer_levels``, then the scale-up domain with the ranks in it."""
        return [*outer_levels(self.machine, shape, row), (SCALE_UP, self._in_domain(shape, row))]

    def _in_domain(self, shape: str, row: int) -> int:
        """Return the largest number of a group's ranks in one scale-up domain."""
        groups = self.machine.shapes[shape]
        units = self.machine.fabric.units[RACK, groups.members[row]]
        return int(np.unique(units, return_counts=True)[1].max()) * groups.each

    def _latency_s(self, shape: str, row: int, level: int) -> float:
        if level == SCALE_UP:
            block = int(self.machine.shapes[shape].members[row][0])
            return float(self.machine.fabric.latency[SCALE_UP, self.machine.fabric.building[block]])
        return depth_latency_s(self.machine, shape, row, level)

    def _block(self, shape: str, group: int) -> int:
        return int(self.machine.shapes[shape].members[self.machine.row(shape, group)][0])


def _curve_of(op: Op) -> CurveOp:
    """Return the operation whose measured curve serves ``op``; a send has none of its own."""
    return "all_gather" if op == "send" else op


def _steps(fanout: int, halving: bool) -> int:
    """Return the number of consecutive messages among ``fanout`` children: fanout − 1, or ⌈log2⌉ with halving."""
    return math.ceil(math.log2(fanout)) if halving else fanout - 1
