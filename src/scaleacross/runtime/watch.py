"""Watches the ranks that a group waits for; asks them in a thread of its own while nothing moves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from scaleacross.runtime.callbacks import run_apart
from scaleacross.runtime.faults import PeerLostError
from scaleacross.runtime.liveness import (
    DEAD,
    GAVE_UP,
    HEARTBEAT_S,
    PATIENCE_S,
    SILENT,
    Ask,
    Found,
    Status,
    find,
    seconds_of,
)

logger = logging.getLogger("scaleacross.runtime")


class Watch:
    """What one rank knows about those that hold its group up.

    Args:
        rank, names: own rank; the name of every rank in messages.
        ask: asks one rank; called in a thread of its own.
        wake: wakes the thread of the group up.
    """

    def __init__(self, group: str, rank: int, names: Sequence[str], ask: Ask, wake: Callable[[], object]) -> None:
        self._group, self._rank, self._names, self._ask, self._wake = group, rank, names, ask, wake
        self.heartbeat_s = seconds_of("SCALEACROSS_HEARTBEAT_S", HEARTBEAT_S)
        self._patience_s = seconds_of("SCALEACROSS_PATIENCE_S", PATIENCE_S)
        self._lock = threading.Lock()
        self._sequence = 0
        self._waits_for: tuple[int, ...] = ()
        self._running = False
        self._moved = self._asked = 0.0
        self._asking = False
        self._found: Found | None = None
        self._since = 0.0
        self._named: tuple[int, str] | None = None

    def status(self, waits_for: Sequence[int], reason: str | None) -> Status:
        """Return the status of this rank, for those who ask."""
        running = self._running
        return Status(self._sequence, running, tuple(waits_for) or self._waits_for if running else (), reason)

    def begin(self, sequence: int) -> None:
        """Record that this rank is in collective ``sequence``."""
        self._sequence, self._running, self._waits_for = sequence, True, ()
        self.moved()

    def end(self) -> None:
        """Record that this rank has left the collective."""
        self._sequence, self._running = self._sequence + 1, False

    def moved(self) -> None:
        """Record that something has arrived or left."""
        self._moved = time.monotonic()
        if self._found is not None:
            self._found = self._named = None

    def look(self, waits_for: Callable[[], Sequence[int]]) -> None:
        """Ask if nothing has moved for a heartbeat, and act on what has been found; runs in the thread of the group.

        Raises:
            PeerLostError: a rank is dead, has given up, or has been silent for longer than patience lasts.
        """
        now = time.monotonic()
        if now - max(self._moved, self._asked) >= self.heartbeat_s and not self._asking:
            self._waits_for, self._asked, self._asking = tuple(waits_for()), now, True
            sequence, peers = self._sequence, self._waits_for
            run_apart(lambda: self._inquire(sequence, peers))
        found = self._found
        if found is None:
            return
        text = found.text(self._names)
        if self._named != (found.rank, found.word):
            self._named, self._since = (found.rank, found.word), now
            logger.log(
                logging.WARNING if found.word in SILENT else logging.INFO,
                "group %s, %s, collective %d: %s",
                self._group,
                self._names[self._rank],
                self._sequence,
                text,
            )
        if found.word == GAVE_UP:
            raise PeerLostError(f"{self._names[found.rank]} gave up: {found.reason}", found.reason)
        if found.word == DEAD or (found.word in SILENT and now - self._since >= self._patience_s):
            raise PeerLostError(text)

    def last_words(self, waits_for: Sequence[int]) -> Found | None:
        """Return the rank that holds this one up when the time is over; it is asked now if none has been found."""
        self._waits_for = tuple(waits_for)
        return self._found or find(self._rank, self._sequence, waits_for, self._ask)

    def _inquire(self, sequence: int, waits_for: tuple[int, ...]) -> None:
        """Ask the ranks; runs in a thread of its own."""
        try:
            found = find(self._rank, sequence, waits_for, self._ask)
            # an answer that is older than the last movement is no longer true
            if self._running and self._sequence == sequence and self._moved <= self._asked:
                self._found = found
        finally:
            self._asking = False
        self._wake()
