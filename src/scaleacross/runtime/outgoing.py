"""The sending end of a link. It cuts messages into segments and keeps at most a window of bytes in flight.

It never waits: the communicator calls ``pump`` when the selector says that the link can go on.
"""

from __future__ import annotations

import mmap
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import torch

from scaleacross.runtime.engine import Outbound
from scaleacross.runtime.faults import PeerLostError
from scaleacross.runtime.messages import Piece
from scaleacross.runtime.wire import (
    CREDIT_BYTES,
    GOODBYE,
    INLINE,
    MAX_REASON_BYTES,
    pack_abort,
    pack_segment,
    unpack_credit,
)

ALIGNMENT: Final = 64
MAX_BUFFERS_PER_CALL: Final = 32
SEGMENTS_PER_WINDOW: Final = 6
"""Smallest number of segments in a window.

A segment takes up to twice its size if it skips the end of the ring. A receiver may owe one portion of credit
(``incoming.CREDITS_PER_WINDOW``). As 2/6 + 1/4 < 1, a sender with nothing on the way always has room for the next
segment.
"""
SMALL_BYTES: Final = 32 << 10
"""Payloads up to this follow their header in the stream, which costs less than uncached pages of shared memory."""
JOINED_BYTES: Final = 2048
"""Payloads up to this are copied behind their header, which costs less than two buffers."""


