"""Proves a collective schedule correct, without knowledge of how it was made.

Every rank contributes exactly once, no block is read before it is there, and no rank waits for ever. ``check`` runs all
ranks against one another. ``check_rank`` proves one rank of a schedule that is too large for that. It trusts what the
messages of other ranks *say* they carry, and proves that the messages of this rank are true. If every rank passes and
the waiting has no cycle, induction over the messages gives the same conclusion as ``check``.

Pipelined chunks run the same program (``transfer``), so every program is proved once, however many chunks there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from scaleacross.errors import VerificationError
from scaleacross.schedules.collective.transfer import CollectiveSchedule, Kind, Step, Transfer

FINISHED = None
_MAX_STUCK_SHOWN = 8


class _Held:
    """Blocks that one rank holds on one channel: block -> contributors as bits, or FINISHED; no entry: not held."""

    def __init__(self, schedule: CollectiveSchedule, rank: int, channel: int) -> None:
        self.schedule, self.rank, self.channel = schedule, rank, channel
        self.everybody = (1 << schedule.num_ranks) - 1
        own = 1 << rank if schedule.reduces else FINISHED
        self.blocks: dict[int, int | None] = {}
        if own == self.everybody:
            own = FINISHED
        for block in range(schedule.num_blocks):
            if schedule.begins_with(rank, block):
                self.blocks[block] = own

    def may_send(self, transfer: Transfer) -> None:
        """Require that this rank holds every block of the message, with the contributors that the message states."""
        for block in transfer.blocks:
            if block not in self.blocks:
                self.fail(transfer, f"reads block {block} before it is there")
            held = self.blocks[block]
            if held != self.said(transfer):
                self.fail(
                    transfer, f"says {_names(transfer.contributors)} for block {block}, which holds {_names(held)}"
                )

    def take(self, transfer: Transfer) -> None:
        """Apply an arriving message.

        A value that replaces a held one must contain all its contributors. A value that is added must share none with
        it.
        """
        arrived = self.said(transfer)
        for block in transfer.blocks:
            if not 0 <= block < self.schedule.num_blocks:
                self.fail(transfer, f"names block {block} of {self.schedule.num_blocks}")
            held = self.blocks.get(block, 0)
            if transfer.kind is Kind.RECV:
                if arrived is not FINISHED and (held is FINISHED or held & ~arrived):
                    self.fail(transfer, f"overwrites {_names(held)} of block {block} with {_names(arrived)}")
                self.blocks[block] = arrived
            elif held is FINISHED or arrived is FINISHED or held & arrived:
                self.fail(transfer, f"adds {_names(arrived)} twice to block {block}, which holds {_names(held)}")
            else:
                self.blocks[block] = FINISHED if held | arrived == self.everybody else held | arrived

    def said(self, transfer: Transfer) -> int | None:
        """Return the contributors that a message states; the sum over all ranks is FINISHED."""
        return FINISHED if transfer.contributors == self.everybody else transfer.contributors

    def must_be_done(self) -> None:
        """Require that every block that the operation owes this rank is finished."""
        for block in range(self.schedule.num_blocks):
            if self.schedule.ends_with(self.rank, block) and self.blocks.get(block, 0) is not FINISHED:
                held = _names(self.blocks.get(block, 0))
                raise VerificationError(f"{self._where()} ends with {held} in block {block}")

    def fail(self, transfer: Transfer, what: str) -> None:
        raise VerificationError(f"{self._where()}, {transfer.kind.value} with rank {transfer.peer}: {what}")

    def _where(self) -> str:
        return f"{self.schedule.name} {self.schedule.operation.value}: rank {self.rank}, channel {self.channel}"


def check(schedule: CollectiveSchedule) -> None:
    """Prove ``schedule`` correct by running all ranks.

    Raises:
        VerificationError: a contribution is missing or counted twice, a block is read before it is there, the two ends of a
            message differ, a message is left over, or ranks wait for one another in a cycle.
    """
    for channel in range(schedule.num_parallel):
        _Run(schedule, channel).run()


def check_rank(schedule: CollectiveSchedule, rank: int) -> int:
    """Prove one rank, given that the messages of others are true; both ends of every message to ``rank`` are compared.

    Returns:
        Largest number of blocks of one channel that arrive in one step, which must be buffered.

    Raises:
        VerificationError: the errors of ``check``, except cycles of waiting, which one rank cannot show.
    """
    buffered = 0
    for channel in range(schedule.num_parallel):
        held = _Held(schedule, rank, channel)
        incoming: dict[int, Iterator[Transfer]] = {}
        for step in schedule.steps(rank, channel):
            for transfer in step:
                if transfer.kind is Kind.SEND:
                    held.may_send(transfer)
            for transfer in step:
                if transfer.kind is not Kind.SEND:
                    if transfer.peer not in incoming:
                        incoming[transfer.peer] = iter(schedule.sent(transfer.peer, rank, channel))
                    _same_message(held, transfer, next(incoming[transfer.peer], None))
                    held.take(transfer)
            buffered = max(buffered, sum(len(t.blocks) for t in step if t.kind is not Kind.SEND))
        for peer, rest in incoming.items():
            if next(rest, None) is not None:
                raise VerificationError(f"{schedule.name}: rank {rank} never receives a message of rank {peer}")
        held.must_be_done()
    return buffered


class _Run:
    """Execution of all ranks of one channel; every rank runs until it waits for a message."""

    def __init__(self, schedule: CollectiveSchedule, channel: int) -> None:
        ranks = range(schedule.num_ranks)
        self.schedule = schedule
        self.held = [_Held(schedule, rank, channel) for rank in ranks]
        self.steps = [schedule.steps(rank, channel) for rank in ranks]
        self.waiting: list[deque[Transfer]] = [deque() for _ in ranks]
        self.on_the_way: dict[tuple[int, int], deque[Transfer]] = {}

    def run(self) -> None:
        ready = deque(range(self.schedule.num_ranks))
        running = set(ready)
        while ready:
            rank = ready.popleft()
            woken, ended = self._advance(rank)
            if ended:
                running.discard(rank)
            ready.extend(woken)
        if running:
            raise VerificationError(self._deadlock(running))
        for (source, destination), left in self.on_the_way.items():
            if left:
                raise VerificationError(
                    f"{self.schedule.name}: rank {destination} never receives a message of rank {source}"
                )
        for held in self.held:
            held.must_be_done()

    def _advance(self, rank: int) -> tuple[list[int], bool]:
        """Run ``rank`` until it waits or ends; return the ranks to which it sent messages, and whether it ended."""
        woken: list[int] = []
        while True:
            waiting = self.waiting[rank]
            while waiting:
                arrived = self.on_the_way.get((waiting[0].peer, rank))
                if not arrived:
                    return woken, False
                _same_message(self.held[rank], waiting[0], arrived.popleft())
                self.held[rank].take(waiting.popleft())
            step: Step | None = next(self.steps[rank], None)
            if step is None:
                return woken, True
            for transfer in step:
                if transfer.kind is Kind.SEND:
                    self.held[rank].may_send(transfer)
                    self.on_the_way.setdefault((rank, transfer.peer), deque()).append(transfer)
                    woken.append(transfer.peer)
                else:
                    waiting.append(transfer)

    def _deadlock(self, running: set[int]) -> str:
        stuck = sorted(rank for rank in running if self.waiting[rank])[:_MAX_STUCK_SHOWN]
        waits = "; ".join(f"rank {rank} waits for rank {self.waiting[rank][0].peer}" for rank in stuck)
        return f"{self.schedule.name}: {len(running)} ranks never end: {waits}"


def _same_message(held: _Held, expected: Transfer, found: Transfer | None) -> None:
    """Require that the two ends of a message agree on its blocks and contributors."""
    if found is None:
        held.fail(expected, "no such message is sent")
    elif tuple(found.blocks) != tuple(expected.blocks) or found.contributors != expected.contributors:
        said, sent = _names(expected.contributors), _names(found.contributors)
        held.fail(expected, f"expects blocks {_few(expected)} of {said}, is sent {_few(found)} of {sent}")


def _names(contributors: int | None) -> str:
    if contributors is FINISHED:
        return "the finished value"
    ranks = [str(rank) for rank in range(contributors.bit_length()) if contributors >> rank & 1]
    shown = ", ".join(ranks[:_MAX_STUCK_SHOWN]) + (" …" if len(ranks) > _MAX_STUCK_SHOWN else "")
    return f"the contributions of ranks {shown}" if ranks else "nothing"


def _few(transfer: Transfer) -> str:
    shown = ", ".join(map(str, transfer.blocks[:_MAX_STUCK_SHOWN]))
    return f"[{shown}{' …' if len(transfer.blocks) > _MAX_STUCK_SHOWN else ''}]"
