"""Brings a late joiner level without stopping anybody: it gets one state, then the sums of the steps committed since.

The donor copies its state at the beginning of a step and sends it in a thread of its own, at a limited rate. The sums
that it commits meanwhile follow. The joiner applies them, which is an optimizer step without forward and backward. So
it catches up, with the same bits; it contributes nothing until it is level.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor

from scaleacross.runtime.endpoint import Contact, call
from scaleacross.runtime.faults import CollectiveError

PIECE_BYTES: Final = 1 << 20
MAX_BACKLOG: Final = 64
"""Largest number of sums that wait for a joiner; a joiner that is slower starts anew."""
DONOR_TIMEOUT_S: Final = 60.0


class Donation:
    """One joiner, as its donor sees it.

    Args:
        step: the step that ``state`` is about to take.
        bytes_per_s: share of the link that it may use; None: all.
    """

    def __init__(self, joiner: str, contact: str, step: int, state: bytes, bytes_per_s: float | None) -> None:
        self.joiner, self._bytes_per_s = joiner, bytes_per_s
        self._sums: queue.SimpleQueue[tuple[int, list[Tensor]] | None] = queue.SimpleQueue()
        self.ended = False
        threading.Thread(
            target=self._give, args=(Contact.from_json(contact), step, state), name="scaleacross-donor", daemon=True
        ).start()

    def add(self, step: int, gradients: Sequence[Tensor]) -> None:
        """Queue the gradients committed at ``step``; the tensors are copied."""
        if self._sums.qsize() >= MAX_BACKLOG:
            self.end()
        elif not self.ended:
            self._sums.put((step, [gradient.clone() for gradient in gradients]))

    def end(self) -> None:
        """End the donation, because the joiner is a member or too slow."""
        self.ended = True
        self._sums.put(None)

    def _give(self, contact: Contact, step: int, state: bytes) -> None:
        with suppress(OSError, CollectiveError):
            connection = call(contact, 0, 0, DONOR_TIMEOUT_S).connection
            connection.settimeout(DONOR_TIMEOUT_S)
            with connection:
                self._send(connection, {"step": step, "backlog": self._sums.qsize()}, [memoryview(state)])
                del state
                while (one := self._sums.get()) is not None:
                    views = [memoryview(tensor.view(torch.uint8).numpy()) for tensor in one[1]]
                    self._send(connection, {"step": one[0], "backlog": self._sums.qsize()}, views)
        self.ended = True

    def _send(self, connection: socket.socket, head: dict[str, int], parts: list[memoryview]) -> None:
        sizes = [part.nbytes for part in parts]
        connection.sendall(json.dumps({**head, "sizes": sizes}).encode() + b"\n")
        start, sent = time.monotonic(), 0
        for part in parts:
            for at in range(0, part.nbytes, PIECE_BYTES):
                piece = part[at : at + PIECE_BYTES]
                connection.sendall(piece)
                sent += piece.nbytes
                if self._bytes_per_s is not None:
                    time.sleep(max(start + sent / self._bytes_per_s - time.monotonic(), 0.0))


def receive(
    connection: socket.socket,
    load: Callable[[int, bytes], None],
    apply: Callable[[int, list[bytes]], None],
    level: Callable[[], None],
    joined: Callable[[], bool],
) -> bool:
    """Catch up over ``connection``.

    Args:
        load: (step, state) -> None; takes the state that is about to take a step.
        apply: (step, sums) -> None; applies the sums of a step.
        level: called whenever the donor has nothing more.
        joined: returns whether this replica is a member at the step that it has reached.

    Returns:
        whether it is level and a member; False if the donor was lost before.
    """
    connection.settimeout(None)
    with connection, connection.makefile("rb") as stream:
        first = True
        while not joined():
            try:
                head = json.loads(stream.readline())
                parts = [stream.read(size) for size in head["sizes"]]
                if any(len(part) < size for part, size in zip(parts, head["sizes"], strict=True)):
                    return False
            except (OSError, ValueError):
                return False
            if first:
                load(head["step"], parts[0])
            else:
                apply(head["step"], parts)
            first = False
            if head["backlog"] == 0:
                level()
    return True
