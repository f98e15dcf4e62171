"""DualPipe and DualPipeV: forwards and backwards of two directions in pairs, which overlap with each other's messages.

DualPipe (DeepSeek-V3, arXiv 2412.19437) runs two copies of the model, one down the ranks and one up, each with half of
the micro-batches. DualPipeV folds it in the middle: p/2 ranks run two chunks of one copy in a V. Both share one
program, for rank s of a V of h ranks or the s-th from its end of 2h ranks. The order is that of
github.com/deepseek-ai/DualPipe, and that of PyTorch's ScheduleDualPipeV for DualPipeV.

A pair (F, B) is listed as F, then B. Running both at once depends on kernels; here they take F + B.
"""

from __future__ import annotations

from scaleacross.schedules.pipeline.action import Action, PipelineSchedule
from scaleacross.schedules.pipeline.shape import Row, two_chunks

BOTH_WAYS, FOLDED = "DualPipe", "DualPipeV"
folded_refusal = two_chunks(FOLDED, least=lambda num_ranks: 2 * num_ranks)


def refusal(num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
    """Return why DualPipe cannot run this shape, or None."""
    if num_chunks == 2 and num_ranks % 2:
        return f"{BOTH_WAYS} needs an even number of ranks, got {num_ranks}"
    if num_chunks == 2 and num_microbatches % 2:
        return f"{BOTH_WAYS} needs an even number of micro-batches, half for each direction, got {num_microbatches}"
    return two_chunks(BOTH_WAYS, least=lambda ranks: 2 * ranks)(num_ranks, num_microbatches, num_chunks)


def generate(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> PipelineSchedule:
    """Return the DualPipe schedule: copy 0 runs micro-batches 0 … m/2−1 down the ranks, copy 1 the others up."""
    p, half = num_ranks, num_microbatches // 2
    rows = []
    for rank in range(p):
        near = int(rank >= p // 2)  # the copy that starts on this half of the ranks
        program = _program(min(rank, p - 1 - rank), p // 2, half)
        chunks = [abs(near - action.chunk) for action in program]
        rows.append(
            tuple(Action(a.kind, a.microbatch + half * chunk, chunk) for a, chunk in zip(program, chunks, strict=True))
        )
    return PipelineSchedule(BOTH_WAYS, p, num_microbatches, 2, tuple(rows), "v", num_copies=2)


def generate_folded(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> PipelineSchedule:
    """Return the DualPipeV schedule."""
    rows = tuple(tuple(_program(rank, num_ranks, num_microbatches)) for rank in range(num_ranks))
    return PipelineSchedule(FOLDED, num_ranks, num_microbatches, 2, rows, "v")


def _program(position: int, half_ranks: int, num_microbatches: int) -> list[Action]:
    """Return the actions of a rank ``position`` ranks from the end of its chunk 0, with ``half_ranks`` to the turn."""
    below, row = half_ranks - position - 1, Row()
    row.run("F0", 2 * below)
    row.run("F0 F1", position + 1)
    row.run("I1 W1 F1", below)
    row.run("F0 B1 F1 B0", num_microbatches - 2 * half_ranks + position + 1)
    row.run("B1 F1 B0", below)
    # in cool-down the second half of the backwards is split, so that weight gradients run in the last bubbles
    whole = position + 1
    for cell in range(2 * whole):
        row.run(("B" if cell < whole else "I") + ("1" if cell % 2 == 0 else "0"))
    for _ in range(below):
        row.run_oldest_weight()
        row.run("I0")
    for _ in range(position + 1):
        row.run_oldest_weight()
    return row.actions
