"""Degree, stride and shape of the process groups of a decision, computed independently of the cost model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleacross.cost_models.levels import NUM_LEVELS
from scaleacross.spec.parallelism import GRID_AXES, Degrees, GridAxis
from scaleacross.spec.placement import Placement, strides

Group = tuple[int, int]
Places = NDArray[np.int64]


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


class Touched(NamedTuple):
    """A row per child of a level that a group touches.

    Attributes:
        group, child: their numbers.
        sizes: ranks of the group in the child.
        siblings, whole: children that the group touches in the child's parent, and its ranks there.
    """

    group: Places
    child: Places
    sizes: Places
    siblings: Places
    whole: Places


def touched_children(places: Places, level: int) -> Touched:
    """Return the children of a level that groups touch; ``places`` (groups, ranks, levels)."""
    children = places[:, :, level]
    parents = places[:, :, level + 1] if level + 1 < NUM_LEVELS else np.zeros_like(children)
    numbers = np.repeat(np.arange(len(children)), children.shape[1])
    _, first, sizes = np.unique(
        numbers * (children.max() + 1) + children.reshape(-1), return_index=True, return_counts=True
    )
    group, child, parent = numbers[first], children.reshape(-1)[first], parents.reshape(-1)[first]
    owner, siblings = np.unique(group * (parent.max() + 1) + parent, return_inverse=True, return_counts=True)[1:]
    whole = np.bincount(owner, weights=sizes).astype(np.int64)
    return Touched(group, child, sizes, siblings[owner], whole[owner])


def lying(places: Places) -> NDArray[np.float64]:
    """Return (4, levels) fanout, members, taken and pairs of groups; ``places`` (groups, ranks, levels)."""
    out = np.ones((4, NUM_LEVELS))
    for level in range(NUM_LEVELS):
        touched = touched_children(places, level)
        crosses = np.isin(touched.group, touched.group[touched.siblings > 1])
        lacks = (touched.whole - touched.sizes) / touched.whole
        out[:3, level] = touched.siblings.max(), touched.sizes[crosses | ~crosses.any()].min(), lacks.max()
    out[3] = _pairs(places)
    return out


def changes(children: Places) -> NDArray[np.bool_]:
    """Return (groups, ranks − 1) whether neighbours in a group lie in different children."""
    return np.asarray(children[:, 1:] != children[:, :-1])


def _pairs(places: Places) -> NDArray[np.float64]:
    """Return (levels,) neighbour pairs by their outermost level, of the group with most pairs at the widest level."""
    differ = places[:, 1:] != places[:, :-1]
    outermost = NUM_LEVELS - 1 - np.argmax(differ[:, :, ::-1], axis=2)
    counts = np.stack([(outermost == level).sum(axis=1) for level in range(NUM_LEVELS)], axis=1)
    return np.array(max(map(tuple, np.unique(counts, axis=0)), key=lambda each: each[::-1]), dtype=float)
