"""Load of inter-building links between the buildings of an allocation, pair by pair over the paths of
``spec.trunk_paths``.

A ring crosses borders between buildings that follow each other. An all-to-all sends from every building to every other,
over a direct link where there is one and through other buildings elsewhere.
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
    """The buildings of an allocation in its order, b of them.

    Attributes:
        paths: the links between any two buildings.
        buildings: their names.
        runs: for every building, the index of the run of consecutive buildings of one region that it belongs to.
        thinnest: bytes/s of the slowest link of campus and of region level, (2,).
    """

    paths: TrunkPaths
    buildings: tuple[str, ...]
    runs: tuple[int, ...]
    thinnest: Floats

    def fullest(self, between: Floats) -> Floats:
        """Load of the fullest link of each level, (2,), scaled as if it were the level's slowest.

        A link carries, in either direction, all pairs on whose path it is. It counts for each level that one crosses.

        Args:
            between: what every building sends to every other, (b, b), the same both ways.
        """
        sent = between[self._pairs[0], self._pairs[1]]
        busy, out = self._slowness @ sent, np.zeros(2)
        for level in range(2):
            of_level = (self._slowness @ (sent * (self._levels == level))) > 0
            if of_level.any():
                out[level] = self.thinnest[level] * busy[of_level].max()
        return out

    def slowest_entry(self, taken: Floats) -> float:
        """Largest load that enters a building with others in its region, relative to the campus level's slowest link.

        ``taken``, (b,), is what each building takes in, over all links into it; no choice of links makes it faster.
        """
        return float((taken * self._entries).max())

    @cached_property
    def _entries(self) -> Floats:
        """Rate of the campus level's slowest link over that of all links into each building, (b,), or 0."""
        topology, out = self.paths.topology, np.zeros(len(self.buildings))
        for index, (name, run) in enumerate(zip(self.buildings, self.runs, strict=True)):
            if self.runs.count(run) > 1:
                leading = (trunk for trunk in topology.trunks if name in trunk.between)
                out[index] = self.thinnest[0] / sum(attainable_trunk_bytes_per_s(topology, trunk) for trunk in leading)
        return out

    @cached_property
    def _pairs(self) -> Ints:
        """Indices of the two buildings of every pair, (2, pairs)."""
        return np.stack(np.triu_indices(len(self.buildings), 1))

    @cached_property
    def _levels(self) -> Ints:
        """Level of every pair, (pairs,): 0 campus, 1 region."""
        runs = np.array(self.runs)
        different: Bools = runs[self._pairs[0]] != runs[self._pairs[1]]
        return different.astype(np.int64)

    @cached_property
    def _slowness(self) -> Floats:
        """Seconds for which a byte of each pair occupies each link, (links, pairs)."""
        topology = self.paths.topology
        trunks = {frozenset(trunk.between): index for index, trunk in enumerate(topology.trunks)}
        out = np.zeros((len(trunks), self._pairs.shape[1]))
        for pair, (here, there) in enumerate(combinations(self.buildings, 2)):
            for trunk in self.paths.between(here, there).trunks:
                out[trunks[frozenset(trunk.between)], pair] = 1.0 / attainable_trunk_bytes_per_s(topology, trunk)
        return out
