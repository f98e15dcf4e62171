"""Divides a collective into rounds: both ends of a message derive the same round for it, without communicating.

In ``engine`` a sender never waits for its receiver. A library's send does: NCCL's holds up the stream until the
receiver is there. Over such a library a schedule runs in rounds (``point_to_point``). All sends and receives of a rank
in one round are posted together. Rounds are the earliest that keep the rules of ``engine``:

* a step begins after all receives of the step before it,
* a target changes only after the messages that read it have left,
* channels follow one another as the program says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaleacross.errors import InputError
from scaleacross.runtime.messages import Message, RankProgram


class Round(NamedTuple):
    """The messages that one rank posts together. Messages between two ranks have the same order at both."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


@dataclass(slots=True)
class _End:
    """One end of a message: its rank, channel, step and index in the step."""

    rank: int
    channel: int
    step: int
    place: int
    message: Message


@dataclass(slots=True)
class _Travel:
    """A message with both ends, and its round."""

    sender: _End
    receiver: _End
    round: int = 0


def rounds_of(programs: Sequence[RankProgram], rank: int) -> tuple[Round, ...]:
    """Return the messages that ``rank`` posts, round by round. The work grows with the messages of all ranks.

    Args:
        programs: programs of all ranks of the group, by rank.

    Raises:
        InputError: the programs do not match, or their steps form a cycle if senders wait for receivers.
    """
    travels = _paired(programs)
    by_receiver: defaultdict[tuple[int, int, int], list[_Travel]] = defaultdict(list)
    by_sender: defaultdict[tuple[int, int], list[_Travel]] = defaultdict(list)
    for travel in travels:
        by_receiver[travel.receiver.rank, travel.receiver.channel, travel.receiver.step].append(travel)
        by_sender[travel.sender.rank, travel.sender.channel].append(travel)
    # without a cycle no chain of dependencies is longer than the number of messages
    for _ in range(len(travels) + 2):
        if not _settle_once(programs, travels, by_receiver, by_sender):
            return _own(travels, rank)
    raise InputError(
        "the schedule cannot run where senders wait for receivers: its steps wait for each other in a circle"
    )


def _settle_once(
    programs: Sequence[RankProgram],
    travels: Sequence[_Travel],
    by_receiver: dict[tuple[int, int, int], list[_Travel]],
    by_sender: dict[tuple[int, int], list[_Travel]],
) -> bool:
    """Move messages to the rounds that the others require. Return whether any has moved."""
    begins: dict[tuple[int, int, int], int] = {}
    for rank, program in enumerate(programs):
        for channel, steps in enumerate(program.channels):
            begin = 0
            for step in range(len(steps)):
                # a channel begins a step a round after the channel that it follows
                before = begins.get((rank, channel - program.num_parallel, step), -1)
                begin = begins[rank, channel, step] = max(begin, before + 1)
                arriving = by_receiver.get((rank, channel, step), ())
                begin = max((travel.round + 1 for travel in arriving), default=begin)
                begin = max(begin, begins[rank, channel, step])
    moved = False
    for travel in travels:
        sender, receiver = travel.sender, travel.receiver
        earliest = max(
            begins[sender.rank, sender.channel, sender.step], begins[receiver.rank, receiver.channel, receiver.step]
        )
        left = by_sender.get((receiver.rank, receiver.channel), [])[: receiver.message.after_sends]
        earliest = max([earliest, *(one.round for one in left)])
        if receiver.message.behind >= 0:
            same = by_receiver[receiver.rank, receiver.channel, receiver.step]
            earliest = max(earliest, next(one.round for one in same if one.receiver.place == receiver.message.behind))
        if earliest > travel.round:
            travel.round, moved = earliest, True
    return moved


def _paired(programs: Sequence[RankProgram]) -> list[_Travel]:
    """Return every message with both ends, ordered by the sender's rank, channel and step."""
    receivers = {
        (message.peer, rank, channel, message.ordinal): _End(rank, channel, number, place, message)
        for rank, program in enumerate(programs)
        for channel, steps in enumerate(program.channels)
        for number, step in enumerate(steps)
        for place, message in enumerate(step.receives)
    }
    travels = [
        _Travel(
            _End(rank, channel, number, place, message), receivers.pop((rank, message.peer, channel, message.ordinal))
        )
        for rank, program in enumerate(programs)
        for channel, steps in enumerate(program.channels)
        for number, step in enumerate(steps)
        for place, message in enumerate(step.sends)
        if (rank, message.peer, channel, message.ordinal) in receivers
    ]
    sent = sum(len(step.sends) for program in programs for steps in program.channels for step in steps)
    if receivers or len(travels) != sent:
        raise InputError(f"{sent} messages leave and {len(travels) + len(receivers)} are expected: no collective")
    return travels


def _own(travels: Sequence[_Travel], rank: int) -> tuple[Round, ...]:
    last = max((travel.round for travel in travels), default=-1)
    sends: list[list[_Travel]] = [[] for _ in range(last + 1)]
    receives: list[list[_Travel]] = [[] for _ in range(last + 1)]
    for travel in travels:
        if travel.sender.rank == rank:
            sends[travel.round].append(travel)
        if travel.receiver.rank == rank:
            receives[travel.round].append(travel)
    out = []
    for leaving, arriving in zip(sends, receives, strict=True):
        arriving.sort(key=lambda travel: (travel.receiver.channel, travel.receiver.step, travel.receiver.place))
        out.append(Round(tuple(t.sender.message for t in leaving), tuple(t.receiver.message for t in arriving)))
    return tuple(one for one in out if one.sends or one.receives)
