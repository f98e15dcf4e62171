"""Compiles a collective schedule into what one rank does with its buffers: which elements leave, where others arrive.

Buffers hold elements, not bytes. INPUT is the caller's tensor, WORK the tensor that the collective computes. A block is
read from INPUT until this rank has written it to WORK, so nothing is copied up front. PASSING holds blocks of an
all-to-all that this rank only forwards. In place, INPUT and WORK are the same buffer.

``operations`` compiles the programs; ``engine`` and ``lockstep`` read them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from scaleacross.schedules.collective import CollectiveSchedule, Kind, Operation, Transfer

INPUT, WORK, PASSING = 0, 1, 2

COPY: Final = 0
"""The arriving elements replace the target."""
ADD: Final = 1
"""The arriving elements are reduced into the target."""
ADD_TO_INPUT: Final = 2
"""The target becomes the reduction of INPUT and the arriving elements."""


class Piece(NamedTuple):
    """Consecutive elements of one buffer."""

    buffer: int
    start: int
    length: int


Place = Callable[[int, int], Piece]
"""(block, channel) -> its elements; for reductions in WORK, where the same range of INPUT has the caller's values."""


@dataclass(slots=True)
class Message:
    """One message as one end sees it.

    Attributes:
        peer: rank of the other end.
        ordinal: number of earlier messages in the same direction between the two ranks on this channel.
        pieces: elements, in the order in which they travel.
        modes: for a received message, one mode per piece (COPY, ADD or ADD_TO_INPUT); empty for a sent message.
        after_sends: for a received message, the number of this rank's messages on the channel that must have left
            before the target may change.
        behind: for a received message, the index in the same step of a message that must be applied first, since both
            share a target; −1 for none.
        settles: for a sent message, whether its pieces are finished sums that leave their owner for the first time.
    """

    peer: int
    ordinal: int
    pieces: tuple[Piece, ...]
    modes: tuple[int, ...] = ()
    after_sends: int = 0
    behind: int = -1
    settles: bool = False

    @property
    def num_elements(self) -> int:
        """Number of elements of all pieces."""
        return sum(piece.length for piece in self.pieces)


@dataclass(slots=True)
class RankStep:
    """The messages that leave when a step begins, and those that must arrive before the next step."""

    sends: list[Message] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)


@dataclass(frozen=True)
class RankProgram:
    """All steps of one rank.

    Attributes:
        channels: [channel] -> steps; every channel has the same number of them.
        num_parallel: number of concurrent channels; channel c follows channel c − num_parallel.
        untouched: pieces of the result in WORK that this rank never wrote; their values are still in INPUT.
        traffic: peer -> (messages sent to it, messages received from it).
    """

    channels: tuple[tuple[RankStep, ...], ...]
    num_parallel: int
    untouched: tuple[Piece, ...]
    traffic: Mapping[int, tuple[int, int]]


def rank_program(
    schedule: CollectiveSchedule, rank: int, place: Place, in_place: bool, keep_empty: bool, keep_blocks_apart: bool
) -> RankProgram:
    """Return everything that ``rank`` does in ``schedule``.

    Args:
        schedule: the collective.
        place: location of every block.
        in_place: INPUT and WORK are one buffer.
        keep_empty: send messages without elements too, because the other end cannot know that they are empty.
        keep_blocks_apart: do not merge adjacent blocks into one piece, because a codec starts anew at each block.
    """
    untouched: list[Piece] = []
    channels = []
    for channel in range(schedule.num_channels):
        compiler = _Channel(schedule, rank, channel, place, in_place, keep_blocks_apart)
        channels.append(tuple(compiler.step(step, keep_empty) for step in schedule.steps(rank, channel)))
        if not in_place:
            untouched += compiler.untouched()
    steps = [step for channel in channels for step in channel]
    sends = Counter(message.peer for step in steps for message in step.sends)
    receives = Counter(message.peer for step in steps for message in step.receives)
    return RankProgram(
        channels=tuple(channels),
        num_parallel=schedule.num_parallel,
        untouched=tuple(piece for piece in untouched if piece.length),
        traffic={peer: (sends[peer], receives[peer]) for peer in sorted(sends | receives)},
    )


