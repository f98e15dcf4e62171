"""Sends rows to the ranks that they are meant for, with counts that stay on the device (AllToAllvDynamic).

An all-to-all-v needs every count on the host before it starts. Here every pair of ranks has room for ``capacity`` rows,
whatever the counts turn out to be. So sizes are known beforehand and nothing waits for the device; a flag says when a
row found no room. The functions work on any process group of torch.distributed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from scaleacross.errors import InputError
from scaleacross.runtime.rows import Layout, lay_out, pack_rows, unpack_rows


@dataclass(frozen=True)
class Received:
    """Rows that have arrived.

    Attributes:
        rows: (ranks · capacity, width), by source rank, in the order in which the source had them; zeros where there is
            none.
        counts: int64 per source: its rows here, at most ``capacity``.
        overflow: int32 of one element: whether any rank of the group left a row out for want of room.
        capacity: rows per pair of ranks.
        way: layout in which the rows of this rank were sent.
    """

    rows: Tensor
    counts: Tensor
    overflow: Tensor
    capacity: int
    way: Layout

    def compact(self) -> Tensor:
        """Return the rows without gaps, as ``all_to_all_single`` leaves them; waits for the device."""
        places = torch.arange(self.rows.shape[0], device=self.rows.device)
        return self.rows[places % self.capacity < self.counts[places // self.capacity]]


def exchange_rows(group: dist.ProcessGroup, rows: Tensor, destinations: Tensor, capacity: int) -> Received:
    """Send row i to rank ``destinations[i]`` of ``group``; all ranks call it with the same width, type and capacity.

    Args:
        rows: (num_rows, width).
        destinations: int64 (num_rows,), ranks of the group; a negative one sends the row nowhere.
        capacity: rows from one rank to another for which there is room.

    Raises:
        InputError: shapes or types make no sense.
    """
    if rows.dim() != 2 or destinations.shape != rows.shape[:1]:
        raise InputError(f"rows of {tuple(rows.shape)} with destinations of {tuple(destinations.shape)}")
    layout = lay_out(destinations, group.size(), capacity)
    packed = pack_rows(rows, layout)
    received, counts = torch.empty_like(packed), torch.empty_like(layout.counts)
    dist.all_to_all_single(counts, layout.counts, group=group)
    dist.all_to_all_single(received, packed, group=group)
    return Received(received, counts.clamp(max=capacity), _anywhere(group, layout.overflow), capacity, layout)


def return_rows(group: dist.ProcessGroup, received: Received, results: Tensor) -> Tensor:
    """Send ``results`` (ranks · capacity, width), in the places of ``received.rows``, back to those rows' senders.

    Returns:
        (num_rows, width) in the order of the rows sent; a row that was left out gets zeros.

    Raises:
        InputError: ``results`` has another number of places than ``received``.
    """
    if results.shape[0] != received.rows.shape[0]:
        raise InputError(f"{results.shape[0]} rows cannot go back where {received.rows.shape[0]} places were received")
    back = torch.empty_like(results)
    dist.all_to_all_single(back, results.contiguous(), group=group)
    return unpack_rows(back, received.way)


def exchange_again(group: dist.ProcessGroup, received: Received, rows: Tensor) -> Tensor:
    """Send other rows the way of an earlier ``exchange_rows``, such as the gradients of what came back.

    Returns:
        (ranks · capacity, width) in the places of ``received.rows``, zeros where there is none.

    Raises:
        InputError: there are not as many rows as then.
    """
    if rows.shape[0] != received.way.slots.numel():
        raise InputError(f"{rows.shape[0]} rows cannot go the way of {received.way.slots.numel()} rows before")
    packed = pack_rows(rows, received.way)
    out = torch.empty_like(packed)
    dist.all_to_all_single(out, packed, group=group)
    return out


def _anywhere(group: dist.ProcessGroup, overflow: Tensor) -> Tensor:
    """Return the flag, set if it is set on any rank."""
    flag = overflow.to(torch.int32)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
    return flag
