"""1F1B: rank s runs p−s forwards ahead, then alternates one backward and one forward (PipeDream-Flush, arXiv 2006.09503)."""

from __future__ import annotations

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule


def refusal(num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
    """Why 1F1B cannot run this shape, or None. PyTorch's Schedule1F1B demands as many micro-batches as ranks."""
    if min(num_ranks, num_microbatches, num_chunks) < 1:
        return f"1F1B needs at least 1 rank, micro-batch and chunk, got {num_ranks}, {num_microbatches}, {num_chunks}"
    if num_chunks != 1:
        return f"1F1B holds 1 model chunk per rank, got {num_chunks}: use Interleaved1F1B for more"
    if num_microbatches < num_ranks:
        return (
            f"1F1B needs at least as many micro-batches as ranks, got {num_microbatches} on {num_ranks} ranks: "
            f"raise the global batch, shrink the micro-batch, or use at most {num_microbatches} ranks"
        )
    return None


def generate(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> PipelineSchedule:
    """The 1F1B schedule.

    Raises:
        InputError: ``refusal`` has a reason.
    """
    if reason := refusal(num_ranks, num_microbatches, num_chunks):
        raise InputError(reason)
    forwards = [Action(Kind.F, i, 0) for i in range(num_microbatches)]
    backwards = [Action(Kind.B, i, 0) for i in range(num_microbatches)]
    rows = []
    for rank in range(num_ranks):
        ahead = num_ranks - rank
        row = forwards[:ahead]
        for i, backward in enumerate(backwards):
            row.append(backward)
            row.extend(forwards[ahead + i : ahead + i + 1])
        rows.append(tuple(row))
    return PipelineSchedule("1F1B", num_ranks, num_microbatches, 1, tuple(rows))
