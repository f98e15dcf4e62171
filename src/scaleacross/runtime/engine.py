"""Runs one collective of one rank. A step begins once the messages that it needs are there.

Deadlock-free by construction: a send never waits for its receiver. Whatever arrives for the running collective is read
from the socket at once, into its target or, if its step has not begun, into a copy. Arrivals of later collectives stay
in the socket.
Deterministic: two messages that are reduced into the same elements are applied in the order of the schedule, whichever
arrives first.

``communicator`` drives a ``Run`` over its links; ``point_to_point`` uses only ``Task`` and ``combine_into``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from scaleacross.runtime.encoding import GRAIN, Encoding
from scaleacross.runtime.faults import CollectiveError, MismatchError
from scaleacross.runtime.messages import ADD, COPY, INPUT, Message, Piece, RankProgram, RankStep
from scaleacross.runtime.reduction import Combine
from scaleacross.runtime.wire import Header, Identity


class Cursor(Protocol):
    """Records the progress of a collective. Peers are ranks of the group."""

    def sent(self, peer: int, num_bytes: int, begun_ns: int) -> None:
        """Record that a message queued at ``begun_ns`` (of ``time.perf_counter_ns``) has left."""

    def received(self, peer: int, num_bytes: int, begun_ns: int) -> None:
        """Record that a message has arrived whose step began at ``begun_ns``."""

    def coded(self, plain_bytes: int, num_bytes: int) -> None:
        """Record that a coded message has left in ``num_bytes`` instead of ``plain_bytes``."""


@dataclass(frozen=True)
class Task:
    """One collective as one rank runs it.

    Attributes:
        program: its steps.
        buffers: INPUT, WORK and PASSING, flat.
        combine: reduces arriving elements into those held; None if nothing is reduced.
        identity: what all ranks must agree on.
        encoding: peer -> encoding of the elements sent to it and received from it.
        plain: encoding for the peers to which elements are not coded.
        settle: rounds finished values (flat, in place) to what the encodings can represent; None if they represent
            every value.
    """

    program: RankProgram
    buffers: Sequence[torch.Tensor]
    combine: Combine | None
    identity: Identity
    encoding: Callable[[int], Encoding]
    plain: Encoding
    settle: Callable[[torch.Tensor], None] | None = None
    _bytes: dict[int, memoryview | None] = field(default_factory=dict)

    def values(self, piece: Piece) -> torch.Tensor:
        """Return the elements of ``piece`` as a view."""
        return self.buffers[piece.buffer][piece.start : piece.start + piece.length]

    def bytes_at(self, piece: Piece, encoding: Encoding) -> memoryview | None:
        """Return the bytes of ``piece`` in memory as a view, or None if it travels in another form.

        Slicing a memoryview costs less than slicing a tensor.
        """
        if encoding is not self.plain:
            return None
        if piece.buffer not in self._bytes:
            values = self.plain.bytes_of(self.buffers[piece.buffer])
            self._bytes[piece.buffer] = None if values is None else memoryview(values.numpy())
        whole, size = self._bytes[piece.buffer], self.buffers[piece.buffer].element_size()
        return None if whole is None else whole[piece.start * size : (piece.start + piece.length) * size]

    def move(self, source: Piece, target: Piece) -> None:
        """Copy the elements of ``source`` to ``target`` within this rank."""
        held, taken = self.bytes_at(target, self.plain), self.bytes_at(source, self.plain)
        if held is None or taken is None:
            self.values(target).copy_(self.values(source))
        else:
            held[:] = taken


class Outbound:
    """A message that is being sent.

    Attributes:
        channel: index of its channel in the program.
        position: index among the messages that this rank sends on the channel.
        begun_ns: time at which its step began, of ``time.perf_counter_ns``.
        num_bytes: payload bytes put into the stream so far.
    """

    __slots__ = ("_run", "begun_ns", "channel", "encoding", "message", "num_bytes", "num_elements", "position", "task")

    def __init__(
        self, run: Run, channel: int, position: int, message: Message, encoding: Encoding, begun_ns: int
    ) -> None:
        self._run, self.task, self.channel, self.position = run, run.task, channel, position
        self.message, self.encoding, self.begun_ns = message, encoding, begun_ns
        self.num_elements, self.num_bytes = message.num_elements, 0

    def left(self) -> None:
        """Tell the run that the whole message has been handed to the kernel or backend."""
        self._run.left(self)

    def segments(self, limit_bytes: int) -> Iterator[Piece]:
        """Return the pieces of the message, of at most ``limit_bytes`` each but at least ``GRAIN`` elements.

        A message without elements has one empty piece.
        """
        most, pieces = max(limit_bytes // self.encoding.most_bytes(GRAIN), 1) * GRAIN, self.message.pieces
        if self.num_elements <= most and len(pieces) == 1:
            return iter(pieces)
        return self._cut(most)

    def _cut(self, most: int) -> Iterator[Piece]:
        if not self.num_elements:
            yield Piece(INPUT, 0, 0)
        for buffer, start, length in self.message.pieces:
            for done in range(0, length, most):
                yield Piece(buffer, start + done, min(most, length - done))


class Segment(NamedTuple):
    """One segment: its payload (None if it was read directly into its target), and the number of its elements."""

    payload: torch.Tensor | None
    num_elements: int


@dataclass(eq=False, slots=True)
class _Arrival:
    """Progress of a message that this rank receives."""

    message: Message
    encoding: Encoding
    channel: int
    num_elements: int
    ready: bool = False
    done: bool = False
    begun_ns: int = 0
    got_bytes: int = 0
    got_elements: int = 0
    piece: int = 0
    offset: int = 0
    staged: list[Segment] = field(default_factory=list)


class _Channel:
    """Progress of a channel.

    ``begun`` counts the steps begun, and ``open`` holds the arrivals of the latest one. ``left`` states for each sent
    message whether it has left; ``num_left`` is the length of its leading run of True.
    """

    def __init__(self, steps: Sequence[RankStep]) -> None:
        self.steps = steps
        self.begun = 0
        self.open: list[_Arrival] = []
        self.left: list[bool] = []
        self.num_left = 0
        self.num_unready = self.num_open = 0

    @property
    def finished(self) -> bool:
        return self.begun == len(self.steps) and not self.num_open and self.num_left == len(self.left)


class Run:
    """A collective in progress.

    Args:
        task: what to run.
        post: (peer, message) -> None; queues a message for a peer.
        cursor: records every message that has left or arrived.
    """

    def __init__(self, task: Task, post: Callable[[int, Outbound], None], cursor: Cursor) -> None:
        self.task, self.post, self.cursor = task, post, cursor
        self._channels = [_Channel(steps) for steps in task.program.channels]
        self._arrivals: dict[tuple[int, int, int], _Arrival] = {}
        self._early: dict[tuple[int, int, int], tuple[int, list[Segment]]] = {}

    def start(self) -> None:
        """Begin every step that can begin."""
        for channel in range(len(self._channels)):
            self._advance(channel)

    @property
    def finished(self) -> bool:
        """Whether all messages have arrived and left."""
        return all(channel.finished for channel in self._channels)

    def wanted(self, peer: int, header: Header) -> bool:
        """Return whether a segment belongs to this collective; False means that it belongs to a later one.

        Raises:
            MismatchError: the peer is at an earlier collective, or runs another one under the same number.
        """
        identity = self.task.identity
        if (header.sequence, header.code, header.num_elements) == identity[:3]:
            return True
        if header.sequence > identity.sequence:
            return False
        if header.sequence < identity.sequence:
            raise MismatchError(
                f"rank {peer} still sends for collective {header.sequence} of the group, this rank is at {identity.sequence} "
                f"({identity.text})"
            )
        theirs = f"{header.num_elements} elements" if header.num_elements != identity.num_elements else "another one"
        raise MismatchError(
            f"collective {identity.sequence} of the group is {identity.text} of {identity.num_elements} elements here, "
            f"and {theirs} on rank {peer}"
        )

    def place(self, peer: int, header: Header) -> memoryview | None:
        """Return the final place of a segment's elements if they may be read directly into it, else None."""
        arrival = self._arrivals.get((peer, header.channel, header.message))
        if arrival is None or not arrival.ready or header.message_elements != arrival.num_elements:
            return None
        piece = arrival.message.pieces[arrival.piece]
        count = header.segment_elements
        if arrival.message.modes[arrival.piece] != COPY or count > piece.length - arrival.offset:
            return None
        return self.task.bytes_at(Piece(piece.buffer, piece.start + arrival.offset, count), arrival.encoding)

    def take(self, peer: int, header: Header, payload: torch.Tensor | None) -> None:
        """Apply or stage a segment that has arrived.

        Args:
            payload: valid only during the call; None if it was read directly into its place.
        """
        key = (peer, header.channel, header.message)
        arrival = self._arrivals.get(key)
        # a staged payload outlives the receive buffer, so it is copied
        if payload is not None and (arrival is None or not arrival.ready):
            payload = payload.clone()
        if arrival is None:
            early = self._early.setdefault(key, (header.message_elements, []))
            early[1].append(Segment(payload, header.segment_elements))
            return
        self._check_size(arrival, header.message_elements)
        if arrival.ready:
            self._apply(arrival, Segment(payload, header.segment_elements))
            if arrival.done and not self._channels[arrival.channel].num_open:
                self._advance(arrival.channel)
        else:
            arrival.staged.append(Segment(payload, header.segment_elements))

    def missing(self) -> list[tuple[int, int, int, int]]:
        """Return (peer, channel, elements received, elements expected) of every message that open steps wait for."""
        return [
            (arrival.message.peer, arrival.channel, arrival.got_elements, arrival.num_elements)
            for channel in self._channels
            for arrival in channel.open
            if not arrival.done
        ]

    # --- steps --------------------------------------------------------------------------------------------------------

    def _advance(self, number: int) -> None:
        """Begin the steps of channel ``number`` that can begin, and those of the channels that follow it."""
        waiting = [number]
        while waiting:
            index = waiting.pop()
            channel = self._channels[index]
            follower = index + self.task.program.num_parallel
            while True:
                if channel.num_open:
                    break
                if channel.begun == len(channel.steps) or not self._may_begin(index):
                    break
                step = channel.steps[channel.begun]
                channel.begun += 1
                self._begin(index, step)
                if follower < len(self._channels):
                    waiting.append(follower)

    def _may_begin(self, index: int) -> bool:
        """Return whether the channel that ``index`` follows, if any, is ahead of it by a step."""
        before = index - self.task.program.num_parallel
        return before < 0 or self._channels[before].begun > self._channels[index].begun

    def _begin(self, index: int, step: RankStep) -> None:
        channel, task, now = self._channels[index], self.task, time.perf_counter_ns()
        for message in step.sends:
            if message.settles and task.settle is not None:
                for piece in message.pieces:
                    task.settle(task.values(piece))
            position = len(channel.left)
            channel.left.append(False)
            self.post(message.peer, Outbound(self, index, position, message, task.encoding(message.peer), now))
        arrivals = []
        for message in step.receives:
            arrival = _Arrival(message, task.encoding(message.peer), index, message.num_elements, begun_ns=now)
            key = (message.peer, index, message.ordinal)
            if early := self._early.pop(key, None):
                self._check_size(arrival, early[0])
                arrival.staged = early[1]
            self._arrivals[key] = arrival
            arrivals.append(arrival)
        channel.open = arrivals
        channel.num_open = channel.num_unready = len(arrivals)
        self._make_ready(channel)

    def _make_ready(self, channel: _Channel) -> None:
        """Apply the staged segments of messages whose target may change now."""
        for arrival in channel.open:
            message = arrival.message
            if arrival.ready or channel.num_left < message.after_sends:
                continue
            if message.behind >= 0 and not channel.open[message.behind].done:
                continue
            arrival.ready = True
            channel.num_unready -= 1
            staged, arrival.staged = arrival.staged, []
            for segment in staged:
                self._apply(arrival, segment)

    def left(self, out: Outbound) -> None:
        """Record that a message has left: arrivals may now overwrite its elements."""
        if out.encoding is not self.task.plain:
            self.cursor.coded(self.task.plain.most_bytes(out.num_elements), out.num_bytes)
        self.cursor.sent(out.message.peer, out.num_bytes, out.begun_ns)
        channel = self._channels[out.channel]
        channel.left[out.position] = True
        # after_sends counts from the first message, so a gap holds the count back
        while channel.num_left < len(channel.left) and channel.left[channel.num_left]:
            channel.num_left += 1
        if channel.num_unready:
            self._make_ready(channel)
            self._advance(out.channel)

    # --- elements -----------------------------------------------------------------------------------------------------

    def _apply(self, arrival: _Arrival, segment: Segment) -> None:
        """Apply one segment. Segments of a message arrive in order; they need not end where this rank's pieces end."""
        num_elements, values = segment.num_elements, None
        if segment.payload is not None:
            values = arrival.encoding.read(segment.payload, num_elements)
        decoded = num_elements if values is None else values.numel()
        if decoded != num_elements or arrival.got_elements + num_elements > arrival.num_elements:
            raise CollectiveError(
                f"rank {arrival.message.peer} of the group sends a segment of {num_elements} elements that decodes to "
                f"{decoded}, {arrival.got_elements} of {arrival.num_elements} being here: the stream is out of step"
            )
        payload = segment.payload
        arrival.got_bytes += arrival.encoding.most_bytes(num_elements) if payload is None else payload.numel()
        arrival.got_elements += num_elements
        taken = 0
        while taken < num_elements:
            piece = arrival.message.pieces[arrival.piece]
            count = min(piece.length - arrival.offset, num_elements - taken)
            if values is not None:
                target = Piece(piece.buffer, piece.start + arrival.offset, count)
                combine_into(self.task, arrival.message.modes[arrival.piece], target, values[taken : taken + count])
            taken += count
            arrival.offset += count
            if arrival.offset == piece.length:
                arrival.piece, arrival.offset = arrival.piece + 1, 0
        if arrival.got_elements == arrival.num_elements:
            arrival.done = True
            self.cursor.received(arrival.message.peer, arrival.got_bytes, arrival.begun_ns)
            del self._arrivals[(arrival.message.peer, arrival.channel, arrival.message.ordinal)]
            channel = self._channels[arrival.channel]
            channel.num_open -= 1
            if channel.num_unready:
                self._make_ready(channel)

    def _check_size(self, arrival: _Arrival, num_elements: int) -> None:
        if num_elements != arrival.num_elements:
            raise MismatchError(
                f"collective {self.task.identity.sequence} ({self.task.identity.text}): rank {arrival.message.peer} sends "
                f"{num_elements} elements where this rank expects {arrival.num_elements}"
            )


def combine_into(task: Task, mode: int, target: Piece, values: torch.Tensor) -> None:
    """Combine arriving ``values`` with ``target`` as ``mode`` (COPY, ADD or ADD_TO_INPUT) says."""
    held = task.values(target)
    if mode == COPY:
        held.copy_(values)
        return
    own = held if mode == ADD else task.values(target._replace(buffer=INPUT))
    if own.dtype != held.dtype:  # summed in a wider type than the caller's
        own = held.copy_(own)
    if task.combine is not None:
        task.combine(own, values, held)
