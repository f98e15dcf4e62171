"""Eager 1F1B: 1F1B with more forwards ahead, so that a delay between ranks overlaps with the micro-batches in flight.

Rank s runs ``ahead`` forwards before its first backward. The default 2(p−s)−1 (Zhuang et al., arXiv 2211.05322) gives every
boundary one micro-batch of slack; ``with_extra`` adds any number on any rank, e.g. E ≥ ⌈2c/(F+B)⌉ on the ranks before a
boundary of delay c.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import one_f_one_b
from scaleacross.schedules.pipeline.action import PipelineSchedule
from scaleacross.schedules.pipeline.shape import too_small

NAME = "Eager1F1B"
refusal = one_f_one_b.refusal_of(NAME)


def generate(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> PipelineSchedule:
    """Return eager 1F1B with 2(p−s)−1 forwards ahead."""
    return with_extra(num_microbatches, [num_ranks - rank - 1 for rank in range(num_ranks)])


def with_extra(num_microbatches: int, extra: Sequence[int]) -> PipelineSchedule:
    """Return 1F1B with ``extra[s]`` more forwards ahead on rank s than the p−s of 1F1B.

    Raises:
        InputError: fewer micro-batches than ranks, a negative extra, or an extra that grows by more than 1 from one
            rank to the next (the rank would run more forwards ahead than the previous one sends).
    """
    p = len(extra)
    if reason := too_small(NAME, p, num_microbatches, 1) or refusal(p, num_microbatches, 1):
        raise InputError(reason)
    for rank, more in enumerate(extra):
        if more < 0 or (rank > 0 and more > extra[rank - 1] + 1):
            raise InputError(
                f"{NAME}: {more} extra forwards on rank {rank}: they must be ≥ 0 and at most one more than on rank {rank - 1}"
            )
    ahead = [p - rank + more for rank, more in enumerate(extra)]
    return one_f_one_b.with_ahead(NAME, num_microbatches, ahead)
