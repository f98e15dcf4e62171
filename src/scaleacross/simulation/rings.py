"""Rate and latency of every hop of a ring, limited by shared links and by connections; used by ``calls``."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scaleacross.simulation import patterns
from scaleacross.simulation.connections import Way
from scaleacross.simulation.fabric import CAMPUS, RACK, SCALE_UP, Fabric, Floats, Haul
from scaleacross.simulation.loads import Loads
from scaleacross.simulation.machine import Machine


@dataclass
class Rings:
    """Hops of the rings of a machine, each computed once and kept."""

    machine: Machine
    loads: Loads
    _known: dict[tuple[str, int, Way], tuple[Floats, Floats]] = field(default_factory=dict)
    _reached: dict[tuple[str, int, Way], Floats] = field(default_factory=dict)

    def hops(self, shape: str, row: int, way: Way) -> tuple[Floats, Floats]:
        """Return (ranks,) rate while all groups of the axis send (bytes/s) and latency (s) of every hop of a ring."""
        if (shape, row, way) not in self._known:
            self._known[shape, row, way] = self._hops(shape, row, way)
        return self._known[shape, row, way]

    def _hops(self, shape: str, row: int, way: Way) -> tuple[Floats, Floats]:
        machine, fabric = self.machine, self.machine.fabric
        groups = machine.shapes[shape]
        blocks = groups.members[row]
        near_rate, near_latency = (
            float(part[SCALE_UP, fabric.building[blocks[0]]]) for part in (fabric.rates, fabric.latency)
        )
        near_rate = way.drive.inside_bytes_per_s(near_rate)
        if len(blocks) == 1:
            return np.full(groups.each, near_rate), np.full(groups.each, near_latency)
        ahead = np.roll(blocks, -1)
        level, rate, latency = fabric.hop(blocks, ahead)
        inside = patterns.in_unit(fabric, groups._replace(members=blocks[None]), RACK)[0]
        ratios = np.array([way.coding.ratio_on(one) for one in level.tolist()])
        share = np.minimum(
            np.where(level == SCALE_UP, near_rate, rate * inside * ratios), self.connected(shape, row, way)
        )
        loaded = self.loads.every((shape, "ring"), way)
        for index, (here, there, reached) in enumerate(zip(blocks, ahead, level, strict=True)):
            # 1e-300: a link that no group loads does not limit the hop
            for link in shared_links(machine, int(here), int(there), int(reached)):
                share[index] = min(share[index], ratios[index] * fabric.capacity[link] / max(loaded[link], 1e-300))
        rates, latencies = (
            np.full((len(blocks), groups.each), near_rate),
            np.full((len(blocks), groups.each), near_latency),
        )
        rates[:, -1], latencies[:, -1] = share, latency  # from the last rank of a block on to the next block
        return rates.reshape(-1), latencies.reshape(-1)

    def connected(self, shape: str, row: int, way: Way) -> Floats:
        """Return (blocks,) the rate at which connections limit each hop between blocks, bytes/s.

        Every member of a domain has its own connection.
        """
        if (shape, row, way) not in self._reached:
            self._reached[shape, row, way] = self._connections(shape, row, way)
        return self._reached[shape, row, way]

    def _connections(self, shape: str, row: int, way: Way) -> Floats:
        blocks, groups = self.machine.shapes[shape].members[row], self.machine.shapes[shape]
        out = np.full(len(blocks), np.inf)
        if len(blocks) == 1 or not way.connections:
            return out
        ahead = np.roll(blocks, -1)
        hops = zip(
            blocks.tolist(),
            ahead.tolist(),
            *map(np.ndarray.tolist, self.machine.fabric.hop(blocks, ahead)),
            strict=True,
        )
        inside = patterns.in_unit(self.machine.fabric, groups._replace(members=blocks[None]), RACK)[0]
        for index, (here, there, level, line, latency) in enumerate(hops):
            if level >= RACK:
                reached = way.rate(level, latency, line, haul(self.machine.fabric, here, there, level))
                out[index] = inside[index] * reached * way.coding.ratio_on(level)
        return out


def haul(fabric: Fabric, source: int, target: int, level: int) -> Haul | None:
    """Return the packet loss from block to block; None within a building."""
    ends = int(fabric.building[source]), int(fabric.building[target])
    return fabric.hauls[ends] if level >= CAMPUS else None


def shared_links(machine: Machine, source: int, target: int, level: int) -> list[int]:
    """Return the uplinks and inter-building links from block to block."""
    fabric, out = machine.fabric, []
    for inner in range(RACK, min(level, 3) + 1):
        for way, block in enumerate((source, target)):
            link = int(fabric.uplinks[way, inner, fabric.units[inner, block]])
            out += [link] if link >= 0 else []
    if level > 3:
        out += fabric.trunk_links[int(fabric.building[source]), int(fabric.building[target])][0]
    return out
