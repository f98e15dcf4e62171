"""Rows to the ranks that they are meant for, with counts that stay on the device (AllToAllvDynamic).

An all-to-all-v needs every count on the host before it starts. Here every pair of ranks has room for ``capacity`` rows, whatever
the counts turn out to be: sizes are known beforehand, nothing waits for the device, and a flag says when a row found no room.
Both functions work on any process group of torch.distributed.

``exchange_rows`` sends each row straight to its rank. ``exchange_rows_by_building`` sends a row that several ranks of a building
want once to that building, to the rank there with the own rank's number in its building, which hands it on: of k destinations in
B buildings only B cross, and a pair of buildings is joined by as many streams as it has ranks. ``return_rows`` is the way back of
both: what comes from several ranks of a building is added up there and crosses once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from scaleacross.errors import InputError
from scaleacross.runtime.relays import Relays
from scaleacross.runtime.rows import Layout, add_rows, lay_out, move_rows, pack_rows, unpack_rows


@dataclass(frozen=True)
class RelayedWay:
    """Where rows went by building.

    Attributes:
        relays: who handed on.
        to_buildings: (num_rows, buildings) own rows -> places of what crossed.
        to_members: (rows for which this rank handed on, k) -> places of what it handed on.
        here: what was handed to this rank -> places of the received rows.
    """

    relays: Relays
    to_buildings: Tensor
    to_members: Tensor
    here: Layout


@dataclass(frozen=True)
class Received:
    """What has come.

    Attributes:
        rows: (ranks · capacity, width), by source rank, in the order in which the source had them; zeros where there is none.
        counts: int64 per source: its rows here, at most ``capacity``.
        overflow: int32 of one element: whether any rank of the group left a row out for want of room.
        capacity: rows per pair of ranks.
        way: where the rows of this rank went, and those that passed it.
    """

    rows: Tensor
    counts: Tensor
    overflow: Tensor
    capacity: int
    way: Layout | RelayedWay

    def compact(self) -> Tensor:
        """Rows without gaps, as ``all_to_all_single`` leaves them; waits for the device."""
        places = torch.arange(self.rows.shape[0], device=self.rows.device)
        return self.rows[places % self.capacity < self.counts[places // self.capacity]]


def exchange_rows(group: dist.ProcessGroup, rows: Tensor, destinations: Tensor, capacity: int) -> Received:
    """Send row i to rank ``destinations[i]`` of ``group``; all ranks call it with the same width, type and capacity.

    Args:
        rows: (num_rows, width).
        destinations: int64 (num_rows,), ranks of the group; a negative one sends the row nowhere.
        capacity: rows from one rank to another that there is room for.

    Raises:
        InputError: shapes or types make no sense.
    """
    _check(rows, destinations, 1)
    layout = lay_out(destinations, group.size(), capacity)
    packed = pack_rows(rows, layout)
    received, counts = torch.empty_like(packed), torch.empty_like(layout.counts)
    dist.all_to_all_single(counts, layout.counts, group=group)
    dist.all_to_all_single(received, packed, group=group)
    return Received(received, counts.clamp(max=capacity), _anywhere(group, layout.overflow), capacity, layout)


def return_rows(group: dist.ProcessGroup, received: Received, results: Tensor) -> Tensor:
    """The way back: ``results`` (ranks · capacity, width) in the places of ``received.rows`` go to where these came from.

    Returns:
        (num_rows, width) in the order of the rows sent. A row that went to several ranks gets the sum of their results, those of
        a building first, each sum in fp32 and rounded once; one that was left out gets zeros.

    Raises:
        InputError: ``results`` has another number of places than ``received``.
    """
    if results.shape[0] != received.rows.shape[0]:
        raise InputError(f"{results.shape[0]} rows cannot go back where {received.rows.shape[0]} places were received")
    way = received.way
    if isinstance(way, Layout):
        back = torch.empty_like(results)
        dist.all_to_all_single(back, results.contiguous(), group=group)
        return unpack_rows(back, way)
    handed_back = way.relays.hand_back(group, unpack_rows(results, way.here))
    crossed_back = way.relays.cross_back(group, add_rows(handed_back, way.to_members))
    return add_rows(crossed_back, way.to_buildings)


def exchange_again(group: dist.ProcessGroup, received: Received, rows: Tensor) -> Tensor:
    """Send other rows the way of an ``exchange_rows`` before, such as the gradients of what came back.

    Returns:
        (ranks · capacity, width) in the places of ``received.rows``, zeros where there is none.

    Raises:
        InputError: the rows went by building, or are not as many as then.
    """
    way = received.way
    if not isinstance(way, Layout) or rows.shape[0] != way.slots.numel():
        raise InputError(f"{rows.shape[0]} rows cannot go the way of the rows before: as many, sent straight, can")
    packed = pack_rows(rows, way)
    out = torch.empty_like(packed)
    dist.all_to_all_single(out, packed, group=group)
    return out


def exchange_rows_by_building(
    group: dist.ProcessGroup,
    buildings: Sequence[Sequence[int]],
    rows: Tensor,
    destinations: Tensor,
    capacity: int,
    building_capacity: int | None = None,
) -> Received:
    """Send row i to each rank in ``destinations[i]``, once to every building that holds any of them.

    Args:
        buildings: ranks of the group by building; all ranks pass the same.
        rows: (num_rows, width).
        destinations: int64 (num_rows, k); negative ones are none. A rank named twice gets the row twice.
        capacity: rows from one rank to another that there is room for.
        building_capacity: rows from one rank to a building that there is room for, which is what crosses; the most rows that any
            rank has are always enough. None: ``capacity`` times the ranks of the largest building.

    Raises:
        InputError: shapes or types make no sense, or ``buildings`` does not hold each rank of the group once.
    """
    _check(rows, destinations, 2)
    relays = Relays(buildings, group.rank(), group.size(), capacity, building_capacity)
    device = rows.device
    building_of, number_of = relays.building_of.to(device), relays.number_of.to(device)
    # To one rank of every building: the row and its destinations, once.
    wanted = torch.where(destinations >= 0, building_of[destinations.clamp(min=0)], -1)
    targets = torch.arange(len(buildings), device=device)
    meant = torch.where((wanted[:, :, None] == targets).any(1), targets, -1)
    first = lay_out(meant.reshape(-1), len(buildings), relays.room_per_building)
    slots = first.slots.view(meant.shape)
    crossing = rows.new_zeros(len(buildings) * first.capacity, rows.shape[1])
    named = torch.full((crossing.shape[0], destinations.shape[1]), -1, dtype=torch.int64, device=device)
    for building in range(len(buildings)):
        move_rows(rows, slots[:, building].contiguous(), crossing)
        move_rows(destinations, slots[:, building].contiguous(), named)
    arrived, named_here = (relays.cross(group, sent) for sent in (crossing, named))
    # To their ranks inside the building, with the number of their source.
    here = (named_here >= 0) & (building_of[named_here.clamp(min=0)] == relays.mine)
    member = torch.where(here, number_of[named_here.clamp(min=0)], -1)
    second = lay_out(member.reshape(-1), len(buildings[relays.mine]), relays.room_to_member(relays.rank))
    slots = second.slots.view(member.shape)
    handed = rows.new_zeros(second.counts.numel() * second.capacity, rows.shape[1])
    origin = torch.full((handed.shape[0], 1), -1, dtype=torch.int64, device=device)
    sources = relays.sources.to(device).repeat_interleave(first.capacity)[:, None].contiguous()
    for k in range(destinations.shape[1]):
        move_rows(arrived, slots[:, k].contiguous(), handed)
        move_rows(sources, slots[:, k].contiguous(), origin)
    rows_here, origin_here = (relays.hand_on(group, sent) for sent in (handed, origin))
    last = lay_out(origin_here.view(-1), group.size(), capacity)
    overflow = _anywhere(group, first.overflow | second.overflow | last.overflow)
    way = RelayedWay(relays, first.slots.view(meant.shape), slots, last)
    return Received(pack_rows(rows_here, last), last.counts.clamp(max=capacity), overflow, capacity, way)


def _anywhere(group: dist.ProcessGroup, overflow: Tensor) -> Tensor:
    """Whether the flag is set on any rank."""
    flag = overflow.to(torch.int32)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
    return flag


def _check(rows: Tensor, destinations: Tensor, dims: int) -> None:
    if rows.dim() != 2 or destinations.dim() != dims or destinations.shape[0] != rows.shape[0]:
        raise InputError(
            f"rows of {tuple(rows.shape)} with destinations of {tuple(destinations.shape)}: (num_rows, width) and "
            + ("(num_rows,)" if dims == 1 else "(num_rows, k)")
            + " are needed"
        )
    if destinations.dtype != torch.int64:
        raise InputError(f"destinations are int64, not {destinations.dtype}")
