"""GPipe: every forward, then every backward, micro-batches in order (Huang et al., arXiv 1811.06965)."""

from __future__ import annotations

from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule
from scaleacross.schedules.pipeline.shape import one_chunk

refusal = one_chunk("GPipe", instead="LoopedBFS")


def generate(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> PipelineSchedule:
    """Return the GPipe schedule."""
    row = tuple(Action(kind, i, 0) for kind in (Kind.F, Kind.B) for i in range(num_microbatches))
    return PipelineSchedule("GPipe", num_ranks, num_microbatches, 1, (row,) * num_ranks)
