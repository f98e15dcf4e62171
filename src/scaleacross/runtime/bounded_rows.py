"""Sends embedding rows to other ranks within a bound on every element: coded on host or device, sizes ahead of bytes.

Which peers get coded rows is a choice per rank: a plan codes them across buildings and leaves them unchanged where
links are fast. Rows that stay on their own rank are never coded. The functions wait for the host, and work on any group
of torch.distributed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from scaleacross.errors import InputError
from scaleacross.row_codec.message import RowCodec, as_it_is, read_rows
from scaleacross.runtime.device_rows import STAGE, read_rows_on, write_rows

Codecs = Sequence[RowCodec | None]
"""Codecs by rank of the group; None: rows travel uncoded."""
_SIZE: Final = struct.Struct("<Q")


@dataclass(frozen=True)
class BoundedRows:
    """Rows that have arrived.

    Attributes:
        rows: fp32 (num_rows, width) by source rank, in the order in which each source had them.
        counts: rows per source.
        sent_bytes: bytes that this rank sent to others, sizes included.
    """

    rows: Tensor
    counts: tuple[int, ...]
    sent_bytes: int


@dataclass(frozen=True)
class OwnTable:
    """The columns of a rank's vectors that belong to one table, and how they travel to every rank."""

    width: int
    codecs: Codecs


def exchange_rows_bounded(group: dist.ProcessGroup, rows: Tensor, destinations: Tensor, codecs: Codecs) -> BoundedRows:
    """Send row i to rank ``destinations[i]`` of ``group``; all ranks call it with the same width.

    Args:
        rows: fp32 (num_rows, width).
        destinations: int64 (num_rows,), ranks of the group; a negative one sends the row nowhere.
        codecs: how rows travel to each rank.

    Raises:
        InputError: shapes or types make no sense, or an element that is to be coded is infinite or NaN.
    """
    if rows.dim() != 2 or destinations.shape != rows.shape[:1]:
        raise InputError(f"rows of {tuple(rows.shape)} with destinations of {tuple(destinations.shape)}")
    size, me, own = group.size(), group.rank(), _fp32(rows)
    _require_codecs(codecs, size)
    wanted = destinations.to(own.device)
    parts = [own[wanted == rank] for rank in range(size)]
    messages = [
        _message(part, codec) if rank != me else b""
        for rank, (part, codec) in enumerate(zip(parts, codecs, strict=True))
    ]
    came = exchange_messages(group, messages)
    read = [_read(data, own.device) if rank != me else parts[me] for rank, data in enumerate(came)]
    widths = {part.shape[1] for part in read}
    if len(widths) > 1:
        raise InputError(f"ranks sent rows of {', '.join(map(str, sorted(widths)))} columns: all must have as many")
    out = torch.cat(read)
    return BoundedRows(out, tuple(map(len, read)), sum(map(len, messages)) + _SIZE.size * (size - 1))


def exchange_vectors(group: dist.ProcessGroup, vectors: Tensor, tables: Sequence[OwnTable]) -> Tensor:
    """Exchange the own tables' vectors of all samples for all tables' vectors of the own samples.

    Args:
        vectors: fp32 (ranks · samples per rank, Σ width), the columns of the rank's tables in order. They may need
            gradients, which travel back uncoded.
        tables: in the order of the columns.

    Returns:
        (samples per rank, Σ width of all ranks' tables), by rank and table.

    Raises:
        InputError: shapes make no sense, or an element that is to be coded is infinite or NaN.
    """
    size = group.size()
    if vectors.dim() != 2 or vectors.shape[0] % size or vectors.shape[1] != sum(one.width for one in tables):
        raise InputError(
            f"vectors of {tuple(vectors.shape)} for {size} ranks and widths {[one.width for one in tables]}"
        )
    for one in tables:
        _require_codecs(one.codecs, size)
    out: Tensor = _Exchange.apply(vectors, group, tables)
    return out


