"""Rows to the ranks that they are meant for, with counts that stay on the device (AllToAllvDynamic).

An all-to-all-v needs every count on the host before it starts. Here every pair of ranks has room for ``capacity`` rows, whatever
the counts turn out to be: sizes are known beforehand, nothing waits for the device, and a flag says when a row found no room.
Both functions work on any process group of torch.distributed.

``exchange_rows`` sends each row straight to its rank. ``exchange_rows_by_building`` sends a row that several ranks of a building
want once to that building, to the rank there with the own rank's number in its building, which hands it on: of k destinations in
B buildings only B cross, and a pair of buildings is joined by as many streams as it has ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from scaleacross.errors import InputError
from scaleacross.runtime.rows import Layout, lay_out, move_rows, pack_rows, unpack_rows


@dataclass(frozen=True)
class Received:
    """What has come.

    Attributes:
        rows: (ranks · capacity, width), by source rank, in the order in which the source had them; zeros where there is none.
        counts: int64 per source: its rows here, at most ``capacity``.
        overflow: int32 of one element: whether any rank of the group left a row out for want of room.
        capacity: rows per pair of ranks.
        sent: where the own rows went; None after an exchange by building.
    """

    rows: Tensor
    counts: Tensor
    overflow: Tensor
    capacity: int
    sent: Layout | None = None

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
    """The way back of ``exchange_rows``: ``results`` (ranks · capacity, width) in the places of ``received.rows`` go to where
    these came from; returns (num_rows, width) in the order of the rows sent, zeros for those that were left out.

    Raises:
        InputError: ``received`` is not of ``exchange_rows``, or the shape differs.
    """
    if received.sent is None or results.shape[0] != received.rows.shape[0]:
        raise InputError(
            f"{results.shape[0]} rows cannot go back where {received.rows.shape[0]} places were received"
            + ("" if received.sent else ", and only exchange_rows knows the way back")
        )
    back = torch.empty_like(results)
    dist.all_to_all_single(back, results.contiguous(), group=group)
    return unpack_rows(back, received.sent)


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
    ways = _Ways(buildings, group.rank(), group.size(), capacity, building_capacity)
    device = rows.device
    building_of, number_of = ways.building_of.to(device), ways.number_of.to(device)
    # To one rank of every building: the row and its destinations, once.
    wanted = torch.where(destinations >= 0, building_of[destinations.clamp(min=0)], -1)
    targets = torch.arange(len(buildings), device=device)
    meant = torch.where((wanted[:, :, None] == targets).any(1), targets, -1)
    first = lay_out(meant.reshape(-1), len(buildings), ways.room_per_building)
    slots = first.slots.view(meant.shape)
    crossing = rows.new_zeros(len(buildings) * first.capacity, rows.shape[1])
    named = torch.full((crossing.shape[0], destinations.shape[1]), -1, dtype=torch.int64, device=device)
    for building in range(len(buildings)):
        move_rows(rows, slots[:, building].contiguous(), crossing)
        move_rows(destinations, slots[:, building].contiguous(), named)
    arrived, named_here = (ways.cross(group, sent) for sent in (crossing, named))
    # To their ranks inside the building, with the number of their source.
    here = (named_here >= 0) & (building_of[named_here.clamp(min=0)] == ways.mine)
    member = torch.where(here, number_of[named_here.clamp(min=0)], -1)
    second = lay_out(member.reshape(-1), len(buildings[ways.mine]), ways.room_to_member(ways.rank))
    slots = second.slots.view(member.shape)
    handed = rows.new_zeros(second.counts.numel() * second.capacity, rows.shape[1])
    origin = torch.full((handed.shape[0], 1), -1, dtype=torch.int64, device=device)
    sources = ways.sources.to(device).repeat_interleave(first.capacity)[:, None].contiguous()
    for k in range(destinations.shape[1]):
        move_rows(arrived, slots[:, k].contiguous(), handed)
        move_rows(sources, slots[:, k].contiguous(), origin)
    rows_here, origin_here = (ways.hand_on(group, sent) for sent in (handed, origin))
    last = lay_out(origin_here.view(-1), group.size(), capacity)
    overflow = _anywhere(group, first.overflow | second.overflow | last.overflow)
    return Received(pack_rows(rows_here, last), last.counts.clamp(max=capacity), overflow, capacity)


class _Ways:
    """Who hands on for whom: the rank numbered l in its building meets rank l mod size of every other building.

    Attributes:
        mine: own building.
        room_per_building: rows from one rank to a building.
        sources: ranks for which this one hands on, ascending.
    """

    def __init__(
        self,
        buildings: Sequence[Sequence[int]],
        rank: int,
        size: int,
        capacity: int,
        building_capacity: int | None,
    ) -> None:
        if sorted(member for building in buildings for member in building) != list(range(size)):
            raise InputError(
                f"buildings {[list(b) for b in buildings]} do not hold each of {size} ranks of the group once"
            )
        self.buildings, self.rank, self.size, self.capacity = buildings, rank, size, capacity
        self.building_of, self.number_of = torch.empty(2, size, dtype=torch.int64)
        for index, members in enumerate(buildings):
            for number, member in enumerate(members):
                self.building_of[member], self.number_of[member] = index, number
        self.mine = int(self.building_of[rank])
        self.room_per_building = building_capacity or capacity * max(map(len, buildings))
        self.sources = torch.tensor(self._sources_of(rank), dtype=torch.int64)

    def room_to_member(self, forwarder: int) -> int:
        """Rows that ``forwarder`` has room for per member of its building."""
        return self.capacity * max(len(self._sources_of(forwarder)), 1)

    def cross(self, group: dist.ProcessGroup, sent: Tensor) -> Tensor:
        """Block b of ``sent`` to the rank that hands on for this one in building b; blocks of ``sources`` come back."""
        room = self.room_per_building
        targets = [self._forwarder(self.rank, building) for building in range(len(self.buildings))]
        order = sorted(range(len(targets)), key=targets.__getitem__)
        blocks = sent.view(len(targets), room, sent.shape[1])[order].reshape(-1, sent.shape[1])
        leaving, coming = (
            [room if r in ranks else 0 for r in range(self.size)] for ranks in (targets, self.sources.tolist())
        )
        return _exchanged(group, blocks, leaving, coming)

    def hand_on(self, group: dist.ProcessGroup, sent: Tensor) -> Tensor:
        """Block l of ``sent`` to the l-th rank of the own building."""
        members = self.buildings[self.mine]
        room = self.room_to_member(self.rank)
        order = sorted(range(len(members)), key=members.__getitem__)
        blocks = sent.view(len(members), room, sent.shape[1])[order].reshape(-1, sent.shape[1])
        leaving = [room if r in members else 0 for r in range(self.size)]
        coming = [self.room_to_member(r) if r in members else 0 for r in range(self.size)]
        return _exchanged(group, blocks, leaving, coming)

    def _forwarder(self, source: int, building: int) -> int:
        if building == self.building_of[source]:
            return source
        members = self.buildings[building]
        return members[int(self.number_of[source]) % len(members)]

    def _sources_of(self, forwarder: int) -> list[int]:
        building = int(self.building_of[forwarder])
        return [source for source in range(self.size) if self._forwarder(source, building) == forwarder]


def _exchanged(group: dist.ProcessGroup, blocks: Tensor, leaving: list[int], coming: list[int]) -> Tensor:
    out = blocks.new_empty(sum(coming), blocks.shape[1])
    dist.all_to_all_single(out, blocks.contiguous(), coming, leaving, group=group)
    return out


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
