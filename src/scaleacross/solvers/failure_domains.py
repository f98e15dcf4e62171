"""Test whether some placement of given degrees keeps the replicas of a job apart, as ``Job.failure_domains`` asks.

A unit in use holds part of one replica or more, so only a job without accelerators loses none. Replicas have w
accelerators. The fullest of u units holds at least ⌈N/u⌉ accelerators, of at least ⌈⌈N/u⌉/w⌉ replicas.
"""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Ints
from scaleacross.cost_models.distinct import distinct
from scaleacross.cost_models.failures import replicas_lost
from scaleacross.solvers.pools import AcceleratorPool, shares
from scaleacross.spec.job import FailureDomains
from scaleacross.spec.parallelism import GRID_AXES, Degrees
from scaleacross.spec.placement import axis_orders

SHAPE_AXES = ("dp_shard", "dp_replicate", "pp", "tp", "cp", "expert_lanes")


def lost_at_least(pool: AcceleratorPool, candidates: Candidates, wanted: FailureDomains) -> Ints:
    """Return the least replicas that are lost with the fullest unit of the pool, whatever the placement, (n,)."""
    units = sum(
        -(-building.num_accelerators // building.accelerators_per("zone")) if wanted.level == "zone" else 1
        for building in pool.buildings
    )
    fullest = -(-candidates.world_size // units)
    return -(-fullest // (candidates.world_size // candidates.dp))


def keeps_apart(pool: AcceleratorPool, degrees: Degrees, wanted: FailureDomains) -> bool:
    """Return whether some axis order on some allocation loses no more replicas than allowed with any one unit."""
    active = [axis for axis in GRID_AXES if degrees.of(axis) > 1]
    idle = [axis for axis in GRID_AXES if axis not in active]
    return any(
        replicas_lost(pool.topology, shares(allocation), degrees, (*idle, *order), wanted.level)
        <= wanted.max_replicas_lost
        for allocation in pool.allocations_of(degrees)
        for order in axis_orders(active, degrees.expert_lanes > 1)
    )


def any_keeps_apart(pool: AcceleratorPool, candidates: Candidates, wanted: FailureDomains) -> bool:
    """Return whether some candidate has a placement that keeps its replicas apart, most promising ones first."""
    least = lost_at_least(pool, candidates, wanted)
    hopeful = np.flatnonzero(least <= wanted.max_replicas_lost)
    kinds = distinct(*(getattr(candidates, axis)[hopeful] for axis in SHAPE_AXES))
    rows = hopeful[kinds.first]
    rows = rows[np.argsort(least[rows] * candidates.world_size[rows], kind="stable")]
    return any(keeps_apart(pool, candidates.decision(int(row)).degrees, wanted) for row in rows)
