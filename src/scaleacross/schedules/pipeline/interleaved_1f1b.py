"""Interleaved 1F1B: v model chunks per rank, visited in rounds of micro-batches (Narayanan et al., arXiv 2104.04473).

Micro-batches run in rounds of R = m / max(1, ⌊m/p⌋), as in PyTorch's ScheduleInterleaved1F1B; R = p when p divides m.
In a round every chunk runs its R forwards in turn, chunk 0 first; backwards mirror it, chunk v−1 first. Rank s runs
(v−1)·R + 2(p−s−1) forwards ahead, then alternates one forward and one backward.
"""

from __future__ import annotations

from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule
from scaleacross.schedules.pipeline.shape import needs_several_chunks

NAME = "Interleaved1F1B"


def refusal(num_ranks: int, num_microbatches: int, num_chunks: int, name: str = NAME, flat: str = "1F1B") -> str | None:
    """Return why Interleaved1F1B, or its variant ``name`` (``flat`` with one chunk), cannot run this shape, or None."""
    p, m = num_ranks, num_microbatches
    if reason := needs_several_chunks(name, num_chunks, flat):
        return reason
    rounds = max(1, m // p)
    if m % rounds:
        return (
            f"{name} runs {m} micro-batches on {p} ranks in {rounds} rounds, which must divide them: "
            f"use {m - m % p} or {m - m % p + p} micro-batches"
        )
    return None


def microbatches_per_round(num_ranks: int, num_microbatches: int) -> int:
    """Return R, the micro-batches that a rank runs through one chunk before the next chunk."""
    return num_microbatches // max(1, num_microbatches // num_ranks)


def visits(num_ranks: int, num_microbatches: int, num_chunks: int) -> list[tuple[int, int]]:
    """Return (micro-batch, chunk) pairs in the order of every rank's forwards."""
    per_round = microbatches_per_round(num_ranks, num_microbatches)
    firsts = range(0, num_microbatches, per_round)
    return [(first + i, chunk) for first in firsts for chunk in range(num_chunks) for i in range(per_round)]


def generate(num_ranks: int, num_microbatches: int, num_chunks: int) -> PipelineSchedule:
    """Return the interleaved 1F1B schedule, in the order of PyTorch and Megatron-LM."""
    p, m, v = num_ranks, num_microbatches, num_chunks
    per_round, order = microbatches_per_round(p, m), visits(p, m, v)
    forwards = [Action(Kind.F, i, chunk) for i, chunk in order]
    backwards = [Action(Kind.B, i, v - 1 - chunk) for i, chunk in order]
    rows = []
    for rank in range(p):
        ahead = min(m * v, (v - 1) * per_round + 2 * (p - rank - 1))
        row = forwards[:ahead]
        for i, backward in enumerate(backwards):
            row.extend(forwards[ahead + i : ahead + i + 1])
            row.append(backward)
        rows.append(tuple(row))
    return PipelineSchedule(NAME, p, m, v, tuple(rows))
