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
from itertools import accumulate, compress, pairwise
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Ints
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.placement import strides
from scaleacross.spec.plan import Decision
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
LAYOUT_AXES: Final[tuple[GridAxis, ...]] = ("pp", "dp_shard", "dp_replicate")
"""Axes whose degrees and strides decide which types a stage of a replica has."""


def layout_of(topology: Topology, decision: Decision) -> Layout:
    """The replica classes of a placed decision, in the order of their first replica (dp_replicate outer, dp_shard inner).

    Raises:
        ValueError: the decision has no placement.
        KeyError: a building of the placement is not in the topology.
    """
    degrees, fill = decision.degrees, decision.placed.fill
    used = [topology.building(share.building) for share in fill]
    counts, stride = [share.num_accelerators for share in fill], strides(degrees, decision.placed.axis_order)
    return layout_on(used, counts, degrees.world_size, *((degrees.of(axis), stride[axis]) for axis in LAYOUT_AXES))


def layout_on(
    used: Sequence[Building], counts: Sequence[int], size: int, pp: Axis, dp_shard: Axis, dp_replicate: Axis
) -> Layout:
    """``layout_of`` for ``size`` global ranks on ``counts`` accelerators of the ``used`` buildings.

    Global ranks within the smallest stride of pp and dp lie alike, so one of them stands for all. A block of them that
    a border between buildings divides touches the buildings on both sides.
    """
    from scaleacross.cost_models.layout_loop import touched_by_class  # late: it brings the compiler

    cells, unit = _cells(size, pp, dp_shard, dp_replicate)
    ends = [0, *accumulate(counts)]
    # rounded outwards, because a block that a border divides touches both buildings
    blocks = np.array([(start // unit, -(-end // unit)) for start, end in pairwise(ends)], dtype=np.int64)
    replicas, here, touched = touched_by_class(cells, blocks, dp_shard[0] * dp_replicate[0], pp[0])
    names, types_of = [building.name for building in used], [building.accelerator.name for building in used]
    flags, width = touched.tobytes(), len(used)  # a byte for every stage and building
    stages = [flags[start : start + width] for start in range(0, len(flags), width)]
    types = {stage: frozenset(compress(types_of, stage)) for stage in set(stages)}
    each = [types[stage] for stage in stages]
    return tuple(
        ReplicaClass(tuple(compress(names, buildings)), number, tuple(each[index * pp[0] : (index + 1) * pp[0]]))
        for index, (number, buildings) in enumerate(zip(replicas.tolist(), here.tolist(), strict=True))
    )


@lru_cache(maxsize=128)
def _cells(size: int, pp: Axis, dp_shard: Axis, dp_replicate: Axis) -> tuple[Ints, int]:
    """Replica · pp + stage of every block of global ranks that lie alike, and the ranks of a block."""
    unit = math.gcd(pp[1], dp_shard[1], dp_replicate[1], size)
    global_ranks = np.arange(0, size, unit)
    global_ranks = global_ranks.astype(np.int32)
    stage, shard, replica = (global_ranks // stride % degree for degree, stride in (pp, dp_shard, dp_replicate))
    return (replica * dp_shard[0] + shard) * pp[0] + stage, unit


def types_of_ranks(layout: Layout) -> tuple[frozenset[str], ...]:
    """For every pipeline rank, the names of all types that some replica has on it."""
    return tuple(frozenset().union(*stage) for stage in zip(*(one.types for one in layout), strict=True))
