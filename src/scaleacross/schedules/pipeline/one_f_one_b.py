"""1F1B: rank s runs p−s forwards ahead, then alternates one backward and one forward (PipeDream-Flush, arXiv 2006.09503)."""

from __future__ import annotations

from collections.abc import Sequence

from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule
from scaleacross.schedules.pipeline.shape import Refusal, one_chunk

NAME = "1F1B"


def refusal_of(name: str) -> Refusal:
    """Return the refusal of 1F1B, or of its variant ``name``. Like PyTorch's Schedule1F1B it demands m ≥ p."""
    return one_chunk(name, instead="Interleaved1F1B", least=lambda num_ranks: num_ranks)


refusal = refusal_of(NAME)


def generate(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> PipelineSchedule:
    """Return the 1F1B schedule."""
    return with_ahead(NAME, num_microbatches, [num_ranks - rank for rank in range(num_ranks)])


def with_ahead(name: str, num_microbatches: int, ahead: Sequence[int]) -> PipelineSchedule:
    """Return a schedule whose rank s runs ``ahead[s]`` forwards, then alternates one backward and one forward."""
    forwards = [Action(Kind.F, i, 0) for i in range(num_microbatches)]
    backwards = [Action(Kind.B, i, 0) for i in range(num_microbatches)]
    rows = []
    for before in ahead:
        row = forwards[:before]
        for i, backward in enumerate(backwards):
            row.append(backward)
            row.extend(forwards[before + i : before + i + 1])
        rows.append(tuple(row))
    return PipelineSchedule(name, len(rows), num_microbatches, 1, tuple(rows))
