"""One collective of a class of groups as a short list of flows: phase after phase of its algorithm.

Algorithms by the names that a plan gives them: ring, tree, hierarchical, pairwise, measured. Symbols: d ranks, S bytes.

* ring          (d−1)/d · S of progress and ``ring_fixed_s``; twice for an all-reduce
* hierarchical  per level (f−1)/f · S and (f−1)·α, outermost first in a gather, innermost first in a scatter; inside a domain the
                measured time of the f ranks there
* tree          2·S along the ring's links, pipelined, and 2·Σ⌈log2 f⌉·α
* pairwise      what every rank sends, and one latency
* measured      the curve of the scale-up technology
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from scaleacross.simulation import patterns
from scaleacross.simulation.curves import measured_s
from scaleacross.simulation.fabric import RACK, SCALE_UP, Floats
from scaleacross.simulation.machine import Machine, PatternKey, depth_latency_s, distinct, outer_levels
from scaleacross.spec.network import CurveOp

Op = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]


class Segment(NamedTuple):
    """One flow: bytes of progress along loaded links, then a fixed time; ``common_bytes_per_s``: its rate while all groups of its
    axis do the same."""

    amount: float
    load: tuple[tuple[int, float], ...]
    cap_bytes_per_s: float
    fixed_s: float
    common_bytes_per_s: float


class Way(NamedTuple):
    """How a kind of collective runs.

    Attributes:
        algorithm: as the plan names it.
        num_chunks: pieces that follow one another through the levels.
        windows: (level, bytes in flight to one peer) where the plan states connections.
        halving: levels that run halving and doubling instead of a ring.
    """

    algorithm: str
    num_chunks: int = 1
    windows: tuple[tuple[int, float], ...] = ()
    halving: tuple[int, ...] = ()

    def rate(self, level: int, latency_s: float) -> float:
        """Bytes/s that a window lets through to one peer: window over round trip; inf where none is stated."""
        window = dict(self.windows).get(level)
        return window / (2 * latency_s) if window is not None and latency_s > 0 else math.inf


@dataclass
class Calls:
    """Segments of collectives, each worked out once.

    Attributes:
        launch_s: what starting a collective takes.
        copies: equal copies of a token of which a place gets one at most; 0: all.
        held_fraction: multiprocessors that a collective beside computation takes from it.
    """

    machine: Machine
    launch_s: float
    copies: float = 0.0
    held_fraction: float = 0.0
    _known: dict[object, tuple[Segment, ...]] = field(default_factory=dict)

    def of(
        self, shape: str, group: int, ops: tuple[Op, ...], ways: tuple[Way, ...], size_bytes: float
    ) -> tuple[Segment, ...]:
        """Segments of calls in a row among the groups of class ``group``; neighbours on the same links become one."""
        key = (shape, group, ops, ways, size_bytes)
        if key not in self._known:
            out: list[Segment] = []
            for op, way in zip(ops, ways, strict=True):
                for segment in self._segments(shape, group, op, way, size_bytes):
                    joined = _in_a_row(out[-1], segment) if out else None
                    out = [*out[:-1], joined] if joined else [*out, segment]
            self._known[key] = tuple(out)
        return self._known[key]

    def message(self, block_class: int, forward: bool, way: Way, size_bytes: float) -> Segment:
        """A message to the next (or previous) pipeline rank."""
        key = (block_class, forward, way, size_bytes)
        if key not in self._known:
            self._known[key] = (self._message(*key),)
        return self._known[key][0]

    def _common(self, key: PatternKey, row: int) -> float:
        """Rate of a group while all groups of its axis send, bytes/s."""
        machine, pattern = self.machine, self.machine.patterns[key]
        links = pattern.link[pattern.row == row]
        room = machine.fabric.capacity[links] / machine.link_loads(key)[links]
        return float(min(pattern.cap[row], room.min(initial=np.inf)))

    def _message(self, block_class: int, forward: bool, choice: Way, size_bytes: float) -> Segment:
        machine, way = self.machine, "forward" if forward else "backward"
        source = machine.first(block_class)
        target = int((machine.following if forward else machine.preceding)[source])
        level, _, latency = machine.fabric.hop(np.array([source]), np.array([target]))
        cap = min(float(machine.patterns["pp", way].cap[source]), choice.rate(int(level[0]), float(latency[0])))
        return Segment(size_bytes, tuple(machine.load(("pp", way), block_class)), cap, float(latency[0]), cap)

    def _segments(self, shape: str, group: int, op: Op, way: Way, size: float) -> Iterator[Segment]:
        algorithm = way.algorithm
        degree = self.machine.shapes[shape].degree
        if degree <= 1 or size <= 0:
            return
        if algorithm == "measured":
            yield self._inside(shape, group, op, degree, size)
        elif algorithm == "pairwise":
            yield self._pairwise(shape, group, size)
        elif algorithm == "hierarchical":
            phases = list(self._levels(shape, group, op, way, size))
            yield from [piped(phases, way.num_chunks)] if way.num_chunks > 1 and len(phases) > 1 else phases
        else:
            yield self._ring(shape, group, op, way, size)

    def _inside(self, shape: str, group: int, op: Op, num_ranks: int, size: float) -> Segment:
        """Among ranks of one domain: the port, for as long as was measured, or by bandwidth and latency."""
        machine, block = self.machine, self._block(shape, group)
        link = machine.fabric.buildings[int(machine.fabric.building[block])].links.scale_up
        moved = size * float(distinct(np.array(float(num_ranks)), self.copies)) if op == "all_to_all" else size
        curve: CurveOp = "all_gather" if op == "send" else op
        seconds = measured_s(link.technology, curve, num_ranks, moved)
        if seconds is None:
            rate = float(machine.fabric.rates[SCALE_UP, machine.fabric.building[block]])
            turns = 2 if op == "all_reduce" else 1
            steps = 1 if op == "all_to_all" else turns * (num_ranks - 1)
            seconds = (
                turns * (num_ranks - 1) / num_ranks * moved / rate + steps * link.one_way_latency_s + self.launch_s
            )
        port = int(machine.link_class[machine.fabric.port(np.array([block]))[0]])
        return Segment(size, ((port, seconds / size),), size / seconds, 0.0, size / seconds)

    def _pairwise(self, shape: str, group: int, size: float) -> Segment:
        machine, row = self.machine, self.machine.row(shape, group)
        blocks = machine.shapes[shape].members[row]
        cap = float(machine.patterns[shape, "pairwise"].cap[row])
        latency = max(float(machine.fabric.hop(np.full(len(blocks), one), blocks)[2].max()) for one in blocks[[0, -1]])
        load = tuple(machine.load((shape, "pairwise"), group))
        return Segment(size, load, cap, self.launch_s + latency, self._common((shape, "pairwise"), row))

    def _ring(self, shape: str, group: int, op: Op, way: Way, size: float) -> Segment:
        machine, row = self.machine, self.machine.row(shape, group)
        degree, common = machine.shapes[shape].degree, self._common((shape, "ring"), row)
        load, cap = tuple(machine.load((shape, "ring"), group)), float(machine.patterns[shape, "ring"].cap[row])
        cap = min(cap, self._window_rate(shape, row, way))
        if way.algorithm == "tree":
            levels = [(level, f) for level, f in self._levels_of(shape, row) if f > 1]
            latency = sum(math.ceil(math.log2(f)) * self._latency_s(shape, row, level) for level, f in levels)
            return Segment(2 * size, load, cap, self.launch_s + 2 * latency, common)
        turns = 2 if op == "all_reduce" else 1
        rate, latencies = self._hops(shape, row)
        fixed = patterns.ring_fixed_s(size / degree, rate, latencies)
        return Segment(turns * (degree - 1) / degree * size, load, cap, self.launch_s + turns * fixed, common)

    def _hops(self, shape: str, row: int) -> tuple[Floats, Floats]:
        """Rate (bytes/s, when all groups of the axis send) and latency of every hop of a ring."""
        machine, fabric = self.machine, self.machine.fabric
        groups = machine.shapes[shape]
        blocks = groups.members[row]
        near_rate, near_latency = (
            float(part[SCALE_UP, fabric.building[blocks[0]]]) for part in (fabric.rates, fabric.latency)
        )
        if len(blocks) == 1:
            return np.full(groups.each, near_rate), np.full(groups.each, near_latency)
        ahead = np.roll(blocks, -1)
        level, rate, latency = fabric.hop(blocks, ahead)
        inside = patterns.in_unit(fabric, groups._replace(members=blocks[None]), RACK)[0]
        share = np.where(level == SCALE_UP, near_rate, rate * inside)
        loaded = machine.link_loads((shape, "ring"))
        for index, (here, there, reached) in enumerate(zip(blocks, ahead, level, strict=True)):
            for link in shared_links(machine, int(here), int(there), int(reached)):
                share[index] = min(share[index], fabric.capacity[link] / max(loaded[link], 1e-300))
        rates, latencies = (
            np.full((len(blocks), groups.each), near_rate),
            np.full((len(blocks), groups.each), near_latency),
        )
        rates[:, -1], latencies[:, -1] = share, latency  # from the last rank of a block on to the next block
        return rates.reshape(-1), latencies.reshape(-1)

    def _window_rate(self, shape: str, row: int, way: Way) -> float:
        """What windows leave to a ring: every member of a domain has a connection of its own."""
        blocks, groups = self.machine.shapes[shape].members[row], self.machine.shapes[shape]
        if len(blocks) == 1 or not way.windows:
            return math.inf
        level, _, latency = self.machine.fabric.hop(blocks, np.roll(blocks, -1))
        inside = patterns.in_unit(self.machine.fabric, groups._replace(members=blocks[None]), RACK)[0]
        hops = zip(level.tolist(), latency.tolist(), inside.tolist(), strict=True)
        return min(
            (float(members * way.rate(reached, seconds)) for reached, seconds, members in hops), default=math.inf
        )

    def _levels(self, shape: str, group: int, op: Op, way: Way, size: float) -> Iterator[Segment]:
        row = self.machine.row(shape, group)
        phases = list(self._gather_phases(shape, group, row, op, way, size))
        if op != "all_gather":
            yield from (phase for phase in phases[::-1])
        if op == "all_gather" or op == "all_reduce":
            yield from phases

    def _gather_phases(self, shape: str, group: int, row: int, op: Op, way: Way, size: float) -> Iterator[Segment]:
        """Phases of a gather, outermost first; a scatter runs them backwards."""
        machine, start = self.machine, self.launch_s
        levels = outer_levels(machine, shape, row)
        for level, fanout in levels:
            load, cap = (
                tuple(machine.load((shape, str(level)), group)),
                float(machine.patterns[shape, str(level)].cap[row]),
            )
            latency = self._latency_s(shape, row, level)
            steps = math.log2(fanout) if level in way.halving and fanout & (fanout - 1) == 0 else fanout - 1
            fixed = start + steps * latency
            members = self.machine.shapes[shape].degree / math.prod(f for at, f in levels if at >= level)
            cap = min(cap, members * way.rate(level, latency))
            yield Segment((fanout - 1) / fanout * size, load, cap, fixed, self._common((shape, str(level)), row))
            start = 0.0
        inside = self._in_domain(shape, row)
        if inside > 1:
            yield self._inside(shape, group, "all_gather" if op == "all_reduce" else op, inside, size)

    def _levels_of(self, shape: str, row: int) -> Sequence[tuple[int, int]]:
        return [*outer_levels(self.machine, shape, row), (SCALE_UP, self._in_domain(shape, row))]

    def _in_domain(self, shape: str, row: int) -> int:
        """Most ranks of a group in one scale-up domain."""
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


def piped(phases: list[Segment], num_chunks: int) -> Segment:
    """Phases whose chunks follow one another: all links at once, and the first chunk through the other phases."""
    alone = [phase.amount / phase.common_bytes_per_s for phase in phases]
    whole = sum(phase.amount for phase in phases)
    load: dict[int, float] = {}
    for phase in phases:
        for link, weight in phase.load:
            load[link] = load.get(link, 0.0) + weight * phase.amount / whole
    fixed = sum(phase.fixed_s for phase in phases) + (sum(alone) - max(alone)) / num_chunks
    cap = min(phase.cap_bytes_per_s * whole / phase.amount for phase in phases)
    common = min(phase.common_bytes_per_s * whole / phase.amount for phase in phases)
    return Segment(whole, tuple(load.items()), cap, fixed, common)


def _in_a_row(first: Segment, second: Segment) -> Segment | None:
    """Two flows over the same single link, one after the other, as one: measured collectives of a domain."""
    if len(first.load) != 1 or len(second.load) != 1 or first.load[0][0] != second.load[0][0]:
        return None
    if first.fixed_s or second.fixed_s:
        return None
    link, amount = first.load[0][0], first.amount + second.amount
    used = first.load[0][1] * first.amount + second.load[0][1] * second.amount
    seconds = first.amount / first.cap_bytes_per_s + second.amount / second.cap_bytes_per_s
    return Segment(amount, ((link, used / amount),), amount / seconds, 0.0, amount / seconds)


def shared_links(machine: Machine, source: int, target: int, level: int) -> list[int]:
    """Uplinks and trunks from block to block."""
    fabric, out = machine.fabric, []
    for inner in range(RACK, min(level, 3) + 1):
        for way, block in enumerate((source, target)):
            link = int(fabric.uplinks[way, inner, fabric.units[inner, block]])
            out += [link] if link >= 0 else []
    if level > 3:
        out += fabric.trunk_links[int(fabric.building[source]), int(fabric.building[target])][0]
    return out
