"""Segments: the flows of a collective, consecutive or merged into one flow of pipelined chunks; used by ``calls``."""

from __future__ import annotations

from typing import Final, NamedTuple


class Segment(NamedTuple):
    """One flow: bytes of progress along loaded links, then a fixed time.

    Attributes:
        amount: bytes of progress.
        load: (link class, bytes per byte of progress) of the groups of a class.
        cap_bytes_per_s: largest rate of progress.
        fixed_s: seconds from the last byte to the arrival.
        crowd: (link, busy seconds per byte of progress) while all groups of the axis run the same flow.
    """

    amount: float
    load: tuple[tuple[int, float], ...]
    cap_bytes_per_s: float
    fixed_s: float
    crowd: tuple[tuple[int, float], ...] = ()

    @property
    def moving_s(self) -> float:
        """Seconds of its progress while all groups of the axis run the same flow."""
        return self.amount * max(1 / self.cap_bytes_per_s, *(busy for _, busy in self.crowd), 0.0)


class CrossingMessages(NamedTuple):
    """Consecutive messages of a chunk across the outermost level.

    Attributes:
        number: messages of one chunk.
        latency_s: latency of each.
        sending_s: seconds that the bytes of all chunks take in one message's place.
    """

    number: float = 1
    latency_s: float = 0.0
    sending_s: float = 0.0


ALONE: Final = CrossingMessages()


def piped(
    phases: list[Segment], num_chunks: int, crossing: CrossingMessages = ALONE, messages_s: float = 0.0
) -> Segment:
    """Return ``phases`` as one flow of pipelined chunks.

    The flow loads all links at once, so the busiest resource determines its time. The first chunk adds its time on all
    other resources. A link that several phases use is busy for all of them: their chunks take turns on it.

    Args:
        crossing: messages across the outermost level. All but one latency overlap with other chunks, as far as these have
            bytes.
        messages_s: overhead of the messages of every further chunk.
    """
    whole = sum(phase.amount for phase in phases)
    shares = [phase.amount / whole for phase in phases]
    load, crowd = _added([phase.load for phase in phases], shares), _added([phase.crowd for phase in phases], shares)
    cap = min(phase.cap_bytes_per_s / share for phase, share in zip(phases, shares, strict=True))
    together = Segment(whole, load, cap, sum(phase.fixed_s for phase in phases), crowd)
    rest = sum(phase.moving_s for phase in phases) - together.moving_s
    hidden = (crossing.number - 1) * min(crossing.latency_s, crossing.sending_s * (num_chunks - 1) / num_chunks)
    fixed = together.fixed_s + rest / num_chunks + (num_chunks - 1) * messages_s - hidden
    return together._replace(fixed_s=fixed)


def _added(parts: list[tuple[tuple[int, float], ...]], shares: list[float]) -> tuple[tuple[int, float], ...]:
    total: dict[int, float] = {}
    for part, share in zip(parts, shares, strict=True):
        for link, weight in part:
            total[link] = total.get(link, 0.0) + weight * share
    return tuple(total.items())


def in_a_row(first: Segment, second: Segment) -> Segment | None:
    """Return two consecutive flows over the same single link as one; None where they cannot be merged.

    It serves measured collectives of a domain, which load one port and have no fixed time.
    """
    if len(first.load) != 1 or len(second.load) != 1 or first.load[0][0] != second.load[0][0]:
        return None
    if first.fixed_s or second.fixed_s:
        return None
    link, amount = first.load[0][0], first.amount + second.amount
    used = first.load[0][1] * first.amount + second.load[0][1] * second.amount
    seconds = first.amount / first.cap_bytes_per_s + second.amount / second.cap_bytes_per_s
    return Segment(amount, ((link, used / amount),), amount / seconds, 0.0)
