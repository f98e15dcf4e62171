"""Derive the placement from a list of hosts in node-rank order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations

from scaleacross.emitters.rank_order import order_of
from scaleacross.errors import EmitError, InputError
from scaleacross.spec.parallelism import GRID_AXES, Degrees, GridAxis
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.topology import Topology


def read_hosts(text: str, name: str) -> list[str]:
    """Return the host of every rank, by its name in the topology.

    The text is a hosts.txt (a block of ranks per line) or a slurm_hostfile (one rank per line). A line of hosts.txt has
    the host, its processes (8, slots=8) and, where it differs, the host's name in the topology.

    Raises:
        InputError: a line of another form, or no host.
    """
    out: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split("#")[0].replace("slots=", "", 1).split()
        if len(fields) == 1:
            out.append(fields[0])
        elif len(fields) in (2, 3) and fields[1].isdigit() and int(fields[1]) > 0:
            out += [fields[2] if len(fields) == 3 else fields[0]] * int(fields[1])
        elif fields:
            raise InputError(
                f"{name}, line {number}: '{line}': host, processes and the host's name in the topology are needed"
            )
    if not out:
        raise InputError(f"{name}: no host")
    return out


def check_whole(hosts: Sequence[str], name: str, topology: Topology) -> None:
    """Raise InputError where every host has one process and more accelerators: the file then lists hosts, not ranks."""
    least = min(one.accelerators_per_host for one in topology.buildings)
    if least > 1 and len(set(hosts)) == len(hosts):
        raise InputError(
            f"{name}: {len(hosts)} hosts, each on one line, which stands for one process: write the processes of a host "
            f"behind it, as '{hosts[0]} {least}'"
        )


def placement_of(
    hosts: Sequence[str], name: str, topology: Topology, degrees: Degrees, order: Sequence[GridAxis]
) -> Placement:
    """Return the placement under which a framework of rank order ``order`` has rank i on host i of ``hosts``.

    Raises:
        InputError: a host is in no building, or no placement has that order.
    """
    homes = {one.host_name(index): one.name for one in topology.buildings for index in range(one.hosts)}
    shares: dict[str, int] = {}
    for host, processes in Counter(hosts).items():
        if host not in homes:
            known = ", ".join(f"{one.name} ({one.host_name(0)}, …)" for one in topology.buildings)
            raise InputError(f"{name}: host '{host}' is in no building of the topology: {known}")
        shares[homes[host]] = shares.get(homes[host], 0) + processes
    for placement in _candidates(shares, degrees):
        try:
            found = order_of(topology, degrees, placement, order)
        except EmitError:
            continue
        if [found.hosts[index].name for index in found.host.tolist()] == list(hosts):
            return placement
    raise InputError(
        f"{name}: no order of axes and buildings has these hosts in this order; a placement is whole hosts, from the first of "
        "each building on; where a host's ranks are no block, give slurm_hostfile"
    )


def _candidates(shares: dict[str, int], degrees: Degrees) -> Iterator[Placement]:
    """Yield placements, first with buildings as listed. Axes of degree 1 are in front, where they change nothing."""
    idle = tuple(axis for axis in GRID_AXES if degrees.of(axis) == 1)
    active = [axis for axis in GRID_AXES if degrees.of(axis) > 1]
    for names in permutations(shares):
        allocation = tuple(BuildingShare(building=name, num_accelerators=shares[name]) for name in names)
        for order in permutations(active):
            yield Placement(axis_order=(*idle, *order), fill=allocation)
