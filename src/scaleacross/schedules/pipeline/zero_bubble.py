"""Zero-bubble schedules in a line: weight gradients run where 1F1B has bubbles (Qi et al., arXiv 2401.10241).

Rank s runs ``ahead`` forwards, then alternates one input gradient and one forward. Weight gradients follow their input
gradients with a lag of ``lag`` input gradients, so that a rank always holds ahead + lag activations:

* ZBH1: p−s ahead, lag s: p activations on every rank, a bubble of (p−1)(F+I−W).
* ZBH2: 2(p−s)−1 ahead, lag 2s: 2p−1 activations, (p−1)(F+I−2W), nothing if F = I = W. Ranks start and end one after
  the other, so an optimizer that waits for all of them adds the skew (p−1)·F.
* InterleavedZeroBubble: ZBH1 over v chunks in the rounds of Interleaved1F1B, as PyTorch's ScheduleInterleavedZeroBubble.
"""

from __future__ import annotations

from collections.abc import Callable

from scaleacross.schedules.pipeline import interleaved_1f1b
from scaleacross.schedules.pipeline.action import Action, Kind, PipelineSchedule
from scaleacross.schedules.pipeline.shape import one_chunk

H1, H2, INTERLEAVED = "ZBH1", "ZBH2", "InterleavedZeroBubble"
h1_refusal = one_chunk(H1, instead=INTERLEAVED, least=lambda num_ranks: num_ranks)
h2_refusal = one_chunk(H2, instead=INTERLEAVED, least=lambda num_ranks: 2 * num_ranks - 1)


def interleaved_refusal(num_ranks: int, num_microbatches: int, num_chunks: int) -> str | None:
    """Return why InterleavedZeroBubble cannot run this shape, or None; the rules are those of Interleaved1F1B."""
    return interleaved_1f1b.refusal(num_ranks, num_microbatches, num_chunks, INTERLEAVED, flat=H1)


def generate_h1(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> PipelineSchedule:
    """Return the ZBH1 schedule."""
    return _in_a_line(H1, num_ranks, num_microbatches, lambda rank: num_ranks - rank, lambda rank: rank)


def generate_h2(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> PipelineSchedule:
    """Return the ZBH2 schedule."""
    return _in_a_line(H2, num_ranks, num_microbatches, lambda rank: 2 * (num_ranks - rank) - 1, lambda rank: 2 * rank)


def generate_interleaved(num_ranks: int, num_microbatches: int, num_chunks: int) -> PipelineSchedule:
    """Return the interleaved zero-bubble schedule, in the order of PyTorch."""
    p, m, v = num_ranks, num_microbatches, num_chunks
    visits = interleaved_1f1b.visits(p, m, v)
    per_round = interleaved_1f1b.microbatches_per_round(p, m)
    rows = []
    for rank in range(p):
        ahead = min(m * v, (v - 1) * per_round + p - 1 - rank)
        rows.append(_row(visits, [(i, v - 1 - chunk) for i, chunk in visits], ahead + 1, rank))
    return PipelineSchedule(INTERLEAVED, p, m, v, tuple(rows))


def _in_a_line(
    name: str, num_ranks: int, num_microbatches: int, ahead: Callable[[int], int], lag: Callable[[int], int]
) -> PipelineSchedule:
    """Return a schedule of one chunk per rank from each rank's ``ahead`` and ``lag``."""
    visits = [(i, 0) for i in range(num_microbatches)]
    rows = tuple(_row(visits, visits, ahead(rank), lag(rank)) for rank in range(num_ranks))
    return PipelineSchedule(name, num_ranks, num_microbatches, 1, rows)


def _row(forwards: list[tuple[int, int]], backwards: list[tuple[int, int]], ahead: int, lag: int) -> tuple[Action, ...]:
    """Return ``ahead`` forwards, then in turn an input gradient, the weight gradient ``lag`` before it, a forward."""
    row = [Action(Kind.F, *visit) for visit in forwards[:ahead]]
    for at, visit in enumerate(backwards):
        row.append(Action(Kind.I, *visit))
        if at >= lag:
            row.append(Action(Kind.W, *backwards[at - lag]))
        row.extend(Action(Kind.F, *forward) for forward in forwards[ahead + at : ahead + at + 1])
    row.extend(Action(Kind.W, *visit) for visit in backwards[max(0, len(backwards) - lag) :])
    return tuple(row)
