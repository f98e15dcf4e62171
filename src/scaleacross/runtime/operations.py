"""Prepares torch's collectives as tasks of ``engine``: buffers, reduction, and what follows the last message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch

from scaleacross.runtime.encoding import Encoding, Plain
from scaleacross.runtime.engine import Task
from scaleacross.runtime.messages import (
    INPUT,
    Piece,
    Place,
    RankProgram,
    block_major,
    channel_major,
    exchanged,
    rank_program,
)
from scaleacross.runtime.reduction import COMBINE, sum_dtype
from scaleacross.runtime.wire import Identity, code_of
from scaleacross.schedules.collective import CollectiveSchedule, Operation, flat
from scaleacross.schedules.collective.transfer import Steps


@dataclass(frozen=True)
class Codes:
    """How elements are encoded between peers.

    Attributes:
        encoding: peer -> encoding; None: elements travel unchanged.
        settle: rounds values, in place, to what the encodings can represent.
        name: name of the codec in messages and traces.
    """

    encoding: Callable[[int], Encoding | None]
    settle: Callable[[torch.Tensor], None]
    name: str


@dataclass(frozen=True)
class Prepared:
    """A task and the work that follows it.

    Attributes:
        finish: called after the last message.
        programs: rank of the group -> its program; None if only that rank knows it.
    """

    task: Task
    finish: Callable[[], None]
    programs: Callable[[int], RankProgram] | None = None


def all_reduce(
    schedule: CollectiveSchedule,
    rank: int,
    sequence: int,
    tensor: torch.Tensor,
    reduction: str,
    codes: Codes | None = None,
) -> Prepared:
    """Prepare a reduction of ``tensor`` (contiguous) in place."""
    values = tensor.view(-1)
    wide = sum_dtype(tensor.dtype)
    in_place = wide == tensor.dtype
    work = values if in_place else torch.empty(values.numel(), dtype=wide, device=tensor.device)
    programs = partial(_reducing_program, schedule, values.numel(), in_place, codes is not None)
    program = programs(rank)

    def finish() -> None:
        for piece in program.untouched:
            work[piece.start : piece.start + piece.length] = values[piece.start : piece.start + piece.length]
        _divide(work, reduction, schedule.num_ranks)
        if not in_place:
            values.copy_(work)

    return Prepared(
        _task(schedule, sequence, program, (values, work), tensor.dtype, reduction, codes), finish, programs
    )


def reduce_scatter(
    schedule: CollectiveSchedule,
    rank: int,
    sequence: int,
    output: torch.Tensor,
    tensor: torch.Tensor,
    reduction: str,
    codes: Codes | None = None,
) -> Prepared:
    """Prepare a reduction of ``tensor`` (ranks · shard, contiguous, unchanged); ``output`` gets shard ``rank``."""
    values, shard = tensor.view(-1), output.numel()
    work = torch.empty(values.numel(), dtype=sum_dtype(tensor.dtype), device=tensor.device)
    programs = partial(_scattering_program, schedule, shard, codes is not None)
    program = programs(rank)

    def finish() -> None:
        for piece in program.untouched:
            work[piece.start : piece.start + piece.length] = values[piece.start : piece.start + piece.length]
        mine = work[rank * shard : (rank + 1) * shard]
        _divide(mine, reduction, schedule.num_ranks)
        output.view(-1).copy_(mine)

    return Prepared(
        _task(schedule, sequence, program, (values, work), tensor.dtype, reduction, codes), finish, programs
    )


def all_gather(
    schedule: CollectiveSchedule,
    rank: int,
    sequence: int,
    output: torch.Tensor,
    tensor: torch.Tensor,
    codes: Codes | None = None,
) -> Prepared:
    """Prepare a gather of every rank's ``tensor`` into ``output`` (ranks · elements of tensor, contiguous)."""
    work, shard = output.view(-1), tensor.numel()
    mine = work[rank * shard : (rank + 1) * shard]
    if mine.data_ptr() != tensor.data_ptr():
        mine.copy_(tensor.reshape(-1))
    _settle(codes, work, block_major(schedule, shard), rank, schedule.num_channels)
    programs = partial(_scattering_program, schedule, shard, codes is not None)
    task = _task(schedule, sequence, programs(rank), (work, work), tensor.dtype, None, codes)
    return Prepared(task, _nothing, programs)


def broadcast(schedule: CollectiveSchedule, rank: int, sequence: int, tensor: torch.Tensor, root: int) -> Prepared:
    """Prepare a broadcast of ``root``'s ``tensor`` into every rank's, contiguous; the schedule's rank 0 is ``root``."""
    values = tensor.view(-1)
    programs = partial(_reducing_program, _rotated(schedule, root), values.numel(), True, False)
    task = _task(schedule, sequence, programs(rank), (values, values), tensor.dtype, None, None, f" from {root}")
    return Prepared(task, _nothing, programs)


def all_to_all(
    schedule: CollectiveSchedule,
    rank: int,
    sequence: int,
    output: torch.Tensor,
    tensor: torch.Tensor,
    counts: Sequence[int],
) -> Prepared:
    """Prepare the exchange of blocks of ``tensor`` by destination for blocks of ``output`` by source.

    Args:
        counts: elements by source and destination if ``needs_all_counts`` holds. Otherwise the elements that ``rank``
            sends to each peer, then those that it receives from each.
    """
    program, own, num_passing = _exchanging_program(schedule, tuple(counts), rank)
    values, out = tensor.view(-1), output.view(-1)
    buffers = (values, out, torch.empty(num_passing, dtype=tensor.dtype) if num_passing else values)
    task = _task(schedule, sequence, program, buffers, tensor.dtype, None, None)
    for source, target in own:
        task.move(source, target)
    return Prepared(task, _nothing)


