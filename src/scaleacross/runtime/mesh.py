"""Makes the process groups and device meshes of a launch file; only the members of a group take part."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from scaleacross.runtime.start import TIMEOUT_S
from scaleacross.spec.launch import LaunchConfig
from scaleacross.spec.parallelism import Axis

BACKEND_FOR_CPU = "cpu:scaleacross"


def own_group(
    config: LaunchConfig, axis: Axis, rank: int, backend: str = BACKEND_FOR_CPU, timeout_s: float = TIMEOUT_S
) -> dist.ProcessGroup:
    """Return the group of ``axis`` that holds ``rank``. Its members call this, nobody else has to."""
    members, limit = config.group_of(axis, rank), timedelta(seconds=timeout_s)
    return dist.new_group(members, limit, backend, group_desc=axis, use_local_synchronization=True)


def mesh_of(
    config: LaunchConfig,
    rank: int,
    axes: Sequence[Axis] = ("pp", "dp_replicate", "dp_shard"),
    device_type: str = "cpu",
    backend: str = BACKEND_FOR_CPU,
    timeout_s: float = TIMEOUT_S,
) -> DeviceMesh:
    """Return a mesh of the ranks by their coordinates on ``axes``, with this rank's group of each axis.

    ``DeviceMesh(ranks)`` makes every group on every rank, which takes as many store operations as there are groups.

    Args:
        axes: dimensions of the mesh, outermost first; on all other axes its ranks have the coordinates of ``rank``.
        timeout_s: time limit of a collective on these groups; torch's own default would be half an hour.
    """
    here = config.coordinates(rank)
    grid = torch.empty([config.degrees.of(axis) for axis in axes], dtype=torch.int)
    for other in range(config.world_size):
        at = config.coordinates(other)
        if all(at[axis] == here[axis] for axis in at if axis not in (*axes, "ep")):
            grid[tuple(at[axis] for axis in axes)] = other
    groups = [own_group(config, axis, rank, backend, timeout_s) for axis in axes]
    if len(axes) == 1:
        return DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=tuple(axes))
    return DeviceMesh.from_group(groups, device_type, mesh=grid, mesh_dim_names=tuple(axes))
