"""GPipe: every forward, then every backward, micro-batches in order (Huang et al., arXiv 1811.06965)."""

from __future__ import annotations

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule
from scaleacross.schedules.pipeline.shape import too_small


def refusal(num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
    """Why GPipe cannot run this shape, or None."""
    if reason := too_small("GPipe", num_ranks, num_microbatches, num_chunks):
        return reason
    if num_chunks != 1:
        return f"GPipe holds 1 model chunk per rank, got {num_chunks}: use LoopedBFS for more"
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