class Outgoing:
    """The sending end of the link to one peer."""

    def __init__(
        self, peer: int, name: str, connection: socket.socket, memory: mmap.mmap | None, window_bytes: int, segment: int
    ) -> None:
        connection.setblocking(False)
        self.peer, self.name, self.connection = peer, name, connection
        self.memory = torch.empty(0) if memory is None else torch.frombuffer(memory, dtype=torch.uint8)
        self._bytes = memoryview(b"" if memory is None else memory)
        self.ring_bytes = self.memory.numel()
        self.window_bytes = min(window_bytes, self.ring_bytes) if self.ring_bytes else window_bytes
        self.segment_bytes = max(min(segment, self.window_bytes // SEGMENTS_PER_WINDOW), ALIGNMENT)
        self.in_flight = 0
        self.closed = False
        self.head = 0
        self.sent_bytes = 0
        self._queue: deque[Outbound] = deque()
        self._segments: Iterator[Piece] | None = None
        self._next: Piece | None = None
        self._out: deque[tuple[memoryview, Outbound | None]] = deque()
        self._credit = bytearray()

    def post(self, message: Outbound) -> None:
        """Queue a message; messages leave in the order of the queue."""
        self._queue.append(message)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and nothing is half sent."""
        return not self._queue and not self._out

    def pump(self) -> bool:
        """Send what can be sent now.

        Returns:
            whether the socket is full, so that the caller must wait until it is writable.

        Raises:
            PeerLostError: the connection broke.
        """
        if self.closed and not self.idle:
            raise PeerLostError(f"{self.name} has left the group, and a message for it is queued")
        while True:
            while self._queue and len(self._out) < MAX_BUFFERS_PER_CALL and self._prepare():
                pass
            if not self._out:
                return False
            if not self._flush():
                return True

    def read_credit(self) -> None:
        """Read the credit that has come back. A peer that has accepted everything may leave: it is ``closed`` then.

        Raises:
            PeerLostError: the peer hung up before it had accepted everything, or gave up.
        """
        try:
            data = self.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            self.closed = True
            if self.in_flight or not self.idle:
                raise PeerLostError(f"{self.name} closed the connection before it had taken everything")
            return
        self._credit += data
        while len(self._credit) >= CREDIT_BYTES:
            credit = unpack_credit(self._credit[:CREDIT_BYTES])
            if credit == GOODBYE:
                reason = bytes(self._credit[CREDIT_BYTES:])[:MAX_REASON_BYTES].decode(errors="replace")
                raise PeerLostError(f"{self.name} gave up: {reason}", reason)
            self.in_flight -= credit
            del self._credit[:CREDIT_BYTES]

    def abort(self, reason: str) -> None:
        """Tell the peer that nothing more comes, as far as the socket accepts it."""
        with suppress(OSError):
            if not self._out:  # in the middle of a segment nothing can be said
                self.connection.send(pack_abort(reason))
            self.connection.shutdown(socket.SHUT_WR)  # not closed: that could take back what was said

    def close(self) -> None:
        """Close the connection and drop everything queued."""
        self._queue.clear()
        self._out.clear()
        self._segments = self._next = None
        self.connection.close()

    def _prepare(self) -> bool:
        """Put the next segment of the queue into the stream, if the window has room for it. Return whether it did."""
        message = self._queue[0]
        if self._segments is None:
            self._segments = message.segments(self.segment_bytes)
            self._next = next(self._segments)
        piece = self._next
        if piece is None:
            return False
        most = message.encoding.most_bytes(piece.length)
        shared = bool(self.ring_bytes) and most > SMALL_BYTES
        place, skipped = self._allocate(most) if shared else (INLINE, 0)
        # with nothing in flight a segment larger than the window must still go, or it would never
        if self.in_flight and self.in_flight + skipped + (_padded(most) if shared else most) > self.window_bytes:
            return False
        self._next = next(self._segments, None)
        done = message if self._next is None else None
        if done is not None:
            self._queue.popleft()
            self._segments = None
        if shared:
            self._emit_shared(message, piece, most, place, skipped, done)
        else:
            self._emit_inline(message, piece, most, done)
        return True

    def _emit_shared(
        self, message: Outbound, piece: Piece, most: int, place: int, skipped: int, done: Outbound | None
    ) -> None:
        """Write a segment into the shared memory and its header into the stream."""
        held = message.task.bytes_at(piece, message.encoding)
        if held is None:
            size = message.encoding.write(message.task.values(piece), self.memory[place : place + most])
        else:
            size = most
            self._bytes[place : place + size] = held
        used = skipped + _padded(size)
        self.head += used
        self._out.append((memoryview(self._account(message, piece.length, size, place, used)), done))

    def _emit_inline(self, message: Outbound, piece: Piece, most: int, done: Outbound | None) -> None:
        """Write header and payload into the stream."""
        payload = message.task.bytes_at(piece, message.encoding)
        if payload is None:
            coded = torch.empty(most, dtype=torch.uint8)
            size = message.encoding.write(message.task.values(piece), coded)
            payload = memoryview(coded.numpy())[:size]
        size = len(payload)
        head = self._account(message, piece.length, size, INLINE, size)
        if size <= JOINED_BYTES:
            self._out.append((memoryview(b"".join((head, payload))), done))
        else:
            self._out.append((memoryview(head), None))
            self._out.append((payload, done))

    def _account(self, message: Outbound, num_elements: int, size: int, place: int, used: int) -> bytes:
        """Count a segment of ``size`` bytes, of which ``used`` are in flight now; return its header."""
        self.in_flight += used
        self.sent_bytes += size
        message.num_bytes += size
        return pack_segment(
            message.task.identity,
            message.channel,
            message.message.ordinal,
            message.num_elements,
            num_elements,
            size,
            place,
            used,
        )

    def _allocate(self, size: int) -> tuple[int, int]:
        """Return (place, bytes skipped at the end of the ring) of a segment of at most ``size`` bytes."""
        place = self.head % self.ring_bytes
        if place + _padded(size) > self.ring_bytes:
            return 0, self.ring_bytes - place
        return place, 0

    def _flush(self) -> bool:
        """Hand buffers to the kernel. Return False if it accepts no more."""
        try:
            if len(self._out) == 1:
                taken = self.connection.send(self._out[0][0])
            else:
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
                done.left()
        return True

    def _first_buffers(self) -> Iterator[tuple[memoryview, Outbound | None]]:
        for index, entry in enumerate(self._out):
            if index == MAX_BUFFERS_PER_CALL:
                return
            yield entry

    def _lost(self, error: OSError) -> PeerLostError:
        return PeerLostError(f"the connection to {self.name} broke: {error.strerror or error}")


def _padded(size: int) -> int:
    """Return the bytes of the ring that a segment of ``size`` occupies."""
    return -(-size // ALIGNMENT) * ALIGNMENT
