"""Lower bounds on collective time, for groups that tile a topology and run the same collective concurrently.

Take any unit: an accelerator, a scale-up domain, a rack, a zone, a building, a region. m of a group's n ranks are in
it. For a collective over S bytes, each group must receive from outside the unit

* all-gather      S·(n−m)/n, the parts of the others; a reduce-scatter sends as much out
* all-to-all      m·(n−m)/n·S
* all-reduce      S, the sum of the others; and 2(u−1)·S into all of the u units that the group touches together
                  (Patarasuk and Yuan, 2009). If switches of a scale-up domain add up what passes, an accelerator
                  receives only (n−1)/n·S

All of it passes the links into the unit. For an accelerator these are its link into the scale-up domain and its network
adapter. For other units they are the adapters of their accelerators or, where that is less, the uplink of a domain,
rack or zone, or all inter-building links of a building or region. So in any unit, no schedule is faster than the bytes
of all groups over that rate, plus the least latency of a link into it. (Bytes of ranks farther away may travel while
those of nearer ones come in.) Nor is any faster than one message from the farthest rank, over the buildings on the
route of least latency.

A measured curve of a group inside one scale-up domain replaces the bound where it is below all this.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, SCALE_UP, Levels
from scaleacross.spec.network import LINK_LEVELS, CurveOp, Trunk
from scaleacross.spec.placement import BuildingShare
from scaleacross.spec.topology import Building, Topology, attainable_trunk_bytes_per_s
from scaleacross.spec.trunk_paths import TrunkPaths


class Tiling(NamedTuple):
    """Groups of ``degree`` global ranks, ``stride`` apart, on an allocation of a topology."""

    topology: Topology
    allocation: Sequence[BuildingShare]
    levels: Levels
    degree: int
    stride: int

    @property
    def groups(self) -> Ints:
        """Global ranks of every group, (groups, degree)."""
        every = np.arange(self.levels.num_ranks, dtype=np.int64)
        return every.reshape(-1, self.degree, self.stride).transpose(0, 2, 1).reshape(-1, self.degree)

    def units(self, level: int) -> Ints:
        """The unit below a level that holds each global rank, (ranks,)."""
        if level == SCALE_UP:
            return np.arange(self.levels.num_ranks, dtype=np.int64)
        return self.levels.children(1)[level - 1] - 1


def least_s(op: CurveOp, size_bytes: float, tiling: Tiling, measured_s: float | None) -> tuple[float, int | None]:
    """Lower bound on seconds of any algorithm, and the level whose links set it (None for groups of one).

    Args:
        op: all_reduce, all_gather, reduce_scatter (``size_bytes`` of the full tensor) or all_to_all (bytes that one
            rank sends in all, itself included).
        size_bytes: S.
        tiling: the groups.
        measured_s: time of as many ranks by a curve of the scale-up domain; None without one.
    """
    if tiling.degree == 1:
        return 0.0, None
    needs = [(_level_s(op, size_bytes, tiling, level, measured_s is not None), level) for level in range(NUM_LEVELS)]
    busiest_s, busiest = max(needs)
    seconds = max(busiest_s, _farthest_s(tiling))
    outermost = max(level for level in range(NUM_LEVELS) if len(_apart(tiling, level)))
    if outermost == SCALE_UP and measured_s is not None:
        seconds = min(seconds, measured_s)
    return seconds, busiest


def _apart(tiling: Tiling, level: int) -> Ints:
    """Indices of the groups that touch several units below a level."""
    units = tiling.units(level)[tiling.groups]
    return np.flatnonzero((units != units[:, :1]).any(axis=1))


def _level_s(op: CurveOp, size_bytes: float, tiling: Tiling, level: int, curves: bool) -> float:
    """Largest time of a unit below a level to receive what its groups need, s; 0 where no group needs anything."""
    units, groups = tiling.units(level), tiling.groups
    rates, first_s = _rates(tiling, level), _first_s(tiling, level)
    group = np.repeat(np.arange(len(groups)), tiling.degree)
    pair, members = np.unique(group * len(rates) + units[groups.ravel()], return_counts=True)
    of_group, unit = np.divmod(pair, len(rates))
    outside = (tiling.degree - members) / tiling.degree
    # a measured domain may reduce in its switches, so its accelerators may receive less
    adds_up = level == SCALE_UP and curves
    share = outside
    if op == "all_to_all":
        share = members * outside
    elif op == "all_reduce" and not adds_up:
        share = np.where(outside > 0, 1.0, 0.0)
    entering = np.bincount(unit, share, len(rates)) * size_bytes
    busy_s = np.divide(entering, rates, out=np.zeros(len(rates)), where=entering > 0)
    seconds = float((busy_s + np.where(entering > 0, first_s, 0.0)).max())
    if op == "all_reduce" and not adds_up:
        touched = np.bincount(of_group)
        crossing = np.unique(unit[touched[of_group] > 1])
        whole = 2 * float((touched - 1).sum()) * size_bytes
        if len(crossing):
            seconds = max(seconds, whole / float(rates[crossing].sum()) + float(first_s[crossing].min()))
    return seconds


def _rates(tiling: Tiling, level: int) -> Floats:
    """Upper bound on bytes/s that enter each unit below a level, (units,)."""
    topology = tiling.topology
    used = [topology.building(share.building) for share in tiling.allocation]
    counts = [share.num_accelerators for share in tiling.allocation]
    owner: Ints = np.repeat(np.arange(len(used)), counts)
    units = tiling.units(level)
    adapters = np.array([_adapter_bytes_per_s(building) for building in used])
    if level == SCALE_UP:
        return (adapters + np.array([_bytes_per_s(building, "scale_up") for building in used]))[owner]
    rates = np.bincount(units, adapters[owner]).astype(np.float64)
    first = np.unique(units, return_index=True)[1]
    if level < CAMPUS:
        return np.minimum(rates, np.array([_uplink_bytes_per_s(building, level) for building in used])[owner[first]])
    trunks = [sum(attainable_trunk_bytes_per_s(topology, one) for one in into) for into in _trunks_into(tiling, level)]
    return np.minimum(rates, trunks)


def _first_s(tiling: Tiling, level: int) -> Floats:
    """Least latency of a message into each unit below a level, s, (units,)."""
    owner = np.repeat(np.arange(len(tiling.allocation)), [share.num_accelerators for share in tiling.allocation])
    used = [tiling.topology.building(share.building) for share in tiling.allocation]
    near = [
        min((getattr(one.links, name).one_way_latency_s for name in LINK_LEVELS[level:CAMPUS]), default=np.inf)
        for one in used
    ]
    first = np.unique(tiling.units(level), return_index=True)[1]
    far = [min((one.one_way_latency_s for one in into), default=np.inf) for into in _trunks_into(tiling, level)]
    return np.minimum(np.array(near)[owner[first]], far)


def _trunks_into(tiling: Tiling, level: int) -> list[list[Trunk]]:
    """Inter-building links from outside into the buildings of each unit below a level, (units,)."""
    pairs = {*zip(tiling.units(level).tolist(), tiling.units(CAMPUS).tolist(), strict=True)}
    inside: dict[int, set[str]] = {}
    for unit, building in sorted(pairs):
        inside.setdefault(unit, set()).add(tiling.allocation[building].building)
    return [[one for one in tiling.topology.trunks if len(names & set(one.between)) == 1] for names in inside.values()]


def _bytes_per_s(building: Building, level: str) -> float:
    technology = getattr(building.links, level).technology
    return float(technology.bandwidth_bytes_per_s * technology.efficiency_fraction)


def _adapter_bytes_per_s(building: Building) -> float:
    return max(_bytes_per_s(building, level) for level in ("rack", "zone", "building"))


def _uplink_bytes_per_s(building: Building, level: int) -> float:
    """Bytes/s that leave one unit below a level inside a building."""
    link, below = getattr(building.links, LINK_LEVELS[level]), LINK_LEVELS[level - 1]
    size = building.accelerators_per(below)
    return _bytes_per_s(building, LINK_LEVELS[level]) * size / float(link.oversubscription_ratio)


def _farthest_s(tiling: Tiling) -> float:
    """Least latency, s, of a message between the two ranks of a group that are farthest apart."""
    topology = tiling.topology
    used = [topology.building(share.building) for share in tiling.allocation]
    owner = tiling.units(CAMPUS)[tiling.groups]
    rows = np.unique(np.sort(owner, axis=1), axis=0)
    together = {pair for row in rows for pair in combinations(np.unique(row).tolist(), 2)}
    # with messages of 0 bytes, routes are those of least latency
    paths = TrunkPaths(topology.model_copy(update={"routed_message_bytes": 0.0}))
    over = [paths.latency_s(used[a].name, used[b].name) for a, b in together]
    for level in reversed(range(CAMPUS)):
        crossing = _apart(tiling, level)
        if len(crossing):
            inside = np.unique(owner[crossing])
            over.append(min(getattr(used[one].links, LINK_LEVELS[level]).one_way_latency_s for one in inside.tolist()))
            break
    return max(over)
