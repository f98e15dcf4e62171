"""A routed all-gather, and a fast list scheduler for it, whose result is the start of CP-SAT.

Events come in the order of time. A chunk can be sent over a lane with room if its source holds the chunk, and its
destination neither holds nor awaits it. The most urgent such chunk goes first: chunks that few ranks hold, then the
least delay. Later rounds blur both by a little random noise.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from typing import NamedTuple

from scaleacross.solvers.collective_synthesis.lanes import CAPACITY_UNITS, Instance


class Hop(NamedTuple):
    """One chunk over one lane, from the tick at which it is sent; it arrives after the ``delay`` of the lane."""

    start: int
    lane: int
    chunk: int


Hops = tuple[Hop, ...]


def makespan(instance: Instance, hops: Hops) -> int:
    """Ticks until the last arrival."""
    return max((hop.start + instance.delay[hop.lane] for hop in hops), default=0)


def list_schedule(instance: Instance, noise: float, seed: int) -> Hops:
    """An all-gather by the rule of the module docstring; ``noise`` ≥ 0 blurs the urgencies."""
    return _ListScheduler(instance, noise, random.Random(seed)).run()


class _ListScheduler:
    def __init__(self, instance: Instance, noise: float, draw: random.Random) -> None:
        self.instance, self.noise, self.draw = instance, noise, draw
        self.lanes = instance.network.lanes
        n = instance.network.num_ranks
        self.outgoing: list[list[int]] = [[] for _ in range(n)]
        for index, lane in enumerate(self.lanes):
            self.outgoing[lane.source].append(index)
        self.holds = [{c for c in instance.chunks if instance.origin(c) == rank} for rank in range(n)]
        self.coming = [set(held) for held in self.holds]  # held or on the way
        self.copies = dict.fromkeys(instance.chunks, 1)
        self.room: defaultdict[int, int] = defaultdict(lambda: CAPACITY_UNITS)
        self.events: list[tuple[int, int, int, int]] = []  # (tick, 0 arrival | 1 lane free, lane, chunk)
        self.hops: list[Hop] = []

    def run(self) -> Hops:
        now, touched = 0, set(range(len(self.outgoing)))
        while True:
            self._send(now, touched)
            if not self.events:
                return tuple(self.hops)
            now, touched = self.events[0][0], set()
            while self.events and self.events[0][0] == now:
                _, kind, lane, chunk = heapq.heappop(self.events)
                if kind:
                    for use, demand in self.instance.demand[lane].items():
                        self.room[use] += demand
                    touched.update(range(len(self.outgoing)))
                else:
                    self.holds[self.lanes[lane].destination].add(chunk)
                    touched.add(self.lanes[lane].destination)

    def _send(self, now: int, ranks: set[int]) -> None:
        """Start every message that can start, most urgent first."""
        options = [
            (self._urgency(chunk, lane), lane, chunk)
            for rank in ranks
            for lane in self.outgoing[rank]
            if self._has_room(lane)
            for chunk in self.holds[rank] - self.coming[self.lanes[lane].destination]
        ]
        for _, lane, chunk in sorted(options):
            there = self.lanes[lane].destination
            # an earlier message of this loop may have changed either
            if chunk in self.coming[there] or not self._has_room(lane):
                continue
            self.coming[there].add(chunk)
            self.copies[chunk] += 1
            for use, demand in self.instance.demand[lane].items():
                self.room[use] -= demand
            self.hops.append(Hop(now, lane, chunk))
            heapq.heappush(self.events, (now + self.instance.busy[lane], 1, lane, chunk))
            heapq.heappush(self.events, (now + self.instance.delay[lane], 0, lane, chunk))

    def _has_room(self, lane: int) -> bool:
        return all(self.room[use] >= demand for use, demand in self.instance.demand[lane].items())

    def _urgency(self, chunk: int, lane: int) -> tuple[float, float]:
        blur = 1 + self.noise * self.draw.random()
        return self.copies[chunk] * blur, self.instance.delay[lane] * (1 + self.noise * self.draw.random())
