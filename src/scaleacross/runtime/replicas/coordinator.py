"""Serves ``Membership``: one connection per rank, one JSON object per line, apart from the path of the gradients.

A rank begins with the job's token. A connection that ends means that its rank is dead, since the kernel closes those of
a killed process at once. Contacts of a group's members pass through here, so a group forms without any other store.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

from scaleacross.errors import InputError
from scaleacross.runtime.replicas.membership import Letter, Membership, Place

TOKEN_VARIABLE: Final = "SCALEACROSS_REPLICAS_TOKEN"
TICK_S: Final = 0.05
MAX_LINE_BYTES: Final = 1 << 16
HELLO_S: Final = 10.0


class Coordinator:
    """The server.

    Args:
        membership: decides.
        token: what every rank must know; empty: anybody who can connect is a rank.
        log: receives the events, one JSON object per line.
    """

    def __init__(self, membership: Membership, token: str = "", log: TextIO | None = None) -> None:
        self._membership, self._token, self._log = membership, token, log
        self._writers: dict[Place, asyncio.StreamWriter] = {}
        self._contacts: dict[tuple[int, int], dict[int, str]] = {}

    async def serve(self, host: str, port: int, ready: Callable[[int], None] = lambda port: None) -> None:
        """Serve until cancelled; ``ready`` is called with the port. Raises InputError if nobody can listen there."""
        try:
            server = await asyncio.start_server(self._talk, host, port, limit=MAX_LINE_BYTES)
        except OSError as error:
            raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        ready(server.sockets[0].getsockname()[1])
        async with server:
            while True:
                await asyncio.sleep(TICK_S)
                self._post(self._membership.tick(time.time()))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = None
        try:
            said = json.loads(await asyncio.wait_for(reader.readline(), HELLO_S))
            if not hmac.compare_digest(str(said["token"]).encode(), self._token.encode()):
                return
            place = Place(str(said["replica"]), int(said["shard"]))
            if not 0 <= place.shard < self._membership.shards:
                return
            arrived = self._membership.hello(place, int(said["step"]), time.time(), said["near"], said["contact"])
            if place in self._writers:
                self._writers.pop(place).close()
            self._writers[place] = writer
            self._post(arrived, new=place)
            while line := await reader.readline():
                self._post(self._hear(place, json.loads(line)))
        except (OSError, ValueError, KeyError, TypeError, asyncio.IncompleteReadError):
            pass  # who says what nobody understands is gone
        finally:
            if place is not None and self._writers.get(place) is writer:
                del self._writers[place]
                self._post(self._membership.lost([place.replica], "dead", time.time()))
            writer.close()

    def _hear(self, place: Place, said: dict[str, Any]) -> list[Letter]:
        membership, now = self._membership, time.time()
        membership.heard(place, now)
        if "done" in said:
            epoch, step, samples = map(int, said["done"])
            return membership.done(place, epoch, step, samples, now)
        if "failed" in said:
            epoch, step, why = said["failed"]
            return membership.failed(place, int(epoch), int(step), str(why), now)
        if "level" in said:
            return membership.level(place, int(said["level"]), now)
        if "donor_lost" in said:
            return membership.donor_lost(place, now)
        if "leave" in said:
            return membership.lost([place.replica], "left", now)
        if "contact" in said:
            epoch, rank, contact = said["contact"]
            return self._introduce(place, int(epoch), int(rank), str(contact))
        return [(place, {"beat": 1})]

    def _introduce(self, place: Place, epoch: int, rank: int, contact: str) -> list[Letter]:
        """Tell the other members of a group how this one is reached, and this one how they are reached."""
        key = epoch, place.shard
        known = self._contacts.setdefault(key, {})
        known[rank] = contact
        for old in [old for old in self._contacts if old[0] < epoch - 8]:
            del self._contacts[old]
        others = [other for other in self._writers if other.shard == place.shard and other != place]
        return [
            *((other, {"met": [epoch, rank, contact]}) for other in others),
            *((place, {"met": [epoch, other, text]}) for other, text in known.items() if other != rank),
        ]

    def _post(self, letters: list[Letter], new: Place | None = None) -> None:
        """Send letters, and write the events to the log."""
        for place, letter in letters:
            writer = self._writers.get(place)
            if writer is not None and not ("gone" in letter and place == new):
                writer.write(json.dumps(letter).encode() + b"\n")
        for event in self._membership.history:
            if self._log is not None:
                with contextlib.suppress(OSError):  # a full disk ends no training
                    self._log.write(json.dumps(event) + "\n")
                    self._log.flush()
        self._membership.history.clear()


def run(
    membership: Membership, host: str, port: int, token: str, log: Path | None, ready: Callable[[int], None]
) -> None:
    """Serve until interrupted. Raises InputError if the log cannot be written or nobody can listen."""
    try:
        with contextlib.ExitStack() as stack:
            file = None if log is None else stack.enter_context(log.open("a", encoding="utf-8"))
            asyncio.run(Coordinator(membership, token, file).serve(host, port, ready))
    except OSError as error:
        raise InputError(f"{log}: {error.strerror or error}") from None
