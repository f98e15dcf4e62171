"""Map the plan's global ranks to a framework's ranks, and these to hosts.

A framework numbers its ranks by a fixed axis order. The plan's placement states which device has which coordinates.
Together they give the device of each framework rank, and the order of the host list that puts every process on the
plan's device.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleacross.errors import EmitError
from scaleacross.spec.launch import RankRow, expert_coordinate
from scaleacross.spec.parallelism import GRID_AXES, Degrees, GridAxis
from scaleacross.spec.placement import Placement, host_devices, strides
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Topology

Ints = NDArray[np.int64]


class Host(NamedTuple):
    """A host of the job.

    ``zone`` and ``rack`` count from 0 inside building and zone; ``num_ranks`` counts the job's ranks on it.
    """

    name: str
    building: str
    zone: int
    rack: int
    num_ranks: int


@dataclass(frozen=True)
class RankOrder:
    """The processes of a job in one framework's rank order.

    Attributes:
        hosts: hosts in order of their first rank.
        host: index into ``hosts``, shape (ranks,).
        coordinates: axis -> coordinate of every rank, shape (ranks,).
        ep: expert coordinate of every rank, shape (ranks,).
        spares: building -> real names of its hosts that the plan leaves idle.
        accelerators: names of the accelerator types used.
    """

    hosts: tuple[Host, ...]
    host: Ints
    coordinates: Mapping[GridAxis, Ints]
    ep: Ints
    spares: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    accelerators: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.host)

    @cached_property
    def local_ranks(self) -> Ints:
        """Number of every rank among the ranks of its host, shape (ranks,). Launchers number local processes this way."""
        # a stable sort keeps the ranks of each host in rank order, even where they are not consecutive
        order = np.argsort(self.host, kind="stable")
        starts = np.flatnonzero(np.diff(self.host[order], prepend=-1))
        out = np.empty(len(self), dtype=np.int64)
        out[order] = np.arange(len(self)) - np.repeat(starts, np.diff(starts, append=len(self)))
        return out

    def rows(self) -> tuple[RankRow, ...]:
        """Return the row of every rank: host, local rank, pp, dp_replicate, dp_shard, cp, tp, ep."""
        axes: tuple[GridAxis, ...] = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        columns = [self.host, self.local_ranks, *(self.coordinates[axis] for axis in axes), self.ep]
        return tuple(zip(*(column.tolist() for column in columns), strict=True))

    def split_host(self) -> str | None:
        """Return the first host whose ranks are not one contiguous block, or None. torchrun needs contiguous blocks."""
        # one entry per run of equal hosts, so a host that appears twice is split
        blocks = self.host[np.flatnonzero(np.diff(self.host, prepend=-1))]
        again = np.ones(len(blocks), dtype=bool)
        again[np.unique(blocks, return_index=True)[1]] = False
        return self.hosts[int(blocks[again][0])].name if again.any() else None


def plan_topology(plan: Plan) -> Topology:
    """Return the topology inside the plan.

    Raises:
        EmitError: the plan names a topology instead of containing it.
    """
    if isinstance(plan.job.topology, str):
        raise EmitError(
            f"plan '{plan.job.name}' names its topology ('{plan.job.topology}') but does not hold it: resolve it first"
        )
    return Topology.model_validate(plan.job.topology)


def rank_order(plan: Plan, framework_order: Sequence[GridAxis] | None = None) -> RankOrder:
    """Return the processes in the rank order of ``framework_order``, fastest axis first (default: the plan's).

    Raises:
        EmitError: the placement does not give every process a device of its own.
    """
    return order_of(plan_topology(plan), plan.degrees, plan.placement, framework_order)


def order_of(
    topology: Topology, degrees: Degrees, placement: Placement, framework_order: Sequence[GridAxis] | None = None
) -> RankOrder:
    """Return the ``rank_order`` of degrees placed on a topology. Raises as ``rank_order``."""
    size = degrees.world_size
    largest: dict[str, int] = {}
    for share in placement.fill:
        largest[share.building] = max(share.num_accelerators, largest.get(share.building, 0))
    if placement.num_accelerators != size or sum(largest.values()) != size:
        raise EmitError(
            f"the placement gives {sum(largest.values())} different devices to {size} processes ({degrees}): "
            "the shares of 'fill' must add up and name each building once"
        )
    hosts = list(host_devices(topology, placement))
    host_of = np.repeat(np.arange(len(hosts)), [used for _, used in hosts])
    own = strides(degrees, placement.axis_order)
    theirs = strides(degrees, framework_order or placement.axis_order)
    global_ranks = np.arange(size)
    at = {axis: global_ranks // own[axis] % degrees.of(axis) for axis in GRID_AXES}
    position_of = np.empty(size, dtype=np.int64)
    # same coordinates, the framework's strides: its rank on the left, the plan's global rank on the right
    position_of[sum(at[axis] * theirs[axis] for axis in GRID_AXES)] = global_ranks
    by_rank = host_of[position_of]
    # renumber hosts by their first rank, because node rank k must start after nodes 0..k-1
    _, first, host = np.unique(by_rank, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    in_order = (hosts[index] for index in by_rank[first[order]].tolist())
    buildings = {building.name: building for building in topology.buildings}
    named = tuple(
        Host(buildings[one.building].host_name(one.host), one.building, one.zone, one.rack, used)
        for one, used in in_order
    )
    coordinates = {axis: at[axis][position_of] for axis in GRID_AXES}
    ep = expert_coordinate(degrees, *(coordinates[axis] for axis in ("dp_shard", "cp", "tp")))
    taken = {host.name for host in named}
    spares = {name: tuple(host for host in one.host_names if host not in taken) for name, one in buildings.items()}
    types = tuple(dict.fromkeys(buildings[host.building].accelerator.name for host in named))
    left = {name: names for name, names in spares.items() if names}
    return RankOrder(named, place[host], coordinates, ep, left, types)


def ranks_csv(order: RankOrder) -> str:
    """Return the rank table: rank, host, local, building, zone, rack, pp, dp_replicate, dp_shard, cp, tp, ep."""
    named = [_quoted(one.name) for one in order.hosts]
    placed = [f"{_quoted(one.building)},{one.zone},{one.rack}" for one in order.hosts]
    rows = (
        f"{rank},{named[host]},{local},{placed[host]},{pp},{replica},{shard},{cp},{tp},{ep}\n"
        for rank, (host, local, pp, replica, shard, cp, tp, ep) in enumerate(order.rows())
    )
    return "rank,host,local,building,zone,rack,pp,dp_replicate,dp_shard,cp,tp,ep\n" + "".join(rows)


def _quoted(name: str) -> str:
    """Return a name as a field of a CSV file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([name])
    return out.getvalue()
