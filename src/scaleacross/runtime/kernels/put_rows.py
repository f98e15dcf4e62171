"""All-to-all-v over symmetric memory with counts on the device: every rank writes its rows into their ranks' buffers.

A buffer holds (world_size · capacity, width) rows, by source, and behind them, at the next multiple of 16 bytes, int64
(world_size,) counts: rows that each source wanted to send here, more than ``capacity`` where some found no room. The layout is
that of ``runtime.rows``; ``received`` says where both lie. Ranks meet before (whoever read the last exchange has ended) and after
the writing, as ``symmetric.meet`` does it. What has come is to be read on the stream of the kernel, before the next exchange.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from scaleacross.errors import InputError
from scaleacross.runtime.kernels.launching import NUM_WARPS, check_on_one_device
from scaleacross.runtime.kernels.symmetric import LIMIT, MAX_WORLD, SymmetricMemory, meet
from scaleacross.runtime.rows import Layout

TILE: Final = (16, 256)
"""(rows, columns) that a program moves at a time."""


def put_rows(
    memory: SymmetricMemory, rows: torch.Tensor, layout: Layout, *, tile: tuple[int, int] = TILE, limit: int = LIMIT
) -> None:
    """Write ``rows`` (num_rows, width) where ``layout`` says, in the buffers of all ranks.

    Raises:
        InputError: the layout is not for this group, or a buffer is too small.
    """
    world = memory.world_size
    check_on_one_device(rows, layout.slots, layout.counts)
    if layout.counts.numel() != world or world > MAX_WORLD:
        raise InputError(f"a layout for {layout.counts.numel()} ranks in a group of {world} (at most {MAX_WORLD})")
    needed = counts_at(world, layout.capacity, rows) + 8 * world
    if needed > memory.num_bytes:
        raise InputError(
            f"{world} ranks · {layout.capacity} rows of {rows.shape[1]} {rows.dtype} and their counts take {needed} bytes; "
            f"the symmetric buffers have {memory.num_bytes}"
        )
    put_rows_kernel[(memory.epochs.numel(),)](
        memory.buffers,
        memory.pads,
        memory.epochs,
        memory.error,
        memory.rank,
        rows,
        layout.slots,
        layout.counts,
        rows.shape[0],
        rows.shape[1],
        layout.capacity,
        counts_at(world, layout.capacity, rows),
        limit,
        world,
        *tile,
        num_warps=NUM_WARPS,
    )


def received(
    buffer: torch.Tensor, world_size: int, capacity: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and counts in the own ``buffer`` (uint8) after an exchange of rows like ``like``: views."""
    start, width = counts_at(world_size, capacity, like), like.shape[1]
    size = world_size * capacity * width * like.element_size()
    rows = buffer[:size].view(like.dtype).view(world_size * capacity, width)
    return rows, buffer[start : start + 8 * world_size].view(torch.int64)


def counts_at(world_size: int, capacity: int, rows: torch.Tensor) -> int:
    """Byte at which the counts begin."""
    return -(-world_size * capacity * rows.shape[1] * rows.element_size() // 16) * 16


@triton.jit
def put_rows_kernel(  # type: ignore[no-untyped-def]
    buffers,
    pads,
    epochs,
    error,
    rank,
    rows,
    slots,
    counts,
    num_rows,
    width,
    capacity,
    counts_start,
    limit,
    WORLD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A row goes to rank slot / capacity, into this rank's part of its buffer."""
    block = tl.program_id(0)
    epoch = tl.load(epochs + block)
    meet(pads, error, rank, epoch + 1, limit, WORLD)
    if block == 0:
        for peer in tl.static_range(WORLD):
            theirs = (tl.load(buffers + peer) + counts_start).to(tl.pointer_type(tl.int64))
            tl.store(theirs + rank, tl.load(counts + peer))
    for start in range(block * ROWS, num_rows, tl.num_programs(0) * ROWS):
        at = start + tl.arange(0, ROWS)
        slot = tl.load(slots + at, at < num_rows, -1)
        goes = slot >= 0
        base = tl.load(buffers + slot // capacity, goes, 0).to(tl.pointer_type(rows.dtype.element_ty))
        base = tl.multiple_of(base, 16)
        place = (rank * capacity + slot % capacity) * width
        for column in range(0, width, COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            inside = goes[:, None] & (columns < width)[None, :]
            tile = tl.load(rows + at[:, None].to(tl.int64) * width + columns[None, :], inside)
            tl.store(base[:, None] + place[:, None] + columns[None, :], tile, inside)
    meet(pads, error, rank, epoch + 2, limit, WORLD)
    tl.store(epochs + block, epoch + 2)
