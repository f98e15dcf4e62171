"""Runs collectives over the send and receive of any c10d backend: NCCL's for tensors on a GPU, gloo's on a CPU.

Elements travel as bytes. They are encoded and reduced on the device of the tensors, by the Triton kernels where these
run. Messages have a fixed length here, so codec ``bounded`` keeps its error bound and saves nothing. On a GPU a
collective is queued on a stream of the group. It begins when the caller's stream has come to the call; ``wait`` makes
that stream wait, not the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor

from scaleacross.runtime.engine import Cursor, Task, combine_into
from scaleacross.runtime.faults import CollectiveError
from scaleacross.runtime.lockstep import Round, rounds_of
from scaleacross.runtime.messages import Message, RankProgram

MAX_KEPT: Final = 64
FIRST_TAG: Final = 1 << 20
LEAST_S: Final = 1e-3
"""Shortest timeout of a wait; gloo takes 0 for no limit."""


class PointToPoint:
    """The transport of one group. All methods run in the thread of the group.

    Args:
        backend: a c10d backend that nobody else uses, because its messages are matched by their order alone.
        rank, size: own rank in the group, number of ranks of the group.
    """

    def __init__(self, backend: Any, rank: int, size: int) -> None:
        self.backend, self.rank, self.size = backend, rank, size
        self._rounds: dict[int, tuple[RankProgram, tuple[Round, ...]]] = {}
        self._stream: Any = None

    def run(self, task: Task, programs: Callable[[int], RankProgram], deadline: float, cursor: Cursor) -> None:
        """Run one collective. On a GPU return when it is queued; then NCCL's own limit holds, which is the group's.

        Args:
            programs: rank of the group -> its program.
            deadline: of ``time.monotonic``.

        Raises:
            CollectiveError: the backend gave up.
        """
        for buffer in task.buffers:  # made on the caller's stream where what the caller gave is not contiguous
            if buffer.is_cuda:
                buffer.record_stream(torch.cuda.current_stream(buffer.device))
        try:
            for one in self._rounds_of(task.program, programs):
                self._play(task, one, deadline, cursor)
        except RuntimeError as error:
            text = str(error).strip().splitlines()
            raise CollectiveError(
                f"rank {self.rank} of the group, collective {task.identity.sequence} ({task.identity.text}): "
                f"{text[0][:300] if text else type(error).__name__}"
            ) from error

    def on_stream(self, called: Any, tensors: Sequence[Tensor]) -> AbstractContextManager[Any]:
        """Return a context on this group's stream, which waits for the caller's event ``called``; null on a CPU."""
        if called is None:
            return nullcontext()
        device = tensors[0].device
        torch.cuda.set_device(device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        self._stream.wait_event(called)
        for tensor in tensors:
            tensor.record_stream(self._stream)
        return torch.cuda.stream(self._stream)

    def _rounds_of(self, program: RankProgram, programs: Callable[[int], RankProgram]) -> tuple[Round, ...]:
        known = self._rounds.get(id(program))
        if known is None:
            if len(self._rounds) == MAX_KEPT:
                self._rounds.clear()
            rounds = rounds_of([program if r == self.rank else programs(r) for r in range(self.size)], self.rank)
            known = self._rounds[id(program)] = program, rounds  # holding the program keeps its number its own
        return known[1]

    def _play(self, task: Task, one: Round, deadline: float, cursor: Cursor) -> None:
        """Post all messages of a round together, wait, then combine arriving elements in the order of the schedule."""
        leaving = [(message, _encoded(task, message)) for message in one.sends]
        arriving = [(message, _room(task, message)) for message in one.receives]
        device = task.buffers[0].device
        together = device.type != "cpu" and bool(self.backend.supports_coalescing)
        if together:
            self.backend._start_coalescing()
        works = [self.backend.send([data], message.peer, tag) for message, data, tag in _tagged(leaving)]
        works += [self.backend.recv([data], message.peer, tag) for message, data, tag in _tagged(arriving)]
        for work in [self.backend._end_coalescing()] if together else works:
            if work is not None and device.type != "cpu":
                work.wait()
            elif work is not None:
                work.wait(timedelta(seconds=max(deadline - time.monotonic(), LEAST_S)))
        now = time.perf_counter_ns()  # on a GPU all of it is only queued yet: no time is counted
        for message, data in leaving:
            cursor.sent(message.peer, data.numel(), now)
            if task.encoding(message.peer) is not task.plain:
                cursor.coded(task.plain.most_bytes(message.num_elements), data.numel())
        for message, data in arriving:
            _take(task, message, data)
            cursor.received(message.peer, data.numel(), now)


def called_now(tensor: Tensor) -> Any:
    """Return an event on the caller's stream; None on a CPU."""
    return torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None


def _tagged(messages: list[tuple[Message, Tensor]]) -> list[tuple[Message, Tensor, int]]:
    """Return each message with a tag: its number among those with its peer in this round, equal at both ends."""
    counts: dict[int, int] = {}
    out = []
    for message, data in messages:
        number = counts.get(message.peer, 0)
        counts[message.peer] = number + 1
        out.append((message, data, FIRST_TAG + number))
    return out


def _encoded(task: Task, message: Message) -> Tensor:
    """Return the bytes of a message, encoded piece by piece. A single unencoded piece is a view of its memory."""
    encoding = task.encoding(message.peer)
    pieces = [task.values(piece) for piece in message.pieces]
    if message.settles and task.settle is not None:
        for values in pieces:
            task.settle(values)
    if len(pieces) == 1 and (own := encoding.bytes_of(pieces[0])) is not None:
        return own
    data, at = _room(task, message), 0
    for values in pieces:
        size = encoding.most_bytes(values.numel())
        encoding.write(values, data[at : at + size])
        at += size
    return data


def _room(task: Task, message: Message) -> Tensor:
    encoding = task.encoding(message.peer)
    size = sum(encoding.most_bytes(piece.length) for piece in message.pieces)
    return torch.empty(size, dtype=torch.uint8, device=task.buffers[0].device)


def _take(task: Task, message: Message, data: Tensor) -> None:
    encoding, at = task.encoding(message.peer), 0
    for piece, mode in zip(message.pieces, message.modes, strict=True):
        size = encoding.most_bytes(piece.length)
        combine_into(task, mode, piece, encoding.read(data[at : at + size], piece.length))
        at += size
