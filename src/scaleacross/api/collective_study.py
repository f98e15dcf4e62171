"""The verb collective: the time of every algorithm for one collective on a topology."""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

from scaleacross import catalogue
from scaleacross.api.arguments import numbers, one_of, whole_numbers
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.network.collective_bound import Tiling, least_s
from scaleacross.cost_models.network.options import Option, measured_s, options
from scaleacross.errors import InputError
from scaleacross.spec.collective import CollectiveOption, CollectiveStudy
from scaleacross.spec.network import LINK_LEVELS, CurveOp
from scaleacross.spec.placement import first_accelerators
from scaleacross.spec.topology import Topology


def collective(
    op: CurveOp,
    size_bytes: float,
    topology: Topology | str | Path,
    *,
    num_ranks: int | None = None,
    stride: int = 1,
) -> CollectiveStudy:
    """Return the time of every algorithm and chunking of one collective, and a bound for any algorithm, in seconds.

    Groups of ``num_ranks`` ranks, ``stride`` apart, tile the topology. Accelerators are numbered building by building
    as in the file, and all groups run at the same time. Accelerators of an incomplete last tile are left out.

    Args:
        op: all_reduce, all_gather, reduce_scatter or all_to_all.
        size_bytes: bytes of the full tensor; for an all-to-all, the bytes that one rank sends in all.
        topology: a Topology, a path, or the name of one of the catalogue.
        num_ranks: ranks per group; None: as many as there are at that stride.
        stride: difference of the global ranks of neighbours.

    Returns:
        A CollectiveStudy: ``options``, fastest first, with times in seconds and rates in bytes/s, and the bound
        ``bound_s``.

    Raises:
        InputError: no such operation or topology, an argument of a wrong type, a size that is not positive, or a group
            that the topology cannot hold.
    """
    one_of("op", op, get_args(CurveOp))
    numbers(size_bytes=size_bytes)
    if not 0 < size_bytes < float("inf"):
        raise InputError(f"size: {size_bytes:g} bytes; state a positive, finite size")
    tiling, shape = group_on(topology, num_ranks, stride)
    levels, degree = tiling.levels, tiling.degree
    links = links_of(levels)
    launch_s = max(accelerator.collective_start_s for accelerator in levels.accelerators)
    measured = measured_s(op, size_bytes, float(degree), links)
    seconds, level = least_s(op, size_bytes, tiling, None if math.isnan(measured) else measured)
    # the time of a ring does not count what other rings send through a building on their way
    found = (one._replace(time_s=max(one.time_s, seconds)) for one in options(op, size_bytes, shape, links, launch_s))
    return CollectiveStudy(
        op=op,
        size_bytes=size_bytes,
        topology=tiling.topology.name,
        num_ranks=degree,
        stride=stride,
        num_groups=levels.num_ranks // degree,
        members={level_name: float(f) for level_name, f in zip(LINK_LEVELS, shape.fanout, strict=True) if f > 1},
        bound_s=seconds,
        bound_level=None if level is None else LINK_LEVELS[level],
        options=tuple(_stated(op, size_bytes, degree, one) for one in sorted(found, key=lambda one: one.time_s)),
    )


def group_on(topology: Topology | str | Path, num_ranks: int | None, stride: int) -> tuple[Tiling, GroupShape]:
    """Return the groups that tile a topology (see ``collective``), and their exact shape.

    Raises:
        InputError: no such topology, a number of ranks or a stride that is not whole, or a group that it cannot hold.
    """
    whole_numbers(num_ranks=num_ranks, stride=stride)
    found = topology if isinstance(topology, Topology) else catalogue.load_topology(topology)
    degree = num_ranks if num_ranks is not None else max(1, found.num_accelerators // max(1, stride))
    tile = degree * stride
    if degree < 1 or stride < 1 or tile > found.num_accelerators:
        raise InputError(
            f"{degree:,} ranks, {stride:,} apart, do not fit: '{found.name}' has {found.num_accelerators:,} accelerators; "
            "lower one of the two"
        )
    allocation = first_accelerators(found.buildings, found.num_accelerators // tile * tile)
    tiling = Tiling(found, allocation, build_levels(found, allocation), degree, stride)
    return tiling, exact_shape(degree, stride, tiling.levels)


def _stated(op: CurveOp, size_bytes: float, degree: int, option: Option) -> CollectiveOption:
    """Return an option with its rates.

    Bus bandwidth is that of nccl-tests: size / time × 2(d−1)/d for an all-reduce, (d−1)/d otherwise.
    """
    rate = size_bytes / option.time_s
    return CollectiveOption(
        algorithm=option.name,
        num_chunks=option.num_chunks,
        time_s=option.time_s,
        algorithm_bytes_per_s=rate,
        bus_bytes_per_s=rate * (degree - 1) / degree * (2 if op == "all_reduce" else 1),
        bytes_per_level={LINK_LEVELS[level]: sent for level, sent in option.level_bytes.items()},
    )
