"""DualPipe and DualPipeV: forwards and backwards of two directions paired, so that each hides the other's messages.

DualPipe (DeepSeek-V3, arXiv 2412.19437): two copies of the model, one runs down the ranks and one up, half of the
micro-batches each. DualPipeV folds it in the middle: on p/2 ranks, two chunks of one copy in a V. Both run the same program;
rank s of a V of h ranks, or the s-th from its end of 2h ranks. The order is that of github.com/deepseek-ai/DualPipe, and
DualPipeV's that of PyTorch's ScheduleDualPipeV.

A pair (F, B) is listed as F, then B. Running both at once is a matter of kernels; here they take F + B.
"""

from __future__ import annotations

from scaleacross.schedules.pipeline.action import Action, PipelineSchedule
from scaleacross.schedules.pipeline.shape import Row, two_chunks

BOTH_WAYS, FOLDED = "DualPipe", "DualPipeV"
folded_refusal = two_chunks(FOLDED, least=lambda num_ranks: 2 * num_ranks)


def refusal(num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
    """Why DualPipe cannot run this shape, or None."""
    if num_chunks == 2 and num_ranks % 2:
        return f"{BOTH_WAYS} needs an even number of ranks, got {num_ranks}"
    if num_chunks == 2 and num_microbatches % 2:
        return f"{BOTH_WAYS} needs an even number of micro-batches, half for each direction, got {num_microbatches}"
    return two_chunks(BOTH_WAYS, least=lambda ranks: 2 * ranks)(num_ranks, num_microbatches, num_chunks)


def generate(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> PipelineSchedule:
    """The DualPipe schedule: copy 0 of the model runs micro-batches 0 … m/2−1 down the ranks, copy 1 the others up."""
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
    """The DualPipeV schedule."""
    rows = tuple(tuple(_program(rank, num_ranks, num_microbatches)) for rank in range(num_ranks))
    return PipelineSchedule(FOLDED, num_ranks, num_microbatches, 2, rows, "v")


def _program(position: int, half_ranks: int, num_microbatches: int) -> list[Action]:
    """Actions of the rank at ``position`` from the end where its chunk 0 starts, of ``half_ranks`` up to the turn."""
    below, row = half_ranks - position - 1, Row()
    row.run("F0", 2 * below)
    row.run("F0 F1", position + 1)
    row.run("I1 W1 F1", below)
    row.run("F0 B1 F1 B0", num_microbatches - 2 * half_ranks + position + 1)
    row.run("B1 F1 B0", below)
    # while the pipeline drains, the second half of the backwards is split and their weight gradients fill the end
    whole = position + 1
    for cell in range(2 * whole):
        row.run(("B" if cell < whole else "I") + ("1" if cell % 2 == 0 else "0"))
    for _ in range(below):
        row.run_oldest_weight()
        row.run("I0")
    for _ in range(position + 1):
        row.run_oldest_weight()
    return row.actions
