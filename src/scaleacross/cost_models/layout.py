"""Accelerator types of every pipeline stage: replica classes of a placement, and the types on each of their stages.

A *replica class* is the set of data-parallel replicas that touch exactly the same buildings. There are few classes,
however many accelerators there are. A stage of a class computes at the pace of the slowest type that any replica of the
class has on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Ints
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.placement import BuildingShare, strides
from scaleacross.spec.topology import Building, Topology


@dataclass(frozen=True)
class ReplicaClass:
    """Replicas that touch the same buildings.

    Attributes:
        buildings: names, in the order of the allocation.
        num_replicas: how many replicas the class has.
        types: names of the accelerator types on every pipeline rank.
    """

    buildings: tuple[str, ...]
    num_replicas: int
    types: tuple[frozenset[str], ...]


Layout = tuple[ReplicaClass, ...]
Axis = tuple[int, int]
"""Degree and stride."""
CODED: Final = 32
"""Buildings that one 64-bit code combines per round."""


def layout_of(
    topology: Topology, allocation: Sequence[BuildingShare], degrees: Degrees, axis_order: Sequence[GridAxis]
) -> Layout:
    """The replica classes of a placement, in the order of their first replica (dp_replicate outer, dp_shard inner).

    Global ranks within the smallest stride of pp and dp lie alike, so one of them stands for all. A block of them that
    a border between buildings divides touches the buildings on both sides.

    Raises:
        KeyError: a building of the allocation is not in the topology.
    """
    used = [topology.building(share.building) for share in allocation]
    ends = np.cumsum([share.num_accelerators for share in allocation]).tolist()
    stride = strides(degrees, axis_order)
    sizes = ((degrees.of(axis), stride[axis]) for axis in ("pp", "dp_shard", "dp_replicate"))
    cells, unit = _cells(degrees.world_size, *sizes)
    touched: Bools = np.zeros((len(used), degrees.dp * degrees.pp), dtype=bool)
    for building, (start, end) in enumerate(pairwise([0, *ends])):
        # rounded outwards, because a block that a border divides touches both buildings
        touched[building, cells[start // unit : -(-end // unit)]] = True
    by_replica = touched.reshape(len(used), degrees.dp, degrees.pp)
    codes = _codes(np.any(by_replica, axis=2))
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    out = []
    for index in np.argsort(first):
        replicas = np.flatnonzero(inverse == index)
        here, buildings = np.any(by_replica[:, replicas], axis=1), np.any(by_replica[:, replicas[0]], axis=1)
        out.append(ReplicaClass(_names(used, buildings), len(replicas), _types(used, here)))
    return tuple(out)


@lru_cache(maxsize=128)
def _cells(size: int, pp: Axis, dp_shard: Axis, dp_replicate: Axis) -> tuple[Ints, int]:
    """Replica · pp + stage of every block of global ranks that lie alike, and the ranks of a block."""
    unit = math.gcd(pp[1], dp_shard[1], dp_replicate[1], size)
    global_ranks = np.arange(0, size, unit)
    global_ranks = global_ranks.astype(np.int32)
    stage, shard, replica = (global_ranks // stride % degree for degree, stride in (pp, dp_shard, dp_replicate))
    return (replica * dp_shard[0] + shard) * pp[0] + stage, unit


def _codes(touched: Bools) -> Ints:
    """One number for every distinct set of buildings, (buildings, n) -> (n,)."""
    code: Ints = np.zeros(touched.shape[1], dtype=np.int64)
    for start in range(0, len(touched), CODED):
        some = touched[start : start + CODED]
        bits = (some << np.arange(len(some), dtype=np.int64)[:, None]).sum(axis=0)
        # renumbering leaves room for the bits of the next buildings
        code = bits if start == 0 else (np.unique(code, return_inverse=True)[1] << CODED) + bits
    return code


def _types(used: Sequence[Building], touched: Bools) -> tuple[frozenset[str], ...]:
    """Names of the accelerator types on every rank, from the buildings that it touches, (buildings, ranks)."""
    codes = _codes(touched)
    kinds, first = np.unique(codes, return_index=True)
    named = {
        code: frozenset(used[building].accelerator.name for building in np.flatnonzero(touched[:, rank]).tolist())
        for code, rank in zip(kinds.tolist(), first.tolist(), strict=True)
    }
    return tuple(named[code] for code in codes.tolist())


def _names(used: Sequence[Building], touched: Bools) -> tuple[str, ...]:
    return tuple(used[building].name for building in np.flatnonzero(touched).tolist())


def types_of_ranks(layout: Layout) -> tuple[frozenset[str], ...]:
    """For every pipeline rank, the names of all types that some replica has on it."""
    return tuple(frozenset().union(*stage) for stage in zip(*(one.types for one in layout), strict=True))
