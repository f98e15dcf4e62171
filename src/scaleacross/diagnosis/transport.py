"""Finds the link or rank at which an operation stands still after all members have started it; used by ``waiting``.

The cursors of our runtime show it. If a sender has sent more to a peer than the peer has received, chunks are on that
link. If no chunk is on any link, one rank has received more than it has passed on. Traces without cursors (PyTorch's
own) only name the group, and the ranks on which it did not end while it ended on others.
"""

from __future__ import annotations

from collections.abc import Iterator

from scaleacross.diagnosis.align import Instance
from scaleacross.spec.diagnosis import Fault, Verdict
from scaleacross.spec.trace import Cursor


def stuck_inside(instance: Instance) -> Fault:
    """Return a fault with the link or ranks at which ``instance`` stands still. ``num_victims`` stays 0."""
    pending = sorted(instance.pending)
    if instance.pair is not None:
        text = "rank {} sends and rank {} receives, and nothing arrives".format(*instance.pair)
        return _fault(instance, "stuck_link", instance.pair, text)
    lags = sorted(_lags(instance), key=lambda lag: (lag[0], -lag[1]))
    if lags:
        _, under_way, (source, target), received, expected = lags[0]
        of = f" of {expected}" if expected else ""
        more = f"; {len(lags) - 1} more links have chunks under way" if len(lags) > 1 else ""
        text = (
            f"chunk {received}{of} left rank {source} and did not arrive at rank {target} ({under_way} under way{more})"
        )
        return _fault(instance, "stuck_link", (source, target), text)
    surplus = {
        rank: _surplus(instance.operations[rank].cursors) for rank in pending if instance.operations[rank].cursors
    }
    most = max(surplus.values(), default=0)
    holders = [rank for rank, more in surplus.items() if more == most]
    if len(holders) == 1 and len(surplus) > 1:
        told = sum(cursor.received_chunks for cursor in instance.operations[holders[0]].cursors.values())
        gave = sum(cursor.sent_chunks for cursor in instance.operations[holders[0]].cursors.values())
        text = f"rank {holders[0]} has received {told} chunks and sent {gave}; nothing is under way to it"
        return _fault(instance, "stuck_inside", tuple(holders), text)
    if len(pending) < len(instance.members):
        text = f"ended on {len(instance.members) - len(pending)} of {len(instance.members)} ranks, not on these"
        return _fault(instance, "stuck_inside", tuple(pending), text)
    why = "the cursors of all ranks agree" if surplus else "the trace has no cursor per peer, so no link can be named"
    return _fault(instance, "stuck_inside", tuple(pending), f"all {len(pending)} ranks started it; {why}")


def _lags(instance: Instance) -> Iterator[tuple[float, int, tuple[int, int], int, int]]:
    """Yield (share received, chunks under way, link, received, expected) of links with chunks under way."""
    for source, operation in instance.operations.items():
        for target, cursor in operation.cursors.items():
            other = instance.operations.get(target)
            if other is None or other.state == "completed":
                continue
            back = other.cursors.get(source, Cursor())
            under_way = cursor.sent_chunks - back.received_chunks
            if under_way > 0:
                expected = back.chunks_to_receive or cursor.chunks_to_send
                yield (
                    back.received_chunks / max(expected, 1),
                    under_way,
                    (source, target),
                    back.received_chunks,
                    expected,
                )


def _surplus(cursors: dict[int, Cursor]) -> int:
    return sum(cursor.received_chunks - cursor.sent_chunks for cursor in cursors.values())


def _fault(instance: Instance, verdict: Verdict, ranks: tuple[int, ...], text: str) -> Fault:
    return Fault(
        verdict=verdict,
        ranks=ranks,
        link=(ranks[0], ranks[1]) if verdict == "stuck_link" else None,
        group=instance.group.name,
        sequence=instance.sequence,
        op=next(iter(instance.operations.values())).op,
        num_victims=0,
        since_ns=instance.since_ns,
        explanation=f"{instance.label()}: {text}",
    )
