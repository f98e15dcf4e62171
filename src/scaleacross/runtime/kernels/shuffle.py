"""Rows by destination and back: what an all-to-all-v with counts on the device does before and after the exchange.

Every destination has room for ``capacity`` rows. A row's place is its rank among those of its destination in the input's order,
so a layout is the same in every run; rows beyond the capacity are left out and a flag says so. Nothing waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from scaleacross.errors import InputError
from scaleacross.runtime.kernels.launching import NUM_WARPS, check_on_one_device, num_programs
from scaleacross.runtime.requirement import runs_kernels

BLOCK = 4096
"""Rows that a program ranks at a time."""
TILE = (16, 256)
"""(rows, columns) of a program that moves rows."""


@dataclass(frozen=True)
class Layout:
    """Where rows go.

    Attributes:
        slots: int64 per row: destination · capacity + rank among its rows, −1 where it has no room or no destination.
        counts: int64 per destination: rows that want to go there, which may be more than ``capacity``.
        overflow: bool of one element: whether any row was left out for want of room.
        capacity: rows per destination.
    """

    slots: torch.Tensor
    counts: torch.Tensor
    overflow: torch.Tensor
    capacity: int


def lay_out(destinations: torch.Tensor, num_destinations: int, capacity: int) -> Layout:
    """Places of rows by destination.

    Args:
        destinations: int64 per row, in [0, num_destinations); a negative one sends the row nowhere.
        num_destinations: number of them.
        capacity: rows that each has room for.

    Raises:
        InputError: type or sizes make no sense.
    """
    if destinations.dtype != torch.int64 or destinations.dim() != 1:
        raise InputError(
            f"destinations are int64, one per row; got {destinations.dtype} of {tuple(destinations.shape)}"
        )
    if num_destinations < 1 or capacity < 1:
        raise InputError(f"there is no place in {num_destinations} destinations of {capacity} rows")
    ranked = rank_by_kernel if runs_kernels(destinations) else rank_reference
    ranks, counts = ranked(destinations, num_destinations)
    fits = (destinations >= 0) & (destinations < num_destinations) & (ranks < capacity)
    slots = torch.where(fits, destinations * capacity + ranks, -1)
    return Layout(slots, counts, (counts > capacity).any().view(1), capacity)


def pack_rows(rows: torch.Tensor, layout: Layout) -> torch.Tensor:
    """(num_rows, width) → (destinations · capacity, width), with zeros in the room that is left."""
    out = rows.new_zeros(layout.counts.numel() * layout.capacity, rows.shape[1])
    (scatter_by_kernel if runs_kernels(rows) else scatter_reference)(rows, layout.slots, out)
    return out


def unpack_rows(packed: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The inverse: (destinations · capacity, width) → (num_rows, width), with zeros for rows that were left out."""
    out = packed.new_zeros(layout.slots.numel(), packed.shape[1])
    (gather_by_kernel if runs_kernels(packed) else gather_reference)(packed, layout.slots, out)
    return out


def rank_reference(destinations: torch.Tensor, num_destinations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(rank of each row among those of its destination, rows per destination) in torch."""
    order = destinations.argsort(stable=True)
    ordered = destinations[order]
    first = torch.searchsorted(ordered, ordered, right=False)
    ranks = torch.empty_like(destinations)
    ranks[order] = torch.arange(order.numel(), device=order.device) - first
    valid = (ordered >= 0) & (ordered < num_destinations)
    return ranks, torch.bincount(ordered[valid], minlength=num_destinations)


def scatter_reference(rows: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """out[slots[i]] = rows[i] in torch."""
    out[slots[slots >= 0]] = rows[slots >= 0]


def gather_reference(packed: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """out[i] = packed[slots[i]] in torch."""
    out[slots >= 0] = packed[slots[slots >= 0]]


def rank_by_kernel(
    destinations: torch.Tensor, num_destinations: int, *, block: int = BLOCK
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by the kernel, a program per destination; rows without a valid one keep rank 0."""
    check_on_one_device(destinations)
    ranks = torch.zeros_like(destinations)
    counts = destinations.new_zeros(num_destinations)
    rank_kernel[(num_destinations,)](destinations, ranks, counts, destinations.numel(), block, num_warps=NUM_WARPS)
    return ranks, counts


def scatter_by_kernel(rows: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """out[slots[i]] = rows[i] by the kernel."""
    _move(scatter_kernel, rows, slots, out)


def gather_by_kernel(packed: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """out[i] = packed[slots[i]] by the kernel."""
    _move(gather_kernel, packed, slots, out)


@triton.jit
def rank_kernel(destinations, ranks, counts, num_rows, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows of one destination are counted in the order of the input, BLOCK rows at a time: no atomics, hence one result."""
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
def scatter_kernel(source, slots, out, num_rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of rows to its slots."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    slot = tl.load(slots + rows, rows < num_rows, -1)
    inside = (slot >= 0)[:, None] & (columns < width)[None, :]
    tile = tl.load(source + rows[:, None] * width + columns[None, :], inside)
    tl.store(out + slot[:, None] * width + columns[None, :], tile, inside)


@triton.jit
def gather_kernel(source, slots, out, num_rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of rows from its slots."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    slot = tl.load(slots + rows, rows < num_rows, -1)
    inside = (slot >= 0)[:, None] & (columns < width)[None, :]
    tile = tl.load(source + slot[:, None] * width + columns[None, :], inside)
    tl.store(out + rows[:, None] * width + columns[None, :], tile, inside)


def _move(kernel, source: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:  # type: ignore[no-untyped-def]
    check_on_one_device(source, slots, out)
    num_rows, width = slots.numel(), source.shape[1]
    if num_rows and width:
        grid = (num_programs(num_rows, TILE[0]), num_programs(width, TILE[1]))
        kernel[grid](source, slots, out, num_rows, width, *TILE, num_warps=NUM_WARPS)
