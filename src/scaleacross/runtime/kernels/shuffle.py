"""The kernels of ``runtime.rows`` on an accelerator: the same places and the same rows as the references there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from scaleacross.runtime.kernels.launching import NUM_WARPS, check_on_one_device, num_programs

BLOCK = 4096
"""Number of rows that a program ranks at a time."""
TILE = (16, 256)
"""(rows, columns) of a program that moves rows."""


def rank_by_kernel(
    destinations: torch.Tensor, num_destinations: int, *, block: int = BLOCK
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``rows.rank_reference``, a program per destination; rows without a valid destination keep rank 0."""
    check_on_one_device(destinations)
    ranks = torch.zeros_like(destinations)
    counts = destinations.new_zeros(num_destinations)
    rank_kernel[(num_destinations,)](destinations, ranks, counts, destinations.numel(), block, num_warps=NUM_WARPS)
    return ranks, counts


def scatter_by_kernel(rows: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """Write out[slots[i]] = rows[i]."""
    _move(True, rows, slots, out)


def gather_by_kernel(packed: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """Write out[i] = packed[slots[i]]."""
    _move(False, packed, slots, out)


@triton.jit
def rank_kernel(destinations, ranks, counts, num_rows, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Count the rows of one destination in the order of the input, BLOCK at a time: no atomics, so one result."""
    destination = tl.program_id(0)
    before = tl.zeros((), tl.int64)
    for start in range(0, num_rows, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mine = tl.load(destinations + at, at < num_rows, -1) == destination
        one = mine.to(tl.int64)
        tl.store(ranks + at, before + tl.cumsum(one, 0) - one, mine)
        before += tl.sum(one, 0)
    tl.store(counts + destination, before)


@triton.jit
def move_kernel(source, slots, out, num_rows, width, SCATTER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Move a tile of rows to its slots, or from them."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    slot = tl.load(slots + rows, rows < num_rows, -1)
    inside = (slot >= 0)[:, None] & (columns < width)[None, :]
    in_order, at_slot = rows[:, None] * width + columns[None, :], slot[:, None] * width + columns[None, :]
    tile = tl.load(source + (in_order if SCATTER else at_slot), inside)
    tl.store(out + (at_slot if SCATTER else in_order), tile, inside)


def _move(scatter: bool, source: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    check_on_one_device(source, slots, out)
    num_rows, width = slots.numel(), source.shape[1]
    if num_rows and width:
        grid = (num_programs(num_rows, TILE[0]), num_programs(width, TILE[1]))
        move_kernel[grid](source, slots, out, num_rows, width, scatter, *TILE, num_warps=NUM_WARPS)
