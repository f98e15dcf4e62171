"""The sending end of a link: cuts messages into segments and keeps at most a window of them in flight.

It never waits: the communicator asks it to go on when the selector says that it can.
"""

from __future__ import annotations

import mmap
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import torch

from scaleacross.runtime.encoding import GRAIN, Encoding
from scaleacross.runtime.faults import PeerLostError
from scaleacross.runtime.wire import (
    CREDIT_BYTES,
    GOODBYE,
    INLINE,
    MAX_REASON_BYTES,
    SEGMENT,
    Header,
    Identity,
    pack,
    pack_abort,
    unpack_credit,
)

ALIGNMENT: Final = 64
MAX_BUFFERS_PER_CALL: Final = 32
SEGMENTS_PER_WINDOW: Final = 6
"""A segment takes up to twice its size where it skips the end of the ring, and a receiver may owe one portion of credit
(``incoming.CREDITS_PER_WINDOW``): 2/6 + 1/4 < 1, so a sender that has nothing on the way always has room for the next segment."""
SMALL_BYTES: Final = 2048
"""Payloads up to this follow their header in the stream: cheaper than the shared memory."""


class Outbound:
    """A message on its way out: where its elements lie, and what to call (with its bytes) when all of it has left."""

    def __init__(
        self,
        identity: Identity,
        channel: int,
        ordinal: int,
        pieces: list[torch.Tensor],
        encoding: Encoding,
        left: Callable[[int], None],
    ) -> None:
        self.identity, self.channel, self.ordinal = identity, channel, ordinal
        self.pieces, self.encoding, self.left = pieces, encoding, left
        self.num_bytes = sum(encoding.num_bytes(piece.numel()) for piece in pieces)

    def segments(self, limit_bytes: int) -> Iterator[torch.Tensor]:
        """Values of at most ``limit_bytes`` each; one empty segment where there are none."""
        if not self.num_bytes:
            yield torch.empty(0, dtype=torch.uint8)
            return
        for piece in self.pieces:
            per_grain = self.encoding.num_bytes(GRAIN)
            most = max(limit_bytes // per_grain, 1) * GRAIN
            yield from piece.split(most) if piece.numel() > most else (piece,)


class Outgoing:
    """Segments to one peer."""

    def __init__(
        self, peer: int, name: str, connection: socket.socket, memory: mmap.mmap | None, window_bytes: int, segment: int
    ) -> None:
        connection.setblocking(False)
        self.peer, self.name, self.connection = peer, name, connection
        self.memory = torch.empty(0) if memory is None else torch.frombuffer(memory, dtype=torch.uint8)
        self.ring_bytes = self.memory.numel()
        self.window_bytes = min(window_bytes, self.ring_bytes) if self.ring_bytes else window_bytes
        self.segment_bytes = max(min(segment, self.window_bytes // SEGMENTS_PER_WINDOW), ALIGNMENT)
        self.in_flight = 0
        self.head = 0
        self.sent_bytes = 0
        self._queue: deque[Outbound] = deque()
        self._segments: Iterator[torch.Tensor] | None = None
        self._next: torch.Tensor | None = None
        self._out: deque[tuple[memoryview, Outbound | None]] = deque()
        self._credit = bytearray()

    def post(self, message: Outbound) -> None:
        """Queue a message; messages leave in this order."""
        self._queue.append(message)

    @property
    def idle(self) -> bool:
        """Nothing queued and nothing half sent."""
        return not self._queue and not self._out

    def pump(self) -> bool:
        """Send what can be sent now.

        Returns:
            whether the socket is full, so that it must say when it can be written again.

        Raises:
            PeerLostError: the connection broke.
        """
        while True:
            while len(self._out) < MAX_BUFFERS_PER_CALL and self._prepare():
                pass
            if not self._out:
                return False
            if not self._flush():
                return True

    def read_credit(self) -> None:
        """Take the credit that has come back. Raises PeerLostError where the peer hung up or gave up."""
        try:
            data = self.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise PeerLostError(f"{self.name} closed the connection")
        self._credit += data
        while len(self._credit) >= CREDIT_BYTES:
            credit = unpack_credit(self._credit[:CREDIT_BYTES])
            if credit == GOODBYE:
                reason = bytes(self._credit[CREDIT_BYTES:])[:MAX_REASON_BYTES].decode(errors="replace")
                raise PeerLostError(f"{self.name} gave up: {reason}", reason)
            self.in_flight -= credit
            del self._credit[:CREDIT_BYTES]

    def abort(self, reason: str) -> None:
        """Tell the peer, as far as the socket takes it, that nothing more comes."""
        with suppress(OSError):
            if not self._out:  # in the middle of a segment nothing can be said
                self.connection.send(pack_abort(reason))
            self.connection.shutdown(socket.SHUT_WR)  # not closed: that could take back what was said

    def close(self) -> None:
        """Drop the connection and everything queued."""
        self._queue.clear()
        self._out.clear()
        self._segments = self._next = None
        self.connection.close()

    def _prepare(self) -> bool:
        """Put the next segment of the queue into the stream, if the window has room for it."""
        if not self._queue:
            return False
        message = self._queue[0]
        if self._segments is None:
            self._segments = message.segments(self.segment_bytes)
            self._next = next(self._segments)
        values = self._next
        if values is None:
            return False
        size = message.encoding.num_bytes(values.numel())
        shared = bool(self.ring_bytes) and size > SMALL_BYTES
        place, used = self._allocate(size) if shared else (INLINE, size)
        if self.in_flight and self.in_flight + used > self.window_bytes:
            return False
        self.in_flight += used
        self.sent_bytes += size
        self._next = next(self._segments, None)
        done = message if self._next is None else None
        if done is not None:
            self._queue.popleft()
            self._segments = None
        self._emit(message, values, size, place, used, done)
        return True

    def _emit(
        self, message: Outbound, values: torch.Tensor, size: int, place: int, used: int, done: Outbound | None
    ) -> None:
        identity = message.identity
        head = pack(
            Header(
                SEGMENT,
                identity.sequence,
                identity.code,
                identity.num_elements,
                message.channel,
                message.ordinal,
                message.num_bytes,
                size,
                place,
                used,
            )
        )
        if place != INLINE:
            message.encoding.write(values, self.memory[place : place + size])
            self.head += used
            self._out.append((memoryview(head), done))
            return
        payload = message.encoding.bytes_of(values)
        if payload is None:
            payload = torch.empty(size, dtype=torch.uint8)
            message.encoding.write(values, payload)
        if size <= SMALL_BYTES:
            self._out.append((memoryview(head + payload.numpy().tobytes()), done))
        else:
            self._out.append((memoryview(head), None))
            self._out.append((memoryview(payload.numpy()), done))

    def _allocate(self, size: int) -> tuple[int, int]:
        """(place, bytes used including what is skipped at the end of the ring and for alignment)."""
        padded = -(-size // ALIGNMENT) * ALIGNMENT
        place = self.head % self.ring_bytes
        if place + padded > self.ring_bytes:
            return 0, padded + self.ring_bytes - place
        return place, padded

    def _flush(self) -> bool:
        """Hand buffers to the kernel; False if it takes no more."""
        try:
            taken = self.connection.sendmsg([buffer for buffer, _ in self._first_buffers()])
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error) from None
        while self._out:
            buffer, done = self._out[0]
            if taken < len(buffer):
                if taken:
                    self._out[0] = (buffer[taken:], done)
                break
            taken -= len(buffer)
            self._out.popleft()
            if done is not None:
                done.left(done.num_bytes)
        return True

    def _first_buffers(self) -> Iterator[tuple[memoryview, Outbound | None]]:
        for index, entry in enumerate(self._out):
            if index == MAX_BUFFERS_PER_CALL:
                return
            yield entry

    def _lost(self, error: OSError) -> PeerLostError:
        return PeerLostError(f"the connection to {self.name} broke: {error.strerror or error}")
