"""One step of a plan as lists of operations per rank, for tools that compute their own timing (Chakra, ASTRA-sim).

Ranks of a class run the same *program*. Their peers follow from the rank number.
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
        label: name for human readers.
        seconds: duration of a computation; 0 for all others.
        op: operation of a collective.
        communicator: communicator of a collective, a name of ``ExecutionTrace.communicators``.
        size_bytes: full tensor for gathers, scatters and reductions; bytes sent for all-to-alls and messages.
        num_calls: equal calls in a row, of ``size_bytes`` each.
        following: for a message, true if the peer is the next pipeline rank (cyclic), false if it is the previous one.
        tag: tag of a message, the same at both ends.
        waits: indices of operations of the same program that must end first, all lower than its own.
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
    """Equal groups of global ranks b + i · stride, i = 0 … degree − 1."""

    degree: int
    stride: int

    def first(self, global_rank: int) -> int:
        """Lowest global rank of the group of ``global_rank``."""
        return global_rank - global_rank // self.stride % self.degree * self.stride

    def groups(self, num_ranks: int) -> Iterator[range]:
        """All groups of ``num_ranks`` global ranks, in the order of their lowest rank."""
        for start in range(0, num_ranks, self.degree * self.stride):
            for first in range(start, start + self.stride):
                yield range(first, first + self.degree * self.stride, self.stride)


@dataclass(frozen=True)
class ExecutionTrace:
    """Programs, the program of each rank, and the groups of the collectives.

    Attributes:
        plan_name: name of the job.
        step_s: simulated step time in s, for comparison.
        programs: operations of each program, in an order in which they can run.
        program_of: [global rank] -> index into ``programs``.
        communicators: name -> communicator.
        pipeline: groups of pipeline ranks, between which messages are sent.
    """

    plan_name: str
    step_s: float
    programs: tuple[tuple[Operation, ...], ...]
    program_of: tuple[int, ...]
    communicators: dict[str, Communicator]
    pipeline: Communicator

    @property
    def num_ranks(self) -> int:
        """Number of global ranks."""
        return len(self.program_of)

    def peer(self, global_rank: int, following: bool) -> int:
        """Global rank of the next (``following``) or previous pipeline rank, cyclic."""
        first, step = self.pipeline.first(global_rank), 1 if following else -1
        at = (global_rank - first) // self.pipeline.stride
        return first + (at + step) % self.pipeline.degree * self.pipeline.stride
