"""Placement of ranks: an axis order over the devices of the buildings, building after building.

A *global rank* is an index into the job's device list: the devices of ``fill[0]``'s building
first (zone by zone, rack by rack, host by host), then those of ``fill[1]``'s, and so on. ``fill`` is the allocation.
``axis_order`` gives the mixed radix of global ranks, fastest axis first. Unequal buildings need no special case: the
list changes building where the allocation does. Frameworks number ranks in orders of their own; emitters convert
between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

from pydantic import Field, PositiveInt, field_validator

from scaleacross.spec.base import Name, Spec
from scaleacross.spec.network import LinkLevel
from scaleacross.spec.parallelism import GRID_AXES, Axis, Degrees, GridAxis
from scaleacross.spec.topology import Building, Topology


class BuildingShare(Spec):
    """Accelerators of one building that the job uses: its first ``num_accelerators``, host by host."""

    building: Name
    num_accelerators: PositiveInt


def first_accelerators(buildings: Iterable[Building], number: int) -> tuple[BuildingShare, ...]:
    """Allocation of the first ``number`` accelerators of ``buildings``, one building after another."""
    shares, left = [], number
    for building in buildings:
        if taken := min(left, building.num_accelerators):
            shares.append(BuildingShare(building=building.name, num_accelerators=taken))
        left -= taken
    return tuple(shares)


class Placement(Spec):
    """An axis order over the devices of an allocation."""

    axis_order: tuple[GridAxis, ...] = Field(
        description="fastest-varying axis first; a permutation of the five grid axes"
    )
    fill: tuple[BuildingShare, ...] = Field(
        min_length=1, description="buildings in the order in which global ranks run through them"
    )
    spans: dict[Axis, LinkLevel] = Field(
        default_factory=dict,
        description="outermost link level that a group of the axis crosses (axes of degree 1 left out)",
    )

    @field_validator("axis_order")
    @classmethod
    def _is_permutation(cls, value: tuple[GridAxis, ...]) -> tuple[GridAxis, ...]:
        if sorted(value) != sorted(GRID_AXES):
            raise ValueError(f"axis_order must name each of {', '.join(GRID_AXES)} once, got {', '.join(value)}")
        return value

    @property
    def num_accelerators(self) -> int:
        """Accelerators used."""
        return sum(share.num_accelerators for share in self.fill)


class Device(NamedTuple):
    """One accelerator of the topology. Numbers start at 0 in the enclosing unit, ``host`` in the building."""

    building: str
    zone: int
    rack: int
    host: int
    local: int


def devices(topology: Topology, placement: Placement) -> Iterator[Device]:
    """Yield the job's devices in the order of their global ranks.

    Raises:
        KeyError: a building of the placement is not in the topology.
    """
    for first, used in host_devices(topology, placement):
        for local in range(used):
            yield Device(first.building, first.zone, first.rack, first.host, local)


def host_devices(topology: Topology, placement: Placement) -> Iterator[tuple[Device, int]]:
    """Yield the first device of every host in rank order, and how many devices of that host the job uses.

    Raises:
        KeyError: a building of the placement is not in the topology.
    """
    for share in placement.fill:
        building = topology.building(share.building)
        size = building.accelerators_per_host
        for host in range(-(-share.num_accelerators // size)):
            rack, zone = host // building.hosts_per_rack, host // (building.hosts_per_rack * building.racks_per_zone)
            used = min(size, share.num_accelerators - host * size)
            yield Device(building.name, zone, rack % building.racks_per_zone, host, 0), used


def strides(degrees: Degrees, axis_order: Sequence[GridAxis]) -> dict[GridAxis, int]:
    """Difference of global ranks between neighbours on each axis; ``axis_order`` lists the fastest axis first."""
    out: dict[GridAxis, int] = {}
    stride = 1
    for axis in axis_order:
        out[axis] = stride
        stride *= degrees.of(axis)
    return out


def communicator_axes(degrees: Degrees, axis_order: Sequence[GridAxis]) -> dict[str, tuple[int, int]]:
    """Map each communicator to its degree and stride: grid axes, ``cp_inner`` and ``cp_outer``, ``ep`` and ``expert``.

    ``cp_outer`` has degree 1 where cp has one level. Folded experts occupy all ranks of tp and cp first, in any order
    of these axes.
    """
    stride = strides(degrees, axis_order)
    axes = {str(axis): (degrees.of(axis), stride[axis]) for axis in GRID_AXES}
    axes["cp_inner"] = (degrees.cp_inner, stride["cp"])
    axes["cp_outer"] = (degrees.cp // degrees.cp_inner if degrees.cp_inner > 1 else 1, stride["cp"] * degrees.cp_inner)
    axes["ep"] = (degrees.expert_ranks, stride["dp_shard"] // degrees.expert_lanes)
    axes["expert"] = (degrees.dp_shard // degrees.ep, stride["dp_shard"] * degrees.ep)
    return axes


def axis_orders(active: Sequence[GridAxis], folded: bool = False) -> list[tuple[GridAxis, ...]]:
    """Permutations of the axes of degree > 1, fastest first.

    With ``folded`` only those with dp_shard directly after tp and cp, so that ranks that share experts are neighbours.
    """
    return [order for order in permutations(active) if not folded or holds_folded(order)]


def holds_folded(order: Sequence[GridAxis]) -> bool:
    """Whether dp_shard directly follows tp and cp in an order of the axes of degree > 1."""
    # tp and cp may have degree 1 and be absent, so the window before dp_shard is as long as the lanes that exist
    lanes, at = {"tp", "cp"}.intersection(order), list(order).index("dp_shard")
    return set(order[max(0, at - len(lanes)) : at]) == lanes


def coordinates(degrees: Degrees, axis_order: Sequence[GridAxis], global_rank: int) -> dict[GridAxis, int]:
    """Coordinate of the global rank ``global_rank`` on every grid axis."""
    return {axis: global_rank // stride % degrees.of(axis) for axis, stride in strides(degrees, axis_order).items()}
