"""Flows of a collective, one after another or chunk by chunk through several phases."""

from __future__ import annotations

from typing import NamedTuple


class Segment(NamedTuple):
    """One flow: bytes of progress along loaded links, then a fixed time; ``common_bytes_per_s``: its rate while all groups of its
    axis do the same."""

    amount: float
    load: tuple[tuple[int, float], ...]
    cap_bytes_per_s: float
    fixed_s: float
    common_bytes_per_s: float


def piped(phases: list[Segment], num_chunks: int) -> Segment:
    """Phases whose chunks follow one another: all links at once, and the first chunk through the other phases."""
    alone = [phase.amount / phase.common_bytes_per_s for phase in phases]
    whole = sum(phase.amount for phase in phases)
    load: dict[int, float] = {}
    for phase in phases:
        for link, weight in phase.load:
            load[link] = load.get(link, 0.0) + weight * phase.amount / whole
    fixed = sum(phase.fixed_s for phase in phases) + (sum(alone) - max(alone)) / num_chunks
    cap = min(phase.cap_bytes_per_s * whole / phase.amount for phase in phases)
    common = min(phase.common_bytes_per_s * whole / phase.amount for phase in phases)
    return Segment(whole, tuple(load.items()), cap, fixed, common)


def in_a_row(first: Segment, second: Segment) -> Segment | None:
    """Two flows over the same single link, one after the other, as one: measured collectives of a domain."""
    if len(first.load) != 1 or len(second.load) != 1 or first.load[0][0] != second.load[0][0]:
        return None
    if first.fixed_s or second.fixed_s:
        return None
    link, amount = first.load[0][0], first.amount + second.amount
    used = first.load[0][1] * first.amount + second.load[0][1] * second.amount
    seconds = first.amount / first.cap_bytes_per_s + second.amount / second.cap_bytes_per_s
    return Segment(amount, ((link, used / amount),), amount / seconds, 0.0, amount / seconds)
