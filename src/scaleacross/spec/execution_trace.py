"""One step of a plan as the operations of every rank, for tools that time them themselves.

Ranks of a class run the same *program*; who they talk to follows from their position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from scaleacross.spec.network_choice import CollectiveOp

Kind = Literal["compute", "collective", "send", "receive"]


@dataclass(frozen=True)
class Operation:
    """One operation of a program.

    Attributes:
        label: for people.
        seconds: of a computation; 0 for all others.
        op: of a collective.
        communicator: of a collective, a name of ``ExecutionTrace.communicators``.
        size_bytes: full tensor for gathers, scatters and reductions; bytes sent for all-to-alls and messages.
        num_calls: equal calls in a row, of ``size_bytes`` each.
        following: of a message, whether the other end is the next pipeline rank (the first after the last) or the one before.
        tag: of a message, the same at both ends.
        waits: operations of the same program, by index, all lower than its own.
    """

    kind: Kind
    label: str
    seconds: float = 0.0
    op: CollectiveOp | None = None
    communicator: str = ""
    size_bytes: float = 0.0
    num_calls: int = 1
    following: bool = False
    tag: int = 0
    waits: tuple[int, ...] = ()


@dataclass(frozen=True)
class Communicator:
    """Equal groups of positions b + i · stride, i = 0 … degree − 1."""

    degree: int
    stride: int

    def first(self, position: int) -> int:
        """Lowest position of the group of ``position``."""
        return position - position // self.stride % self.degree * self.stride

    def groups(self, num_ranks: int) -> Iterator[range]:
        """All groups of ``num_ranks`` positions, by their lowest."""
        for start in range(0, num_ranks, self.degree * self.stride):
            for first in range(start, start + self.stride):
                yield range(first, first + self.degree * self.stride, self.stride)


@dataclass(frozen=True)
class ExecutionTrace:
    """Programs, which position runs which, and the groups of its collectives.

    Attributes:
        plan_name: of the job.
        step_s: of the replay, to be compared with.
        programs: operations in an order in which they can run.
        program_of: program by position.
        communicators: by name.
        pipeline: pipeline ranks, the ends of messages.
    """

    plan_name: str
    step_s: float
    programs: tuple[tuple[Operation, ...], ...]
    program_of: tuple[int, ...]
    communicators: dict[str, Communicator]
    pipeline: Communicator

    @property
    def num_ranks(self) -> int:
        """Positions."""
        return len(self.program_of)

    def peer(self, position: int, following: bool) -> int:
        """The next pipeline rank of a position, or the one before."""
        first, step = self.pipeline.first(position), 1 if following else -1
        at = (position - first) // self.pipeline.stride
        return first + (at + step) % self.pipeline.degree * self.pipeline.stride
