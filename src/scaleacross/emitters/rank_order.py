"""From the plan's positions to a framework's ranks, and from ranks to hosts.

A framework numbers its ranks by a fixed axis order; the plan's placement says which device holds which coordinates. So the device
of a framework rank follows, and with it the order of the host list that makes the framework land where the plan wants it.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from scaleacross.errors import EmitError
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.placement import Device, devices, strides
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Topology

Row = dict[str, int | str]


@dataclass(frozen=True)
class RankedProcess:
    """One process: its device and its coordinate on every axis."""

    device: Device
    coordinates: dict[GridAxis, int]


@dataclass(frozen=True)
class RankOrder:
    """The processes of a job by rank of one framework."""

    processes: tuple[RankedProcess, ...]
    ep: int

    @cached_property
    def hosts(self) -> tuple[tuple[str, int], ...]:
        """(plan's host name, processes on it), in order of the first rank."""
        return tuple(Counter(process.device.host_name for process in self.processes).items())

    @cached_property
    def local_ranks(self) -> tuple[int, ...]:
        """[rank] -> its number among the ranks of its host. Launchers number local processes this way."""
        seen: Counter[str] = Counter()
        out = []
        for process in self.processes:
            out.append(seen[process.device.host_name])
            seen[process.device.host_name] += 1
        return tuple(out)

    def split_host(self) -> str | None:
        """The first host whose ranks are not one contiguous block, or None. torchrun can only give out contiguous blocks."""
        finished: set[str] = set()
        previous = ""
        for process in self.processes:
            name = process.device.host_name
            if name != previous:
                if name in finished:
                    return name
                finished.add(previous)
                previous = name
        return None


def plan_topology(plan: Plan) -> Topology:
    """The topology inside the plan.

    Raises:
        EmitError: the plan names a topology instead of carrying it.
    """
    if isinstance(plan.job.topology, str):
        raise EmitError(
            f"plan '{plan.job.name}' names its topology ('{plan.job.topology}') but does not hold it: resolve it first"
        )
    return Topology.model_validate(plan.job.topology)


def rank_order(plan: Plan, framework_order: Sequence[GridAxis] | None = None) -> RankOrder:
    """Processes in the rank order of a framework whose axes run ``framework_order``, fastest first (default: the plan's own).

    Raises:
        EmitError: the placement does not give every process a device of its own.
    """
    degrees, placement = plan.degrees, plan.placement
    own = strides(degrees, placement.axis_order)
    theirs = strides(degrees, framework_order or placement.axis_order)
    where = list(devices(plan_topology(plan), placement))
    if len(where) != degrees.world_size or len(set(where)) != len(where):
        raise EmitError(
            f"the placement gives {len(set(where))} different devices to {degrees.world_size} processes ({degrees}): "
            "the shares of 'fill' must add up and name each building once"
        )
    processes: list[RankedProcess | None] = [None] * len(where)
    for position, device in enumerate(where):
        coordinates = {axis: position // stride % degrees.of(axis) for axis, stride in own.items()}
        processes[sum(coordinates[axis] * stride for axis, stride in theirs.items())] = RankedProcess(
            device, coordinates
        )
    return RankOrder(tuple(process for process in processes if process is not None), degrees.ep)


def ranks_csv(order: RankOrder) -> str:
    """The rank table: rank, host, local, building, zone, rack, pp, dp_replicate, dp_shard, cp, tp, ep."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    axes: tuple[GridAxis, ...] = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    writer.writerow(["rank", "host", "local", "building", "zone", "rack", *axes, "ep"])
    for rank, (process, local) in enumerate(zip(order.processes, order.local_ranks, strict=True)):
        device, at = process.device, process.coordinates
        where = [device.host_name, local, device.building, device.zone, device.rack]
        writer.writerow([rank, *where, *(at[axis] for axis in axes), at["dp_shard"] % order.ep])
    return out.getvalue()
