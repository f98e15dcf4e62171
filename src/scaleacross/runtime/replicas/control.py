"""A rank's connection to the coordinator, with two threads that read and send, apart from the path of the gradients."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from scaleacross.runtime.faults import CollectiveError, PeerLostError
from scaleacross.runtime.replicas.membership import BEATS_PER_SILENCE, Epoch, Place

CONNECT_S: Final = 60.0


class LeftBehindError(PeerLostError):
    """This replica is no member any more: the others go on without it. Join again, as a new replica of that name."""


class Control:
    """What the coordinator has told this rank.

    Args:
        address: ``host:port`` of the coordinator.
        silent_s: a coordinator that says nothing for twice as long is lost.
        voided: called with every new epoch, and when this replica is out or the coordinator lost; in the reading thread
            or the one that sends beats.
        donate: called with (joiner, contact).
    """

    def __init__(
        self,
        address: str,
        place: Place,
        silent_s: float,
        voided: Callable[[Epoch], None],
        donate: Callable[[str, str], None],
    ) -> None:
        host, _, port = address.rpartition(":")
        self.place, self._voided, self._donate = place, voided, donate
        self._silent_s = silent_s
        self.news = threading.Condition()
        self.epochs: list[Epoch] = []
        self.committed: tuple[int, int] = (-1, 0)
        self.gone: str | None = None
        self._met: dict[int, dict[int, str]] = {}
        self._writing = threading.Lock()
        self._connection = self._connect(host, int(port))
        self._heard = time.monotonic()

    def begin(self, hello: dict[str, Any]) -> None:
        """Send ``hello`` and start both threads; from now on other ranks may connect."""
        self.say(hello)
        for work in (self._hear, self._beat):
            threading.Thread(target=work, name=f"scaleacross-{work.__name__}", daemon=True).start()

    def say(self, what: dict[str, Any]) -> None:
        """Send a message. The reading thread notices if the coordinator is lost."""
        with suppress(OSError), self._writing:
            self._connection.sendall(json.dumps(what).encode() + b"\n")

    def epoch_at(self, step: int) -> Epoch | None:
        """Return the epoch in force at ``step``, as far as it is known; None if none is."""
        return max((epoch for epoch in self.epochs if epoch.begins <= step), default=None)

    def contact(self, epoch: int, rank: int) -> str | None:
        """Return how ``rank`` of the group of ``epoch`` is reached; None if that is not known yet."""
        return self._met.get(epoch, {}).get(rank)

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until ``until()`` holds.

        Raises:
            LeftBehindError: this replica is out.
            CollectiveError: the coordinator is lost.
        """
        with self.news:
            self.news.wait_for(lambda: until() or self.gone is not None)
            if self.gone is not None and not until():
                raise (LeftBehindError if self.gone.startswith("replica") else CollectiveError)(self.gone)

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _connect(self, host: str, port: int) -> socket.socket:
        end = time.monotonic() + CONNECT_S
        while True:
            try:
                connection = socket.create_connection((host, port), timeout=CONNECT_S)
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
            except OSError as error:
                if time.monotonic() > end:
                    raise CollectiveError(
                        f"no coordinator at {host}:{port} within {CONNECT_S:.0f} s: {error.strerror or error}. "
                        "Start one: scaleacross coordinate"
                    ) from None
                time.sleep(0.1)

    def _hear(self) -> None:
        with suppress(OSError, ValueError):
            for line in self._connection.makefile("rb"):
                self._heard = time.monotonic()
                self._take(json.loads(line))
        with self.news:
            self.gone = self.gone or "the coordinator is lost: it has closed the connection"
            self.news.notify_all()
        self._voided(Epoch(1 << 62, (), 0))

    def _take(self, letter: dict[str, Any]) -> None:
        if "donate" in letter:
            self._donate(letter["donate"], letter["contact"])
            return
        new = None
        with self.news:
            if "epoch" in letter:
                new = Epoch(letter["epoch"], tuple(letter["members"]), letter["begins"])
                self.epochs = [*self.epochs[-8:], new]
            elif "commit" in letter:
                self.committed = letter["commit"], letter["samples"]
            elif "met" in letter:
                epoch, rank, contact = letter["met"]
                self._met.setdefault(epoch, {})[rank] = contact
                for old in [old for old in self._met if old < epoch - 8]:
                    del self._met[old]
            elif "gone" in letter:
                self.gone = letter["gone"]
            self.news.notify_all()
        if new is not None:
            self._voided(new)
        elif self.gone is not None:
            self._voided(Epoch(1 << 62, (), 0))

    def _beat(self) -> None:
        while self.gone is None:
            time.sleep(self._silent_s / BEATS_PER_SILENCE)
            self.say({"beat": 1})
            if time.monotonic() - self._heard > 2 * self._silent_s:
                with self.news:
                    self.gone = f"the coordinator is lost: it has said nothing for {2 * self._silent_s:.1f} s"
                    self.news.notify_all()
                self._voided(Epoch(1 << 62, (), 0))
