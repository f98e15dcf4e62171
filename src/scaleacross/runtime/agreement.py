"""The protocol by which ranks agree at the start, without sockets or torch: a token goes round a ring of them twice.

Each rank publishes one address and reads that of its successor. The first lap finds out whether all ranks are there and
have the same launch file; the second tells them. The protocol is a generator of steps. So the same code runs over
sockets (``start``) and for 65,536 ranks in one process (``benchmarks/start_scale.py``).
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Final, NamedTuple

RING: Final = "start"


class Publish(NamedTuple):
    """Store operation: set ``key``."""

    key: str
    value: str


class Look(NamedTuple):
    """Store operation: wait for ``key``; the answer is its value."""

    key: str


class Pass(NamedTuple):
    """Send the token to the successor, whose contact was looked up before."""

    token: Token


class Take(NamedTuple):
    """Receive from the predecessor; the answer is a ``Token``."""


class Token(NamedTuple):
    """What goes round: digest of rank 0's launch file, ranks that have seen it, and the first with another digest."""

    digest: str
    seen: int
    stranger: int | None

    def to_bytes(self) -> bytes:
        """Return the token as one line."""
        return json.dumps(self).encode() + b"\n"

    @classmethod
    def from_bytes(cls, line: bytes) -> Token:
        """Read what ``to_bytes`` writes. Raises ValueError for anything else."""
        digest, seen, stranger = json.loads(line)
        if not isinstance(digest, str) or not isinstance(seen, int) or not isinstance(stranger, int | None):
            raise ValueError(f"no token: {line[:80]!r}")
        return cls(digest, seen, stranger)


Step = Publish | Look | Pass | Take


def ring_agreement(rank: int, world_size: int, digest: str, contact: str) -> Generator[Step, str | Token | None, Token]:
    """Yield the steps of ``rank``: two store operations, and one message to its successor in each of two laps.

    Args:
        digest: digest of what all ranks must have in common.
        contact: how this process is reached.

    Returns:
        the token after the first lap: ``stranger`` is None if all ranks have rank 0's digest.
    """
    if world_size == 1:
        return Token(digest, 1, None)
    yield Publish(f"{RING}/{rank}", contact)
    yield Look(f"{RING}/{(rank + 1) % world_size}")
    if rank == 0:
        yield Pass(Token(digest, 1, None))
        verdict = expect_token((yield Take()))
        yield Pass(verdict)
        yield Take()
        return verdict
    token = expect_token((yield Take()))
    stranger = rank if token.stranger is None and token.digest != digest else token.stranger
    yield Pass(Token(token.digest, token.seen + 1, stranger))
    verdict = expect_token((yield Take()))
    yield Pass(verdict)
    return verdict


def expect_token(answer: str | Token | None) -> Token:
    """Return ``answer``, which must be a token. Raises TypeError if whoever runs the steps gave something else."""
    if not isinstance(answer, Token):
        raise TypeError(f"a token is expected, got {answer!r}")
    return answer
