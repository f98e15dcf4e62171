"""What candidates took beyond their estimates: others with the same pipeline are expected to take as much.

Candidates with the same pipeline are wrong in the same way: messages across a thin link, say, are in no estimate, and bounds of
bases know of no link between buildings at all. So what one of them took is expected of the others too. Expectations decide
nothing but the order in which candidates are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats
from scaleacross.cost_models.distinct import distinct

COLUMNS = ("pp", "schedule", "num_chunks", "micro_batch")
"""What two candidates with the same pipeline share."""
Pipeline = tuple[int, ...]


@dataclass
class Beyond:
    """Step time over estimate, by pipeline; 1 of one that nobody placed yet."""

    _ratios: dict[Pipeline, float] = field(default_factory=dict)

    def learn(self, pipeline: Pipeline, estimate_s: float, took_s: float) -> None:
        """A candidate took so long, or is known not to take less; the last one counts."""
        self._ratios[pipeline] = took_s / estimate_s

    def of(self, pipeline: Pipeline) -> float:
        """Step time over estimate that is expected of a pipeline."""
        return self._ratios.get(pipeline, 1.0)

    def expected_s(self, candidates: Candidates, estimates_s: Floats) -> Floats:
        """The step times that are expected of candidates, (n,)."""
        kinds = distinct(*(getattr(candidates, name) for name in COLUMNS))
        ratios = np.array([self.of(one) for one in pipelines_of(candidates.take(kinds.first))])
        return estimates_s * ratios[kinds.code]


def pipelines_of(candidates: Candidates) -> list[Pipeline]:
    """The pipeline of every candidate."""
    return list(zip(*(getattr(candidates, name).tolist() for name in COLUMNS), strict=True))
