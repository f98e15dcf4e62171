"""Turns a collective given message by message, such as a synthesis finds, into the steps of every rank.

An all-gather is a list of messages, each with one block from one rank to another between two ticks. Reversed in time,
over the same links in the other direction, it is a reduce-scatter. A rank then adds the values from its receivers of
the gather, and passes the sum to the rank from which it received the block. An all-reduce is one of each. Ticks order
the messages; they are not durations.
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
    """One block from ``source``, sent at tick ``start``, which arrives at ``destination`` at tick ``end``."""

    start: int
    end: int
    source: int
    destination: int
    block: int


def backwards(gather: Sequence[Message]) -> list[Message]:
    """Return the messages of a reduce-scatter whose mirror image in time is ``gather``."""
    last = max((message.end for message in gather), default=0)
    return [Message(last - m.end, last - m.start, m.destination, m.source, m.block) for m in gather]


def routed(
    name: str, operation: Operation, num_ranks: int, num_blocks: int, phases: Sequence[Sequence[Message]]
) -> CollectiveSchedule:
    """Return the schedule of one phase (all-gather, or reduce-scatter by ``backwards``) or of both (all-reduce, scatter
    first).

    Args:
        operation: all_gather, reduce_scatter or all_reduce.
        num_blocks: a multiple of ``num_ranks``; rank r owns the r-th run of num_blocks / num_ranks blocks.
        phases: messages of each phase; every phase has its own ticks. ``check`` proves them, not this function.
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
    """Return the messages by start, each with the contributors that it carries.

    Ends are postponed so that between two ranks no message arrives before one that was sent earlier.
    """
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
    """Return a rank's transfers as steps: a send after a receive begins a new step."""
    steps: list[Step] = []
    ordered = [transfer for _, _, transfer in sorted(events, key=lambda event: event[:2])]
    for is_send, run in groupby(ordered, key=lambda transfer: transfer.kind is Kind.SEND):
        if is_send or not steps:
            steps.append(tuple(run))
        else:
            steps[-1] = (*steps[-1], *run)
    return steps
