"""ZB-V: two chunks in a V, nearly no bubble at the memory of 1F1B if F = I = W (Qi et al., arXiv 2401.10241, section 6).

The order is that of PyTorch's ScheduleZBVZeroBubble. In warm-up rank s runs forwards of chunk 0, then alternates them
with forwards of chunk 1 as these come back. From its first backward on it runs one F, I, W of each chunk in turn. In
cool-down input gradients run first and weight gradients use the bubbles.
"""

from __future__ import annotations

from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule
from scaleacross.schedules.pipeline.shape import Row, two_chunks

NAME = "ZBVZeroBubble"
refusal = two_chunks(NAME)


def generate(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> PipelineSchedule:
    """Return the ZB-V schedule."""
    rows = tuple(_row(rank, num_ranks, num_microbatches) for rank in range(num_ranks))
    return PipelineSchedule(NAME, num_ranks, num_microbatches, 2, rows, "v")


def _row(rank: int, num_ranks: int, num_microbatches: int) -> tuple[Action, ...]:
    below = num_ranks - rank
    filled = max(2 * num_ranks - 1, num_microbatches)  # fewer micro-batches leave holes in the row of a full pipeline
    row = Row()
    row.run("F0", 2 * below - 1)
    row.run("F1 F0", rank)
    row.run("F1 I1 W1", below)
    while row.done(Kind.F, 1) < filled:
        if row.done(Kind.F, 0) < filled:
            row.run("F0")
        row.run("I0 W0 F1 I1 W1")
    row.run("I0 I1", rank)
    row.run("I0 W0", below)
    for chunk in (1, 0):
        row.run(f"W{chunk}", row.done(Kind.I, chunk) - row.done(Kind.W, chunk))
    return tuple(action for action in row.actions if action.microbatch < num_microbatches)