def needs_all_counts(schedule: CollectiveSchedule) -> bool:
    """Return whether blocks pass through ranks that are neither their source nor their destination."""
    return schedule.name == "two_level"


@lru_cache(maxsize=64)
def counts_schedule(num_ranks: int) -> CollectiveSchedule:
    """Return the all-gather by which every rank learns the counts that the others send."""
    return flat(Operation.ALL_GATHER, "direct", num_ranks)


@lru_cache(maxsize=256)
def _reducing_program(
    schedule: CollectiveSchedule, num_elements: int, in_place: bool, apart: bool, rank: int
) -> RankProgram:
    return rank_program(schedule, rank, channel_major(schedule, num_elements), in_place, False, apart)


@lru_cache(maxsize=256)
def _scattering_program(schedule: CollectiveSchedule, shard: int, apart: bool, rank: int) -> RankProgram:
    in_place = schedule.operation is not Operation.REDUCE_SCATTER
    return rank_program(schedule, rank, block_major(schedule, shard), in_place, False, apart)


@lru_cache(maxsize=256)
def _exchanging_program(
    schedule: CollectiveSchedule, known: tuple[int, ...], rank: int
) -> tuple[RankProgram, list[tuple[Piece, Piece]], int]:
    """Return (program of ``rank``, (INPUT piece, WORK piece) of elements that stay with it, elements of PASSING)."""
    n = schedule.num_ranks

    def counts(source: int, destination: int) -> int:
        if needs_all_counts(schedule):
            return known[source * n + destination]
        return known[destination] if source == rank else known[n + source]

    place, num_passing = exchanged(schedule, rank, counts)
    program = rank_program(schedule, rank, place, in_place=False, keep_empty=True, keep_blocks_apart=False)
    # INPUT is ordered by destination and WORK by source, so the own block starts at different offsets
    shift = sum(counts(rank, other) for other in range(rank)) - sum(counts(other, rank) for other in range(rank))
    pieces = [place(rank * n + rank, channel) for channel in range(schedule.num_channels)]
    own = [(Piece(INPUT, to.start + shift, to.length), to) for to in pieces if to.length]
    return program, own, num_passing


def _task(
    schedule: CollectiveSchedule,
    sequence: int,
    program: RankProgram,
    buffers: Sequence[torch.Tensor],
    dtype: torch.dtype,
    reduction: str | None,
    codes: Codes | None,
    detail: str = "",
) -> Task:
    plain = _plain(dtype)
    text, code = _said(schedule, dtype, reduction, codes and codes.name, detail)
    varies = schedule.operation is Operation.ALL_TO_ALL
    return Task(
        program=program,
        buffers=buffers,
        combine=COMBINE[reduction] if reduction else None,
        identity=Identity(sequence, code, 0 if varies else buffers[INPUT].numel(), text),
        encoding=_encodings(codes, plain),
        plain=plain,
        settle=None if codes is None else codes.settle,
    )


@lru_cache(maxsize=32)
def _plain(dtype: torch.dtype) -> Encoding:
    return Plain(dtype)


@lru_cache(maxsize=256)
def _said(
    schedule: CollectiveSchedule, dtype: torch.dtype, reduction: str | None, codec: str | None, detail: str
) -> tuple[str, int]:
    """Return a description of a collective, and its hash."""
    how = f" {reduction}" if reduction else ""
    text = f"{schedule.operation.value}{detail}{how} of {str(dtype).removeprefix('torch.')} by {schedule.name}"
    if schedule.num_channels > 1:
        text += f" in {schedule.num_channels} channels"
    if codec is not None:
        text += f", {codec}"
    return text, code_of(text)


@lru_cache(maxsize=256)
def _rotated(schedule: CollectiveSchedule, root: int) -> CollectiveSchedule:
    """Return the same broadcast with ranks counted from ``root``."""
    if root == 0:
        return schedule
    n = schedule.num_ranks

    def program(rank: int, channel: int) -> Steps:
        for step in schedule.program((rank - root) % n, channel):
            yield tuple(transfer._replace(peer=(transfer.peer + root) % n) for transfer in step)

    return replace(schedule, program=program, sends=None)


def _encodings(codes: Codes | None, plain: Encoding) -> Callable[[int], Encoding]:
    if codes is None:
        return lambda _: plain
    return lambda peer: codes.encoding(peer) or plain


def _settle(codes: Codes | None, work: torch.Tensor, place: Place, block: int, num_channels: int) -> None:
    """Round a finished block before it leaves its owner, piece by piece as it will be encoded."""
    for channel in range(num_channels if codes is not None else 0):
        piece = place(block, channel)
        if piece.length and codes is not None:
            codes.settle(work[piece.start : piece.start + piece.length])


def _divide(values: torch.Tensor, reduction: str, num_ranks: int) -> None:
    if reduction == "avg":
        values.div_(num_ranks)


def _nothing() -> None:
    return
