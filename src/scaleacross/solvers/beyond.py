"""Learn the ratio of step time to estimate by pipeline, and expect it of other candidates with the same pipeline.

Estimates of candidates with the same pipeline have the same error. No estimate contains messages across a thin link,
for example, and bounds of partial candidates know no inter-building link. Expectations only decide the order in which
candidates are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats
from scaleacross.cost_models.distinct import distinct

COLUMNS = ("pp", "schedule", "num_chunks", "micro_batch")
"""Columns that two candidates with the same pipeline share."""
Pipeline = tuple[int, ...]


@dataclass
class Beyond:
    """Step time over estimate, by pipeline; 1 until a candidate of the pipeline is placed."""

    _ratios: dict[Pipeline, float] = field(default_factory=dict)

    def learn(self, pipeline: Pipeline, estimate_s: float, took_s: float) -> None:
        """Record that a candidate took ``took_s`` or more; the last record of a pipeline counts."""
        self._ratios[pipeline] = took_s / estimate_s

    def of(self, pipeline: Pipeline) -> float:
        """Return the expected step time over estimate of a pipeline."""
        return self._ratios.get(pipeline, 1.0)

    def expected_s(self, candidates: Candidates, estimates_s: Floats) -> Floats:
        """Return the expected step times of candidates, s, (n,)."""
        kinds = distinct(*(getattr(candidates, name) for name in COLUMNS))
        ratios = np.array([self.of(one) for one in pipelines_of(candidates.take(kinds.first))])
        return estimates_s * ratios[kinds.code]


def pipelines_of(candidates: Candidates) -> list[Pipeline]:
    """Return the pipeline of every candidate."""
    return list(zip(*(getattr(candidates, name).tolist() for name in COLUMNS), strict=True))
