"""A collective given message by message: what a synthesis finds, as steps of every rank.

An all-gather is a list of messages, each one block from one rank to another between two ticks. Backwards in time, on the same
links the other way round, it is a reduce-scatter: a rank adds up what its receivers of the gather send it, then passes the sum
on to whom it had the block from. An all-reduce is one of each. Ticks order the messages; they are no promise of duration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from scaleacross.schedules.collective.transfer import (
    CollectiveSchedule,
    Kind,
    Operation,
    Step,
    Steps,
    Transfer,
    recv,
    recv_reduce,
    send,
)


class Message(NamedTuple):
    """One block from ``source``, sent at tick ``start``, at ``destination`` at tick ``end``."""

    start: int
    end: int
    source: int
    destination: int
    block: int


def backwards(gather: Sequence[Message]) -> list[Message]:
    """The messages of a reduce-scatter whose mirror image in time is ``gather``."""
    last = max((message.end for message in gather), default=0)
    return [Message(last - m.end, last - m.start, m.destination, m.source, m.block) for m in gather]


def routed(
    name: str, operation: Operation, num_ranks: int, num_blocks: int, phases: Sequence[Sequence[Message]]
) -> CollectiveSchedule:
    """The schedule of one phase (all-gather, or reduce-scatter made by ``backwards``), or of both (all-reduce, scatter first).

    Args:
        operation: all_gather, reduce_scatter or all_reduce.
        num_blocks: a multiple of ``num_ranks``; rank r owns the r-th run of num_blocks / num_ranks blocks.
        phases: their messages, with ticks of their own. Proved by ``check``, not here.
    """
    steps: list[list[Step]] = [[] for _ in range(num_ranks)]
    for number, messages in enumerate(phases):
        reduces = operation is not Operation.ALL_GATHER and number == 0
        events: list[list[tuple[int, int, Transfer]]] = [[] for _ in range(num_ranks)]
        for message, carried in _in_order(messages, reduces):
            source, destination, blocks = message.source, message.destination, (message.block,)
            events[source].append((message.start, 1, send(destination, blocks, carried)))
            arrival = recv(source, blocks) if carried is None else recv_reduce(source, blocks, carried)
            events[destination].append((message.end, 0, arrival))
        for rank, own in enumerate(events):
            steps[rank] += _steps(own)

    def program(rank: int, _: int) -> Steps:
        return iter(steps[rank])

    return CollectiveSchedule(name, operation, num_ranks, num_blocks, program)


def _in_order(messages: Sequence[Message], reduces: bool) -> list[tuple[Message, int | None]]:
    """Messages by start, with the contributors that they carry; between two ranks none arrives before one sent earlier."""
    summed: defaultdict[tuple[int, int], int] = defaultdict(int)  # (rank, block) -> contributors that have arrived
    latest: defaultdict[tuple[int, int], int] = defaultdict(int)
    out: list[tuple[Message, int | None]] = []
    for message in sorted(messages):
        pair = message.source, message.destination
        latest[pair] = max(latest[pair], message.end)
        carried = None
        if reduces:
            carried = summed[message.source, message.block] | 1 << message.source
            summed[message.destination, message.block] |= carried
        out.append((message._replace(end=latest[pair]), carried))
    return out


def _steps(events: list[tuple[int, int, Transfer]]) -> list[Step]:
    """A rank's transfers as steps: what is sent after something has arrived begins a new one."""
    steps: list[Step] = []
    ordered = [transfer for _, _, transfer in sorted(events, key=lambda event: event[:2])]
    for is_send, run in groupby(ordered, key=lambda transfer: transfer.kind is Kind.SEND):
        if is_send or not steps:
            steps.append(tuple(run))
        else:
            steps[-1] = (*steps[-1], *run)
    return steps
