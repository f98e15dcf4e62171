"""Counts the messages of a pipeline schedule that cross the cut between two ranks."""

from __future__ import annotations

from scaleacross.schedules.pipeline.action import PipelineSchedule


def messages_over_cut(schedule: PipelineSchedule, rank: int) -> int:
    """Return the messages per step and direction between the ranks below ``rank`` and the others.

    Every micro-batch sends one forward from each virtual stage to the next and one gradient back, so both directions are equal.
    """
    messages = 0
    for stage in range(schedule.num_virtual_stages - 1):
        (here, chunk), (there, _) = schedule.locate(stage), schedule.locate(stage + 1)
        if not schedule.is_last(stage) and (here < rank) != (there < rank):
            messages += len(schedule.microbatches(chunk))
    return messages
