"""Link loads of groups and messages; flows hashed onto parallel inter-building links load them unevenly."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaleacross.simulation.connections import Way, fullest_over_mean
from scaleacross.simulation.fabric import Floats
from scaleacross.simulation.machine import Load, Machine
from scaleacross.simulation.patterns import PatternKey


@dataclass
class Loads:
    """Loads of groups and messages; ``seed`` draws the links of hashed flows; None: mean over draws."""

    machine: Machine
    seed: int | None = None
    _known: dict[tuple[PatternKey, Way], dict[int, float]] = field(default_factory=dict)

    def fullest(self, key: PatternKey, way: Way) -> dict[int, float]:
        """Return inter-building link -> load of its fullest parallel link over the mean, where flows are hashed."""
        if (key, way) not in self._known:
            parallel, out = self.machine.fabric.parallel, {}
            for link, pairs in self.machine.pairs_across[key].items():
                level, num_links = parallel[link]
                settings = way.at(level)
                if settings is not None and settings.hashed and num_links:
                    flows = pairs * settings.queue_pairs
                    out[link] = fullest_over_mean(flows, num_links, self.seed)
            self._known[key, way] = out
        return self._known[key, way]

    def of(self, key: PatternKey, thing: int, way: Way) -> Load:
        """Return the loads of a class of groups (messages: of blocks).

        An inter-building link counts with its fullest parallel link.
        """
        of = self.machine.link_class
        fuller = {int(of[link]): share for link, share in self.fullest(key, way).items()}
        return [(link, weight * fuller.get(link, 1.0)) for link, weight in self.machine.load(key, thing)]

    def every(self, key: PatternKey, way: Way) -> Floats:
        """Return (links,) bytes on every link when each group of a pattern progresses by one byte."""
        loads, fuller = self.machine.link_loads[key], self.fullest(key, way)
        if fuller:
            loads = loads.copy()
            for link, share in fuller.items():
                loads[link] *= share
        return loads

    def crowd(self, key: PatternKey, row: int, way: Way, ratio: float) -> tuple[tuple[int, float], ...]:
        """Return (link, busy seconds per byte of progress) of a group's links while all groups of its axis send."""
        pattern = self.machine.patterns[key]
        links = pattern.link[pattern.row == row]
        busy = self.every(key, way)[links] / self.machine.fabric.capacity[links] / ratio
        return tuple(zip(links.tolist(), busy.tolist(), strict=True))
