"""Which accelerator types compute what: replica classes of a placement, and the types of each of their pipeline stages.

A *replica class* is the set of data-parallel replicas that touch exactly the same buildings; the classes are few, however
many accelerators there are. A stage of a class computes at the pace of the slowest type that any replica of the class has
on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.placement import BuildingShare, strides
from scaleacross.spec.topology import Topology


@dataclass(frozen=True)
class ReplicaClass:
    """Replicas that touch the same buildings.

    Attributes:
        buildings: names, in the order of the fill.
        num_replicas: how many there are.
        types: per pipeline rank the names of the accelerator types on it.
    """

    buildings: tuple[str, ...]
    num_replicas: int
    types: tuple[frozenset[str], ...]


Layout = tuple[ReplicaClass, ...]


def layout_of(
    topology: Topology, fill: Sequence[BuildingShare], degrees: Degrees, axis_order: Sequence[GridAxis]
) -> Layout:
    """The replica classes of a placement, in the order of their first replica (dp_replicate outer, dp_shard inner).

    Positions between two cuts of buildings and within the smallest stride of pp and dp lie alike, so one is looked at for
    all. Cost: O(positions / unit).

    Raises:
        KeyError: a building of the fill is not in the topology.
    """
    used = [topology.building(share.building) for share in fill]
    ends = np.cumsum([share.num_accelerators for share in fill])
    stride = strides(degrees, axis_order)
    unit = math.gcd(stride["pp"], stride["dp_shard"], stride["dp_replicate"], *(int(end) for end in ends))
    position = np.arange(0, degrees.world_size, unit)
    building = np.searchsorted(ends, position, side="right")
    at = {axis: position // stride[axis] % degrees.of(axis) for axis in ("pp", "dp_shard", "dp_replicate")}
    touched = np.zeros((degrees.dp, degrees.pp, len(used)), dtype=bool)
    touched[at["dp_replicate"] * degrees.dp_shard + at["dp_shard"], at["pp"], building] = True
    kinds, first, inverse = np.unique(touched.any(axis=1), axis=0, return_index=True, return_inverse=True)
    out = []
    for index in np.argsort(first):
        replicas = inverse.ravel() == index
        here = touched[replicas].any(axis=0)
        types = tuple(frozenset(used[b].accelerator.name for b in np.flatnonzero(rank)) for rank in here)
        out.append(ReplicaClass(tuple(used[b].name for b in np.flatnonzero(kinds[index])), int(replicas.sum()), types))
    return tuple(out)


def types_of_ranks(layout: Layout) -> tuple[frozenset[str], ...]:
    """Per pipeline rank the types that some replica has on it."""
    return tuple(frozenset().union(*stage) for stage in zip(*(one.types for one in layout), strict=True))
