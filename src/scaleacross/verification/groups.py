"""Degree and stride of every process group of a decision, computed independently of the cost model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from scaleacross.spec.parallelism import GRID_AXES, Degrees, GridAxis
from scaleacross.spec.placement import Placement, strides

Group = tuple[int, int]


def counted_groups(degrees: Degrees, placement: Placement) -> dict[str, Group]:
    """Return name -> (degree, stride) of every axis, both levels of cp, ``ep`` and ``expert``.

    ``ep`` groups the ranks that share a model's experts, ``expert`` the ranks that hold equal experts.
    """
    stride = strides(degrees, placement.axis_order)
    axes = {str(axis): (degrees.of(axis), stride[axis]) for axis in GRID_AXES}
    axes |= _context_levels(degrees, stride)
    axes["ep"] = _expert_group(degrees, stride)
    axes["expert"] = (degrees.dp_shard // degrees.ep, stride["dp_shard"] * degrees.ep)
    return axes


def _context_levels(degrees: Degrees, stride: Mapping[GridAxis, int]) -> dict[str, Group]:
    """Return the groups of cp that exchange heads, and the rings between these; single ranks where cp has one level."""
    if degrees.cp_inner == 1:
        return {"cp_inner": (1, 1), "cp_outer": (1, 1)}
    inner = degrees.cp_inner
    return {"cp_inner": (inner, stride["cp"]), "cp_outer": (degrees.cp // inner, stride["cp"] * inner)}


def _expert_group(degrees: Degrees, stride: Mapping[GridAxis, int]) -> Group:
    """Return the group that shares a model's experts: ep of dp_shard, with the lanes of tp and cp if folded."""
    if degrees.expert_lanes == 1:
        return degrees.ep, stride["dp_shard"]
    return degrees.tp * degrees.cp * degrees.ep, min(stride[axis] for axis in ("tp", "cp") if degrees.of(axis) > 1)


def busiest_ways(building: NDArray[np.int64], region: NDArray[np.int64]) -> list[float]:
    """Return the most rings that step from one building to the same other one: [within a region, between regions].

    Args:
        building, region: (groups, ranks) of the ranks of every ring, in order.
    """
    ahead, beyond = np.roll(building, -1, axis=1), np.roll(region, -1, axis=1) != region
    out = []
    for steps in ((building != ahead) & ~beyond, beyond):
        _, counts = np.unique(building[steps] * (building.max() + 1) + ahead[steps], return_counts=True)
        out.append(float(counts.max(initial=1)))
    return out
