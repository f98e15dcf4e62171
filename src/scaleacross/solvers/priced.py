"""Candidates with their work, their bounds and what they are compared by."""

from __future__ import annotations

from dataclasses import dataclass

from scaleacross.cost_models.candidates import Bools, Candidates, Floats, Ints
from scaleacross.cost_models.work import Work


@dataclass(frozen=True)
class Priced:
    """Candidates that fit in memory, with their work and lower bound; ``free_s`` is what no placement changes.

    ``estimate_s`` is the bound if gradients that cross buildings met all others on the way: by it candidates are compared.
    """

    candidates: Candidates
    work: Work
    free_s: Floats
    bound_s: Floats
    estimate_s: Floats

    def take(self, rows: Ints | Bools) -> Priced:
        """The rows selected by an index or mask array."""
        figures = (self.free_s[rows], self.bound_s[rows], self.estimate_s[rows])
        return Priced(self.candidates.take(rows), self.work.take(rows), *figures)
