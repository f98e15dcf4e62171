"""Links of one group: one per direction and peer, made when the first message needs it.

``Outgoing`` cuts messages into segments and keeps at most a window of them in flight; ``Incoming`` reads segments and gives
credit back. Neither waits: the engine asks them to go on when the selector says that they can.
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
from scaleacross.runtime.faults import CollectiveError, PeerLostError
from scaleacross.runtime.wire import (
    ABORT,
    CREDIT_BYTES,
    GOODBYE,
    HEADER_BYTES,
    INLINE,
    MAX_REASON_BYTES,
    SEGMENT,
    Header,
    Identity,
    pack,
    pack_abort,
    pack_credit,
    unpack,
    unpack_credit,
)

ALIGNMENT: Final = 64
MAX_BUFFERS_PER_CALL: Final = 32
SEGMENTS_PER_WINDOW: Final = 6
CREDITS_PER_WINDOW: Final = 4
"""A segment takes up to twice its size where it skips the end of the ring, and a receiver may owe one portion of credit:
2/6 + 1/4 < 1, so a sender that has nothing on the way always has room for the next segment."""
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


class Incoming:
    """Segments from one peer."""

    def __init__(
        self, peer: int, name: str, connection: socket.socket, memory: mmap.mmap | None, window_bytes: int
    ) -> None:
        connection.setblocking(False)
        self._portion_bytes = window_bytes // CREDITS_PER_WINDOW
        self.peer, self.name, self.connection = peer, name, connection
        self.memory = None if memory is None else torch.frombuffer(memory, dtype=torch.uint8)
        self.closed = False
        self.parked: Header | None = None
        self.received_bytes = 0
        self._head = memoryview(bytearray(HEADER_BYTES))
        self._got = 0
        self._header: Header | None = None
        self._payload: torch.Tensor | None = None
        self._target: memoryview | None = None
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._owed = 0

    def read(
        self,
        wanted: Callable[[int, Header], bool],
        place: Callable[[int, Header], torch.Tensor | None],
        take: Callable[[int, Header, torch.Tensor], None],
    ) -> None:
        """Read segments until there are no more, or one is not wanted yet (it stays ``parked``).

        Args:
            wanted: (peer, header) -> whether its collective runs now.
            place: (peer, header) -> memory that a payload from the stream may be read into, or None.
            take: (peer, header, payload as uint8); the payload is only valid during the call.

        Raises:
            PeerLostError: the peer gave up. A connection that ends between segments only sets ``closed``.
            CollectiveError: the stream is out of step.
        """
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
            if payload is None:
                raise CollectiveError(f"{self.name}: a segment without a payload")
            if header.kind == ABORT:
                self.closed = True
                reason = payload.numpy().tobytes().decode(errors="replace")
                raise PeerLostError(f"{self.name} gave up: {reason}", reason)
            self.received_bytes += header.num_bytes
            take(self.peer, header, payload)
            self._give_back(header.used_bytes)

    def abort(self, reason: str) -> None:
        """Tell the sender, as far as the socket takes it, that nothing more is taken."""
        with suppress(OSError):
            self.connection.send(pack_credit(GOODBYE) + reason.encode()[:MAX_REASON_BYTES])
            self.connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Drop the connection."""
        self.closed = True
        self.connection.close()

    def _give_back(self, used_bytes: int) -> None:
        """Credit in portions, as every one of them wakes the sender up."""
        self._owed += used_bytes
        if self._owed >= self._portion_bytes:
            with suppress(OSError):  # whoever hung up needs no credit
                self.connection.send(pack_credit(self._owed))
                self._owed = 0

    def _read_header(self) -> Header | None:
        while self._got < HEADER_BYTES:
            count = self._receive(self._head[self._got :])
            if count == 0:
                return None
            self._got += count
        self._got = 0
        return unpack(self._head)

    def _begin(self, header: Header, place: Callable[[int, Header], torch.Tensor | None]) -> None:
        self._header = header
        if header.kind == ABORT and header.num_bytes > MAX_REASON_BYTES:
            raise CollectiveError(f"{self.name}: a reason of {header.num_bytes} bytes")
        if header.place != INLINE:
            end = header.place + header.num_bytes
            if self.memory is None or end > self.memory.numel():
                raise CollectiveError(f"{self.name}: a payload up to byte {end} of memory that is not shared")
            self._payload = self.memory[header.place : end]
            return
        direct = place(self.peer, header) if header.kind == SEGMENT and header.num_bytes else None
        if direct is None and self._scratch.numel() < header.num_bytes:
            self._scratch = torch.empty(header.num_bytes, dtype=torch.uint8)
        self._payload = self._scratch[: header.num_bytes] if direct is None else direct
        self._target = memoryview(self._payload.numpy()) if header.num_bytes else None

    def _read_payload(self) -> bool:
        while self._target is not None and len(self._target):
            count = self._receive(self._target)
            if count == 0:
                return False
            self._target = self._target[count:]
        return True

    def _receive(self, target: memoryview) -> int:
        """Bytes read; 0 if there are none now or the stream ended."""
        try:
            count = self.connection.recv_into(target)
        except BlockingIOError:
            return 0
        except OSError:
            count = 0
        if count == 0:
            self.closed = True
        return count
