"""Who hands rows on for whom between buildings: the rank numbered l in its building meets rank l mod size of every other one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from scaleacross.errors import InputError


class Relays:
    """As one rank of a group sees them.

    Args:
        buildings: ranks of the group by building.
        capacity: rows from one rank to another that there is room for.
        building_capacity: rows from one rank to a building; None: ``capacity`` times the ranks of the largest building.

    Attributes:
        mine: own building.
        room_per_building: rows from one rank to a building.
        sources: ranks for which this one hands on, ascending.

    Raises:
        InputError: ``buildings`` does not hold each rank of the group once.
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
        self._members = list(buildings[self.mine])
        self._targets = [self._forwarder(rank, building) for building in range(len(buildings))]
        self._from_here, self._to_here = (
            [room(other) if other in self._members else 0 for other in range(size)]
            for room in (lambda _: self.room_to_member(rank), self.room_to_member)
        )

    def room_to_member(self, forwarder: int) -> int:
        """Rows that ``forwarder`` has room for per member of its building."""
        return self.capacity * max(len(self._sources_of(forwarder)), 1)

    def cross(self, group: dist.ProcessGroup, sent: Tensor) -> Tensor:
        """Block b of ``sent`` to the rank that hands on for this one in building b; blocks of ``sources`` come."""
        order = torch.tensor(self._targets).argsort()
        return _exchanged(group, _blocks(sent, order), self._rooms(self._targets), self._rooms(self.sources.tolist()))

    def cross_back(self, group: dist.ProcessGroup, sent: Tensor) -> Tensor:
        """The way back of ``cross``: blocks of ``sources`` to these; block b comes from building b."""
        came = _exchanged(group, sent, self._rooms(self.sources.tolist()), self._rooms(self._targets))
        return _blocks(came, torch.tensor(self._targets).argsort().argsort())

    def hand_on(self, group: dist.ProcessGroup, sent: Tensor) -> Tensor:
        """Block l of ``sent`` to the l-th rank of the own building; blocks of its ranks come, in the order of their ranks."""
        return _exchanged(group, _blocks(sent, torch.tensor(self._members).argsort()), self._from_here, self._to_here)

    def hand_back(self, group: dist.ProcessGroup, sent: Tensor) -> Tensor:
        """The way back of ``hand_on``: block l comes from the l-th rank of the own building."""
        came = _exchanged(group, sent, self._to_here, self._from_here)
        return _blocks(came, torch.tensor(self._members).argsort().argsort())

    def _rooms(self, ranks: Sequence[int]) -> list[int]:
        """Rows of a block that crosses, by rank of the group."""
        return [self.room_per_building if rank in ranks else 0 for rank in range(self.size)]

    def _forwarder(self, source: int, building: int) -> int:
        if building == self.building_of[source]:
            return source
        members = self.buildings[building]
        return members[int(self.number_of[source]) % len(members)]

    def _sources_of(self, forwarder: int) -> list[int]:
        building = int(self.building_of[forwarder])
        return [source for source in range(self.size) if self._forwarder(source, building) == forwarder]


def _blocks(rows: Tensor, order: Tensor) -> Tensor:
    """Blocks of equal length in another order: the ``order[i]``-th becomes the i-th."""
    return rows.view(len(order), -1, rows.shape[1])[order.to(rows.device)].reshape(-1, rows.shape[1])


def _exchanged(group: dist.ProcessGroup, blocks: Tensor, leaving: list[int], coming: list[int]) -> Tensor:
    out = blocks.new_empty(sum(coming), blocks.shape[1])
    dist.all_to_all_single(out, blocks.contiguous(), coming, leaving, group=group)
    return out