class _Channel:
    """Compiles one channel of one rank. It tracks which blocks the rank has written, and which sends read them last."""

    def __init__(
        self,
        schedule: CollectiveSchedule,
        rank: int,
        channel: int,
        place: Place,
        in_place: bool,
        keep_blocks_apart: bool,
    ) -> None:
        self.schedule, self.rank, self.channel, self.place = schedule, rank, channel, place
        self.in_place, self.keep_blocks_apart = in_place, keep_blocks_apart
        self.reduces = schedule.reduces
        self.everybody = (1 << schedule.num_ranks) - 1
        self.written: set[int] = set()
        self.settled: set[int] = set()
        self.last_send: dict[int, int] = {}
        self.num_sends = 0
        self.sent: defaultdict[int, int] = defaultdict(int)
        self.received: defaultdict[int, int] = defaultdict(int)

    def step(self, transfers: Iterable[Transfer], keep_empty: bool) -> RankStep:
        """Compile one step. Its sends read the values held when it begins, so they are compiled before its receives."""
        out = RankStep()
        ordered = sorted(transfers, key=lambda transfer: transfer.kind is not Kind.SEND)
        reading = [t for t in ordered if t.kind is Kind.SEND]
        arriving = [t for t in ordered if t.kind is not Kind.SEND]
        for transfer in reading:
            message = self._send(transfer)
            if message.num_elements or keep_empty:
                self._count_send(transfer, message)
                out.sends.append(message)
        owners: dict[int, int] = {}
        for transfer in arriving:
            message = self._receive(transfer, owners, len(out.receives))
            if message.num_elements or keep_empty:
                message.ordinal = self.received[transfer.peer]
                self.received[transfer.peer] += 1
                out.receives.append(message)
        return out

    def untouched(self) -> list[Piece]:
        """Return the blocks of this rank's result that are still in INPUT."""
        if not self.reduces:
            return []
        mine = (b for b in range(self.schedule.num_blocks) if self.schedule.ends_with(self.rank, b))
        return [self.place(block, self.channel) for block in mine if block not in self.written]

    def _send(self, transfer: Transfer) -> Message:
        finished = self.reduces and transfer.contributors in (None, self.everybody)
        settles = finished and any(block not in self.settled for block in transfer.blocks)
        if finished:
            self.settled.update(transfer.blocks)
        pieces = [self._where(block) for block in transfer.blocks]
        return Message(transfer.peer, 0, self._joined(pieces, [0] * len(pieces))[0], settles=settles)

    def _count_send(self, transfer: Transfer, message: Message) -> None:
        message.ordinal = self.sent[transfer.peer]
        self.sent[transfer.peer] += 1
        self.num_sends += 1
        for block in transfer.blocks:
            # counted from 1, so that it is the number of sends that must have left
            self.last_send[block] = self.num_sends

    def _receive(self, transfer: Transfer, owners: dict[int, int], index: int) -> Message:
        pieces, modes, behind = [], [], -1
        after = max((self.last_send.get(block, 0) for block in transfer.blocks), default=0)
        for block in transfer.blocks:
            pieces.append(self.place(block, self.channel))
            if transfer.kind is Kind.RECV:
                modes.append(COPY)
                self.settled.add(block)  # whoever finished it has settled it
            else:
                # the first arrival reads the caller's value in INPUT, later ones the partial sum in WORK
                modes.append(ADD if self.in_place or block in self.written else ADD_TO_INPUT)
            self.written.add(block)
            behind = max(behind, owners.get(block, -1))
            owners[block] = index
        joined, joined_modes = self._joined(pieces, modes)
        return Message(transfer.peer, 0, joined, joined_modes, after_sends=after, behind=behind)

    def _where(self, block: int) -> Piece:
        piece = self.place(block, self.channel)
        if self.reduces and not self.in_place and block not in self.written:
            return piece._replace(buffer=INPUT)
        return piece

    def _joined(self, pieces: Sequence[Piece], modes: Sequence[int]) -> tuple[tuple[Piece, ...], tuple[int, ...]]:
        """Merge adjacent pieces of equal mode, and drop pieces without elements."""
        out: list[Piece] = []
        out_modes: list[int] = []
        for piece, mode in zip(pieces, modes, strict=True):
            if not piece.length:
                continue
            last = out[-1] if out and not self.keep_blocks_apart else None
            if (
                last
                and out_modes[-1] == mode
                and last.buffer == piece.buffer
                and last.start + last.length == piece.start
            ):
                out[-1] = last._replace(length=last.length + piece.length)
            else:
                out.append(piece)
                out_modes.append(mode)
        return tuple(out), tuple(out_modes)


