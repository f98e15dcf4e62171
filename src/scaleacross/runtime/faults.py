"""Errors of running collectives. Every message names the group, the rank and the way out."""

from __future__ import annotations

from scaleacross.errors import ScaleAcrossError


class CollectiveError(ScaleAcrossError, RuntimeError):
    """A collective cannot end. It is a ``RuntimeError`` too, as training frameworks expect of a backend."""


class MismatchError(CollectiveError):
    """Two ranks do not run the same collective: operation, size, type, algorithm or order differ."""


class PeerLostError(CollectiveError):
    """The connection to a rank broke, or a rank gave up.

    Attributes:
        reason: what the rank said when it gave up; it is passed on unchanged, so that every rank names the first cause.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class CollectiveTimeoutError(CollectiveError):
    """The time limit ended; the message says which messages are missing."""
