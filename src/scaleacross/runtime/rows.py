"""Packs rows by destination and back: what an all-to-all-v with counts on the device does around the exchange.

Every destination has room for ``capacity`` rows. A row's place is its rank among those of its destination in the
input's order, so a layout is the same in every run. Rows beyond the capacity are left out, and a flag says so. Nothing
waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scaleacross.errors import InputError
from scaleacross.runtime.requirement import kernels, runs_kernels


@dataclass(frozen=True)
class Layout:
    """Places of rows.

    Attributes:
        slots: int64 per row: destination · capacity + rank among its rows, −1 for a row without room or destination.
        counts: int64 per destination: rows that want to go there, which may be more than ``capacity``.
        overflow: bool of one element: whether any row was left out for want of room.
        capacity: rows per destination.
    """

    slots: torch.Tensor
    counts: torch.Tensor
    overflow: torch.Tensor
    capacity: int


def lay_out(destinations: torch.Tensor, num_destinations: int, capacity: int) -> Layout:
    """Return the places of rows by destination.

    Args:
        destinations: int64 per row, in [0, num_destinations); a negative one sends the row nowhere.
        num_destinations: number of destinations.
        capacity: rows for which each destination has room.

    Raises:
        InputError: the type or a size makes no sense.
    """
    if destinations.dtype != torch.int64 or destinations.dim() != 1:
        raise InputError(
            f"destinations are int64, one per row; got {destinations.dtype} of {tuple(destinations.shape)}"
        )
    if num_destinations < 1 or capacity < 1:
        raise InputError(f"there is no place in {num_destinations} destinations of {capacity} rows")
    ranked = kernels("shuffle").rank_by_kernel if runs_kernels(destinations) else rank_reference
    ranks, counts = ranked(destinations, num_destinations)
    fits = (destinations >= 0) & (destinations < num_destinations) & (ranks < capacity)
    slots = torch.where(fits, destinations * capacity + ranks, -1)
    return Layout(slots, counts, (counts > capacity).any().view(1), capacity)


def pack_rows(rows: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return (num_rows, width) as (destinations · capacity, width), with zeros in the room that is left."""
    out = rows.new_zeros(layout.counts.numel() * layout.capacity, rows.shape[1])
    (kernels("shuffle").scatter_by_kernel if runs_kernels(rows) else scatter_reference)(rows, layout.slots, out)
    return out


def unpack_rows(packed: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return (destinations · capacity, width) as (num_rows, width), with zeros for rows that were left out."""
    out = packed.new_zeros(layout.slots.numel(), packed.shape[1])
    (kernels("shuffle").gather_by_kernel if runs_kernels(packed) else gather_reference)(packed, layout.slots, out)
    return out


def rank_reference(destinations: torch.Tensor, num_destinations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rank of each row among those of its destination, rows per destination) in torch."""
    order = destinations.argsort(stable=True)
    ordered = destinations[order]
    # position of the first row of the same destination: the rank is the distance to it
    first = torch.searchsorted(ordered, ordered, right=False)
    ranks = torch.empty_like(destinations)
    ranks[order] = torch.arange(order.numel(), device=order.device) - first
    valid = (ordered >= 0) & (ordered < num_destinations)
    return ranks, torch.bincount(ordered[valid], minlength=num_destinations)


def scatter_reference(rows: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """Write out[slots[i]] = rows[i] in torch."""
    out[slots[slots >= 0]] = rows[slots >= 0]


def gather_reference(packed: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """Write out[i] = packed[slots[i]] in torch."""
    out[slots >= 0] = packed[slots[slots >= 0]]
