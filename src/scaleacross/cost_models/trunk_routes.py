"""What trunks carry between the buildings of a fill, pair by pair over the paths of ``spec.trunk_paths``.

A ring crosses borders between buildings that follow each other; an all-to-all sends from every building to every other, over a
trunk of their own where there is one and through other buildings elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.spec.topology import attainable_trunk_bytes_per_s
from scaleacross.spec.trunk_paths import TrunkPaths


@dataclass(frozen=True)
class Routes:
    """The buildings of a fill in its order, b of them.

    Attributes:
        paths: the trunks between any two buildings.
        buildings: their names.
        runs: the stretch of buildings of one region that each belongs to.
        thinnest: bytes/s of the thinnest trunk of campus and of region level, (2,).
    """

    paths: TrunkPaths
    buildings: tuple[str, ...]
    runs: tuple[int, ...]
    thinnest: Floats

    def fullest(self, between: Floats) -> Floats:
        """What the fullest trunk of each level carries, as if it were the level's thinnest, (2,), of what every building sends to
        every other, (b, b), which is as much either way.

        A trunk carries, in either direction, all pairs whose way it is on; it counts for each level that one of them crosses.
        """
        sent = between[self._pairs[0], self._pairs[1]]
        busy, out = self._slowness @ sent, np.zeros(2)
        for level in range(2):
            of_level = (self._slowness @ (sent * (self._levels == level))) > 0
            if of_level.any():
                out[level] = self.thinnest[level] * busy[of_level].max()
        return out

    def slowest_entry(self, taken: Floats) -> float:
        """What enters a building with others in its region, of what every one takes in, (b,), as if all trunks that lead there
        were the thinnest of campus level; of the building that takes longest. None takes less, whichever trunks it enters by."""
        return float((taken * self._entries).max())

    @cached_property
    def _entries(self) -> Floats:
        """The thinnest trunk of campus level over all trunks into each building with others in its region, else 0, (b,)."""
        topology, out = self.paths.topology, np.zeros(len(self.buildings))
        for index, (name, run) in enumerate(zip(self.buildings, self.runs, strict=True)):
            if self.runs.count(run) > 1:
                leading = (trunk for trunk in topology.trunks if name in trunk.between)
                out[index] = self.thinnest[0] / sum(attainable_trunk_bytes_per_s(topology, trunk) for trunk in leading)
        return out

    @cached_property
    def _pairs(self) -> Ints:
        """(2, pairs)"""
        return np.stack(np.triu_indices(len(self.buildings), 1))

    @cached_property
    def _levels(self) -> Ints:
        """0 campus, 1 region, (pairs,)"""
        runs = np.array(self.runs)
        different: Bools = runs[self._pairs[0]] != runs[self._pairs[1]]
        return different.astype(np.int64)

    @cached_property
    def _slowness(self) -> Floats:
        """Seconds that a byte of each pair keeps each trunk busy, (trunks, pairs)."""
        topology = self.paths.topology
        trunks = {frozenset(trunk.between): index for index, trunk in enumerate(topology.trunks)}
        out = np.zeros((len(trunks), self._pairs.shape[1]))
        for pair, (here, there) in enumerate(combinations(self.buildings, 2)):
            for trunk in self.paths.between(here, there).trunks:
                out[trunks[frozenset(trunk.between)], pair] = 1.0 / attainable_trunk_bytes_per_s(topology, trunk)
        return out