def exchange_messages(group: dist.ProcessGroup, messages: Sequence[bytes]) -> list[bytes]:
    """Send message r to rank r of ``group``, sizes first. Return the messages that came, by source."""
    sizes = torch.tensor([len(one) for one in messages])
    coming = torch.empty_like(sizes)
    dist.all_to_all_single(coming, sizes, group=group)
    splits = coming.tolist()
    data = torch.frombuffer(bytearray(b"".join(messages) or b"\0"), dtype=torch.uint8)[: int(sizes.sum())]
    came = torch.empty(sum(splits), dtype=torch.uint8)
    dist.all_to_all_single(came, data, splits, sizes.tolist(), group=group)
    whole, ends = came.numpy().tobytes(), np.cumsum(splits)
    return [whole[end - length : end] for end, length in zip(ends, splits, strict=True)]


class _Exchange(torch.autograd.Function):
    """Sends vectors forward, coded, and gradients backward, uncoded."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, group: dist.ProcessGroup, tables: Sequence[OwnTable]) -> Tensor:
        size, me = group.size(), group.rank()
        blocks = _fp32(vectors).reshape(size, vectors.shape[0] // size, vectors.shape[1])
        edges = np.cumsum([0, *(one.width for one in tables)])
        messages = [
            b""
            if rank == me
            else _joined(
                [
                    _message(blocks[rank][:, low:high], one.codecs[rank])
                    for one, low, high in zip(tables, edges, edges[1:], strict=False)
                ]
            )
            for rank in range(size)
        ]
        came = exchange_messages(group, messages)
        parts = [
            blocks[me] if rank == me else _columns(data, blocks.shape[1], blocks.device)
            for rank, data in enumerate(came)
        ]
        ctx.group, ctx.widths, ctx.own_width = group, [part.shape[1] for part in parts], vectors.shape[1]
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        samples, size = gradient.shape[0], ctx.group.size()
        leaving = torch.cat([part.reshape(-1) for part in gradient.split(ctx.widths, dim=1)])
        back = gradient.new_empty(size * samples, ctx.own_width)
        dist.all_to_all_single(
            back.view(-1),
            leaving,
            [samples * ctx.own_width] * size,
            [samples * width for width in ctx.widths],
            group=ctx.group,
        )
        return back, None, None


def _joined(messages: Sequence[bytes]) -> bytes:
    return b"".join(_SIZE.pack(len(one)) + one for one in messages)


def _columns(data: bytes, samples: int, device: torch.device) -> Tensor:
    """Return the columns of several tables in one tensor; (samples, 0) for a rank that has none.

    Raises:
        InputError: the bytes are cut or damaged, or a table has another number of samples.
    """
    at, parts = 0, [torch.zeros(samples, 0, device=device)]
    while at < len(data):
        start = at + _SIZE.size
        at = start + _SIZE.unpack_from(data, at)[0] if start <= len(data) else start
        if at > len(data):
            raise InputError(f"messages of coded rows are cut: {at:,} bytes or more were announced, {len(data):,} came")
        part = _read(data[start:at], device)
        if len(part) != samples:
            raise InputError(f"a message of coded rows has {len(part):,} samples: {samples:,} are due")
        parts.append(part)
    return torch.cat(parts, dim=1)


def _message(rows: Tensor, codec: RowCodec | None) -> bytes:
    """Return the message of ``rows``, uncoded without a codec; coded on their device if the stage allows it."""
    if codec is not None and codec.stage == STAGE and rows.device.type != "cpu":
        return write_rows(rows, codec)
    own = rows.cpu().contiguous().numpy()
    return as_it_is(own) if codec is None else codec.write(own)


def _read(data: bytes, device: torch.device) -> Tensor:
    return torch.from_numpy(read_rows(data)) if device.type == "cpu" else read_rows_on(data, device)


def _fp32(rows: Tensor) -> Tensor:
    if rows.dtype != torch.float32:
        raise InputError(f"rows within a bound are fp32, not {rows.dtype}: a narrower type would round them once more")
    return rows.detach()


def _require_codecs(codecs: Codecs, size: int) -> None:
    if len(codecs) != size:
        raise InputError(f"{len(codecs)} codecs for {size} ranks: one for each, None for rows that travel as they are")
