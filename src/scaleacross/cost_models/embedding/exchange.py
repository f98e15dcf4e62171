"""Seconds per byte of ranks' exchanges for their tables, from the collective laws on the topology's levels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.collectives import Group, Timed
from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.levels import Levels
from scaleacross.cost_models.links import links_of
from scaleacross.spec.network_choice import Driver

_LARGE_BYTES: Final = 2.0**30
"""Size above which every law is a straight line."""

Replicas = Literal["outer", "inner"]


@dataclass(frozen=True)
class ExchangeGroups:
    """Process groups of the exchange, and the driver of their all-to-alls.

    Attributes:
        members: a replica group.
        inside: its members in a host.
        across: its hosts.
        replicas: replicas of a shard.
        every: all ranks.
    """

    members: Group
    inside: Group
    across: Group
    replicas: Group
    every: Group
    driver: Driver = "multiprocessors"

    @property
    def size(self) -> int:
        """Members of a group."""
        return int(self.members.shape.degree)


@dataclass(frozen=True)
class Exchange:
    """Slopes of the collectives, s per byte.

    Attributes:
        all_to_all: per byte that a rank sends in all, over the group.
        scatter: reduce-scatter forward and all-gather backward together, per byte of the full tensor, over the group.
        host_scatter: the same inside a host.
        across_hosts: all-to-all between hosts after ``host_scatter``.
        all_reduce: of a table that every rank of the group holds.
        sync: all-reduce over the replica groups.
        start_s: latency and launch of the two all-to-alls of a step, s.
    """

    all_to_all: float
    scatter: float
    host_scatter: float
    across_hosts: float
    all_reduce: float
    sync: float
    start_s: float


def exchange_groups(
    levels: Levels,
    num_groups: int,
    replicas: Replicas,
    unit: int,
    launch_s: float,
    driver: Driver = "multiprocessors",
) -> ExchangeGroups:
    """The process groups of ``num_groups`` replica groups on the global ranks of ``levels``.

    Args:
        replicas: ``outer``: a group is a run of ranks; ``inner``: replicas are neighbours and groups stride over them.
        unit: ranks of one group in a host; 0 where tables are not split over hosts.

    Raises:
        ValueError: the groups do not tile the ranks.
    """
    whole = levels.num_ranks
    size = whole // num_groups
    near, far = (1, size) if replicas == "outer" else (num_groups, 1)
    links = links_of(levels)

    def group(degree: int, stride: int) -> Group:
        return Group(exact_shape(degree, stride, levels), links, launch_s)

    members = group(size, near)
    return ExchangeGroups(
        members=members,
        inside=group(unit, near) if unit else members,
        across=group(size // unit, unit * near) if unit else members,
        replicas=group(num_groups, far),
        every=group(whole, 1),
        driver=driver,
    )


def exchange_of(groups: ExchangeGroups, sent_bytes: float, table_bytes: float) -> Exchange:
    """The slopes of the groups.

    Args:
        sent_bytes: bytes that a rank sends in an all-to-all: vectors of all tables over the ranks.
        table_bytes: bytes that are reduced where a table's rows are split: vectors of a mean table.
    """
    members = groups.members
    return Exchange(
        all_to_all=moved_slope(members, groups.driver, sent_bytes),
        scatter=_both(members, table_bytes),
        host_scatter=_both(groups.inside, table_bytes),
        across_hosts=moved_slope(groups.across, groups.driver, sent_bytes),
        all_reduce=slope(members.all_reduce),
        sync=slope(groups.replicas.all_reduce),
        start_s=2 * start_s(groups, 0.0),
    )


def start_s(groups: ExchangeGroups, sent_bytes: float) -> float:
    """Seconds of one all-to-all of ``sent_bytes``, a small size."""
    if groups.size <= 1:
        return 0.0
    each = (groups.members, groups.members.by(groups.driver))
    return max(float(one.all_to_all(np.array(sent_bytes)).time_s) for one in each)


def moved_slope(group: Group, driver: Driver, size_bytes: float = _LARGE_BYTES) -> float:
    """Seconds per byte of all-to-alls by a driver, which is never faster than kernels."""
    return max(slope(group.all_to_all, size_bytes), slope(group.by(driver).all_to_all, size_bytes))


def _both(group: Group, size_bytes: float) -> float:
    """Slope of reduce-scatter forward and all-gather backward together."""
    return slope(lambda size: group.gather(size, "reduce_scatter"), size_bytes) + slope(group.gather, size_bytes)


def slope(time: Callable[[Floats], Timed], size_bytes: float = _LARGE_BYTES) -> float:
    """Seconds per byte of messages of ``size_bytes`` without their start-up, at least those of large messages.

    Large messages attain the highest rate of a measured curve.
    """
    none, own, large, larger = (
        float(time(np.array(size)).time_s) for size in (0.0, size_bytes, _LARGE_BYTES, 2 * _LARGE_BYTES)
    )
    return max((own - none) / size_bytes, (larger - large) / _LARGE_BYTES)
