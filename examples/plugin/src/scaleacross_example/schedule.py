"""A pipeline that holds one micro-batch at a time: the least memory, and the largest bubble."""

from scaleacross.schedules.pipeline import Action, Kind, PipelineSchedule, ScheduleFamily


def refusal(num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
    """Why this shape has no schedule, or None."""
    return None if num_chunks == 1 else f"OneAtATime holds 1 model chunk per rank, got {num_chunks}"


def generate(num_ranks: int, num_microbatches: int, num_chunks: int) -> PipelineSchedule:
    """Each rank runs the forward of a micro-batch, then its backward, then the next."""
    row = tuple(Action(kind, i, 0) for i in range(num_microbatches) for kind in (Kind.F, Kind.B))
    return PipelineSchedule("OneAtATime", num_ranks, num_microbatches, 1, (row,) * num_ranks)


FAMILY = ScheduleFamily(generate, refusal)
