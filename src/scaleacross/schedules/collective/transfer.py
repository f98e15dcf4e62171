"""Data types of a collective schedule: the blocks that each rank sends and receives, in order and without times.

The tensor is cut into blocks (equal ones, except in an all-to-all). A collective is cut into channels, each with its
own share of every block. ``num_parallel`` programs run in parallel (several rings, two trees), each for several
pipelined chunks: a rank sends a step of a chunk once it has sent the same step of the previous chunk. Chunks of a
program run the same steps, so a proof for one holds for all.

A rank runs the steps of a channel in order. The sends of a step read the blocks that the rank holds when the step
begins. The step ends when its receives have arrived. Sends never wait for their receiver. Messages from one rank to
another on one channel arrive in the order in which they were sent.

Every send states whose contributions it carries, so that ``check`` can prove a rank correct without running the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Operation(Enum):
    """Operation of a collective among n ranks, with PyTorch's name; blocks are numbered within one channel."""

    ALL_REDUCE = "all_reduce"
    """every rank begins with its contribution to every block and ends with the sum of all"""
    REDUCE_SCATTER = "reduce_scatter"
    """the same beginning; rank r ends with the sum of block r (of its own run of blocks, where there are more than ranks)"""
    ALL_GATHER = "all_gather"
    """rank r begins with block r, or with its run of blocks; every rank ends with every block"""
    ALL_TO_ALL = "all_to_all"
    """block s·n + d begins on rank s and ends on rank d"""
    BROADCAST = "broadcast"
    """rank 0 begins with every block; every rank ends with every block"""


class Kind(Enum):
    """Effect of a transfer at the rank that lists it."""

    SEND = "send"
    RECV = "recv"
    """takes the value as it is"""
    RECV_REDUCE = "recv_reduce"
    """adds the value to what the rank holds"""


class Transfer(NamedTuple):
    """One message, as one of its two ends sees it.

    Attributes:
        kind: what happens here.
        peer: rank of the other end.
        blocks: blocks of the message, in order.
        contributors: bit r is set if the contribution of rank r is in the sum; None for finished values. The same for all blocks.
    """

    kind: Kind
    peer: int
    blocks: Sequence[int]
    contributors: int | None = None


Step = tuple[Transfer, ...]
Steps = Iterator[Step]


@dataclass(frozen=True)
class CollectiveSchedule:
    """A collective as data; steps are made when they are asked for, one rank at a time.

    Attributes:
        name: algorithm, e.g. ``ring`` or ``hierarchical(ring, direct)``.
        operation: what it computes.
        num_ranks: n.
        num_blocks: blocks of the tensor; a block of a channel is 1/``num_channels`` of it.
        num_channels: shares of every block; channel c runs program c mod num_parallel.
        num_parallel: programs that run in parallel; channel c follows channel c − num_parallel.
        program: (rank, number of the program) -> steps.
        sends: (source, destination, number of the program) -> the sends from one to the other, where that is faster
            than to filter the steps of the source. ``sent`` uses it.
    """

    name: str
    operation: Operation
    num_ranks: int
    num_blocks: int
    program: Callable[[int, int], Steps]
    num_channels: int = 1
    num_parallel: int = 1
    sends: Callable[[int, int, int], Iterable[Transfer]] | None = None

    def __hash__(self) -> int:
        # three fields make a fast hash: every collective looks its programs up by it
        return hash((self.name, self.num_ranks, self.num_channels))

    def steps(self, rank: int, channel: int = 0) -> Steps:
        """Return the steps of ``rank`` on ``channel``, in order; steps without a transfer are left out."""
        return (step for step in self.program(rank, channel % self.num_parallel) if step)

    def sent(self, source: int, destination: int, channel: int = 0) -> Iterable[Transfer]:
        """Return the sends of ``source`` to ``destination`` on ``channel``, in order."""
        if self.sends is not None:
            return self.sends(source, destination, channel % self.num_parallel)
        return (
            transfer
            for step in self.steps(source, channel)
            for transfer in step
            if transfer.kind is Kind.SEND and transfer.peer == destination
        )

    def begins_with(self, rank: int, block: int) -> bool:
        """Return whether ``rank`` holds ``block`` (finished, or its own contribution) before the first step."""
        if self.operation is Operation.ALL_GATHER:
            return self._owner(block) == rank
        if self.operation is Operation.ALL_TO_ALL:
            return block // self.num_ranks == rank
        return not (self.operation is Operation.BROADCAST and rank)

    def ends_with(self, rank: int, block: int) -> bool:
        """Return whether ``rank`` must hold the finished ``block`` after the last step."""
        if self.operation is Operation.REDUCE_SCATTER:
            return self._owner(block) == rank
        if self.operation is Operation.ALL_TO_ALL:
            return block % self.num_ranks == rank
        return True

    def _owner(self, block: int) -> int:
        """Return the rank whose run of num_blocks / n blocks contains ``block``."""
        return block * self.num_ranks // self.num_blocks

    @property
    def reduces(self) -> bool:
        """Whether values are summed on the way."""
        return self.operation in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER)


def send(peer: int, blocks: Sequence[int], contributors: int | None = None) -> Transfer:
    """Return a message to ``peer``."""
    return Transfer(Kind.SEND, peer, blocks, contributors)


def recv(peer: int, blocks: Sequence[int], contributors: int | None = None) -> Transfer:
    """Return a message from ``peer`` that replaces the held value."""
    return Transfer(Kind.RECV, peer, blocks, contributors)


def recv_reduce(peer: int, blocks: Sequence[int], contributors: int) -> Transfer:
    """Return a message from ``peer`` that is added to the held value."""
    return Transfer(Kind.RECV_REDUCE, peer, blocks, contributors)
