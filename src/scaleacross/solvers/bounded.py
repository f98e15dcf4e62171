"""Candidates with their work, lower bounds and estimates: the rows that the search sorts, prunes and places."""

from __future__ import annotations

from dataclasses import dataclass

from scaleacross.cost_models.candidates import Bools, Candidates, Floats, Ints
from scaleacross.cost_models.work import Work


@dataclass(frozen=True)
class Bounded:
    """Candidates that fit in memory, with their work and bounds in seconds, (n,) each.

    Attributes:
        free_s: part of the step time that no placement changes.
        bound_s: lower bound on the step time.
        estimate_s: the bound, but gradients that cross buildings meet those of all other pipeline ranks there.
            Candidates are compared by it; a step time may be below it.
    """

    candidates: Candidates
    work: Work
    free_s: Floats
    bound_s: Floats
    estimate_s: Floats

    def take(self, rows: Ints | Bools) -> Bounded:
        """The rows selected by an index or mask array."""
        figures = (self.free_s[rows], self.bound_s[rows], self.estimate_s[rows])
        return Bounded(self.candidates.take(rows), self.work.take(rows), *figures)
