"""GPipe: every forward, then every backward, micro-batches in order (Huang et al., arXiv 1811.06965)."""

from __future__ import annotations

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule


def refusal(num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
    """Why GPipe cannot run this shape, or None."""
    if min(num_ranks, num_microbatches, num_chunks) < 1:
        return f"GPipe needs at least 1 rank, micro-batch and chunk, got {num_ranks}, {num_microbatches}, {num_chunks}"
    if num_chunks != 1:
        return f"GPipe holds 1 model chunk per rank, got {num_chunks}: use Interleaved1F1B for more"
    return None


def generate(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> PipelineSchedule:
    """The GPipe schedule.

    Raises:
        InputError: ``refusal`` has a reason.
    """
    if reason := refusal(num_ranks, num_microbatches, num_chunks):
        raise InputError(reason)
    row = tuple(Action(kind, i, 0) for kind in (Kind.F, Kind.B) for i in range(num_microbatches))
    return PipelineSchedule("GPipe", num_ranks, num_microbatches, 1, (row,) * num_ranks)