def shares(num_elements: int, parts: int) -> list[int]:
    """Return the ``parts`` + 1 boundaries of pieces of ``num_elements`` whose lengths differ by at most one element."""
    return [num_elements * part // parts for part in range(parts + 1)]


def channel_major(schedule: CollectiveSchedule, num_elements: int) -> Place:
    """Return the place of blocks in an all-reduce or broadcast.

    These may cut the tensor freely: each channel has one contiguous range of it, which holds the channel's blocks in
    order.
    """
    cuts = shares(num_elements, schedule.num_channels * schedule.num_blocks)

    def place(block: int, channel: int) -> Piece:
        index = channel * schedule.num_blocks + block
        return Piece(WORK, cuts[index], cuts[index + 1] - cuts[index])

    return place


def block_major(schedule: CollectiveSchedule, block_elements: int) -> Place:
    """Return the place of blocks in a reduce-scatter or all-gather: block r is rank r's shard, cut into channels."""
    cuts = shares(block_elements, schedule.num_channels)

    def place(block: int, channel: int) -> Piece:
        return Piece(WORK, block * block_elements + cuts[channel], cuts[channel + 1] - cuts[channel])

    return place


def exchanged(schedule: CollectiveSchedule, rank: int, counts: Callable[[int, int], int]) -> tuple[Place, int]:
    """Return the place of blocks in an all-to-all.

    Blocks that ``rank`` sends lie in INPUT by destination. Blocks for ``rank`` lie in WORK by source. All others lie in
    PASSING.

    Args:
        schedule: an ALL_TO_ALL.
        rank: the rank whose buffers these are.
        counts: (source, destination) -> elements; called for blocks that touch ``rank`` or pass through it.

    Returns:
        (place, number of elements of PASSING).
    """
    if schedule.operation is not Operation.ALL_TO_ALL:
        raise ValueError(f"{schedule.operation.value} has no blocks to exchange")
    n, num_channels = schedule.num_ranks, schedule.num_channels
    leaving, arriving = [0], [0]
    for other in range(n):
        leaving.append(leaving[-1] + counts(rank, other))
        arriving.append(arriving[-1] + counts(other, rank))
    passing: dict[int, int] = {}
    total = 0
    for step in schedule.steps(rank, 0):
        for transfer in step:
            for block in transfer.blocks:
                if rank not in (block // n, block % n) and block not in passing:
                    passing[block] = total
                    total += counts(block // n, block % n)

    def place(block: int, channel: int) -> Piece:
        source, destination = block // n, block % n
        cuts = shares(counts(source, destination), num_channels)
        if destination == rank:
            buffer, start = WORK, arriving[source]
        elif source == rank:
            buffer, start = INPUT, leaving[destination]
        else:
            buffer, start = PASSING, passing[block]
        return Piece(buffer, start + cuts[channel], cuts[channel + 1] - cuts[channel])

    return place, total
