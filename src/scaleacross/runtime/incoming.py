"""The receiving end of a link: reads segments, passes them to the running collective, returns credit; never waits."""

from __future__ import annotations

import mmap
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import torch

from scaleacross.runtime.faults import CollectiveError, PeerLostError
from scaleacross.runtime.wire import (
    ABORT,
    GOODBYE,
    HEADER_BYTES,
    INLINE,
    MAX_REASON_BYTES,
    SEGMENT,
    Header,
    pack_credit,
    unpack,
)

CREDITS_PER_WINDOW: Final = 4
"""Number of portions in which the credit of a window goes back."""
STAGED_BYTES: Final = 32 << 10
"""Payloads up to this are read together with their header, larger ones directly into their place."""


class Incoming:
    """The receiving end of the link from one peer.

    Attributes:
        parked: header of a segment that belongs to a later collective; nothing is read until that runs.
        is_watched: whether the selector tells the communicator when there is something to read.
    """

    def __init__(
        self, peer: int, name: str, connection: socket.socket, memory: mmap.mmap | None, window_bytes: int
    ) -> None:
        connection.setblocking(False)
        self._portion_bytes = window_bytes // CREDITS_PER_WINDOW
        self.peer, self.name, self.connection = peer, name, connection
        self.memory = None if memory is None else torch.frombuffer(memory, dtype=torch.uint8)
        self._bytes = memoryview(b"" if memory is None else memory)
        self.closed = self.is_watched = False
        self.parked: Header | None = None
        self.received_bytes = 0
        self._stage = memoryview(bytearray(HEADER_BYTES + STAGED_BYTES))
        self._at = self._end = 0
        self._most = HEADER_BYTES + STAGED_BYTES
        self._drained = False
        self._header: Header | None = None
        self._payload: torch.Tensor | None = None
        self._target: memoryview | None = None
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._owed = 0

    def read(
        self,
        wanted: Callable[[int, Header], bool],
        place: Callable[[int, Header], memoryview | None],
        take: Callable[[int, Header, torch.Tensor | None], None],
    ) -> None:
        """Read segments until there are no more, or until one is not wanted yet (it stays ``parked``).

        Args:
            wanted: (peer, header) -> whether its collective runs now.
            place: (peer, header) -> memory that a payload may be read into, or None.
            take: (peer, header, payload as uint8); the payload is valid only during the call, and None if it is in
                ``place``.

        Raises:
            PeerLostError: the peer gave up. A connection that ends between segments only sets ``closed``.
            CollectiveError: the stream is out of step.
        """
        self._drained = False
        while not self.closed:
            header = self._header
            if header is None:
                header = self.parked or self._read_header()
                if header is None:
                    return
                if header.kind == SEGMENT and not wanted(self.peer, header):
                    self.parked = header
                    return
                self.parked = None
                self._begin(header, place)
            if not self._read_payload():
                return
            payload = self._payload
            self._header = self._payload = self._target = None
            if header.kind == ABORT and payload is not None:
                self.closed = True
                reason = payload.numpy().tobytes().decode(errors="replace")
                raise PeerLostError(f"{self.name} gave up: {reason}", reason)
            self.received_bytes += header.num_bytes
            take(self.peer, header, payload)
            self._give_back(header.used_bytes)

    def abort(self, reason: str) -> None:
        """Tell the sender that nothing more is accepted, as far as the socket takes it."""
        with suppress(OSError):
            self.connection.send(pack_credit(GOODBYE) + reason.encode()[:MAX_REASON_BYTES])
            self.connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection. The outstanding credit tells the sender that everything was accepted."""
        if self._owed and not self.closed:
            with suppress(OSError):
                self.connection.send(pack_credit(self._owed))
        self.closed = True
        self.connection.close()

    def _give_back(self, used_bytes: int) -> None:
        """Return credit in portions, because each of them wakes the sender up."""
        self._owed += used_bytes
        if self._owed >= self._portion_bytes:
            with suppress(OSError):  # whoever hung up needs no credit
                self.connection.send(pack_credit(self._owed))
                self._owed = 0

    def _read_header(self) -> Header | None:
        while self._end - self._at < HEADER_BYTES:
            if self._at:  # a header is read in one piece
                self._stage[: self._end - self._at] = bytes(self._stage[self._at : self._end])
                self._at, self._end = 0, self._end - self._at
            count = self._receive(self._stage[self._end : self._most])
            if count == 0:
                return None
            self._end += count
        header = unpack(self._stage, self._at)
        self._at += HEADER_BYTES
        is_large = header.place == INLINE and header.num_bytes > STAGED_BYTES  # and so will the next one be
        self._most = HEADER_BYTES if is_large else len(self._stage)
        return header

    def _begin(self, header: Header, place: Callable[[int, Header], memoryview | None]) -> None:
        self._header = header
        if header.kind == ABORT and header.num_bytes > MAX_REASON_BYTES:
            raise CollectiveError(f"{self.name}: a reason of {header.num_bytes} bytes")
        direct = place(self.peer, header) if header.kind == SEGMENT and header.num_bytes else None
        if direct is not None and len(direct) != header.num_bytes:
            direct = None  # whoever takes it says what is wrong
        if header.place != INLINE:
            end = header.place + header.num_bytes
            if self.memory is None or end > self.memory.numel():
                raise CollectiveError(f"{self.name}: a payload up to byte {end} of memory that is not shared")
            if direct is None:
                self._payload = self.memory[header.place : end]
            else:
                direct[:] = self._bytes[header.place : end]
            return
        if direct is not None:
            self._target = direct
            return
        if self._scratch.numel() < header.num_bytes:
            self._scratch = torch.empty(header.num_bytes, dtype=torch.uint8)
        self._payload = self._scratch[: header.num_bytes]
        self._target = memoryview(self._payload.numpy())

    def _read_payload(self) -> bool:
        """Read the payload as far as it is there. Return whether it is complete."""
        target = self._target
        if target is None or not len(target):
            return True
        staged = min(self._end - self._at, len(target))
        if staged:
            target[:staged] = self._stage[self._at : self._at + staged]
            self._at += staged
            target = target[staged:]
        while len(target):
            count = self._receive(target)
            if count == 0:
                self._target = target
                return False
            target = target[count:]
        return True

    def _receive(self, into: memoryview) -> int:
        """Return the bytes read; 0 if there are none now or the stream ended."""
        if self._drained:
            return 0
        try:
            count = self.connection.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError:
            count = 0
        self.closed = count == 0
        # a short read means that the socket is empty: another call would only fail
        self._drained = count < len(into)
        return count
