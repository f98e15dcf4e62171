"""Breadth-first pipeline: all micro-batches through one chunk, then through the next (Lamy-Poirier, arXiv 2211.05953).

It is GPipe over v chunks in a loop. It holds every activation, but each chunk's parameters are gathered once and its
gradients are complete together, which suits sharded data parallelism. Backwards run the micro-batches from the last to
the first, as in PyTorch's ScheduleLoopedBFS.
"""

from __future__ import annotations

from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule
from scaleacross.schedules.pipeline.shape import needs_several_chunks

NAME = "LoopedBFS"


def refusal(num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
    """Return why the breadth-first schedule cannot run this shape, or None."""
    return needs_several_chunks(NAME, num_chunks, "GPipe")


def generate(num_ranks: int, num_microbatches: int, num_chunks: int) -> PipelineSchedule:
    """Return the breadth-first schedule, in the order of PyTorch."""
    forwards = [Action(Kind.F, i, chunk) for chunk in range(num_chunks) for i in range(num_microbatches)]
    backwards = [Action(Kind.B, action.microbatch, action.chunk) for action in reversed(forwards)]
    row = (*forwards, *backwards)
    return PipelineSchedule(NAME, num_ranks, num_microbatches, num_chunks, (row,) * num_ranks)
