"""Accelerator pools, the buildings that a job may use, and allocations, the ways to spread accelerators over them.

An *accelerator pool* is a set of accelerator types that all take part (the slowest sets the pace); every subset of types
with one collective library is searched by itself, because libraries cannot join each other. An allocation (``Allocation``) is a
sequence of building shares. Those of n accelerators are made by

S1 sequence   all permutations of the pool's buildings up to MAX_PERMUTED of them; beyond, the order of the file, by
              size, and the nearest-neighbour chain from every building (by latency, then width, then size)
S2 granule    every building but the last one used holds a multiple of a granule: a product of the degrees of the
              fastest axes, rounded up to whole hosts; so groups inside the granule never straddle buildings
S3 policy     packed: each building takes as many granules as it holds, in sequence, until all are placed;
              proportional: granules in proportion to the buildings' sizes
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, permutations
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.collective_curves import slowest_of_fastest
from scaleacross.cost_models.levels import (
    CAMPUS,
    NUM_LEVELS,
    SCALE_UP,
    Levels,
    accelerator_types,
    build_levels,
    collective_libraries,
    host_unit,
)
from scaleacross.cost_models.links import Links
from scaleacross.solvers.search_space import divisors
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.parallelism import GRID_AXES, Degrees
from scaleacross.spec.placement import BuildingShare
from scaleacross.spec.topology import Building, Topology, attainable_trunk_bytes_per_s
from scaleacross.spec.trunk_paths import TrunkPaths

MAX_PERMUTED: Final = 4
Allocation = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class AcceleratorPool:
    """The buildings of a topology whose accelerator type is in the pool."""

    topology: Topology
    buildings: tuple[Building, ...]

    @cached_property
    def paths(self) -> TrunkPaths:
        """Paths over the whole topology: a path may pass a building that the job does not use."""
        return TrunkPaths(self.topology)

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """The types of the pool."""
        return accelerator_types(self.buildings)

    @property
    def num_accelerators(self) -> int:
        """Accelerators of the pool."""
        return sum(building.num_accelerators for building in self.buildings)

    @property
    def num_by_type(self) -> list[int]:
        """Accelerators of every type, in the order of ``accelerators``."""
        sizes = dict.fromkeys((accelerator.name for accelerator in self.accelerators), 0)
        for building in self.buildings:
            sizes[building.accelerator.name] += building.num_accelerators
        return list(sizes.values())

    @property
    def unit(self) -> int:
        """Number of accelerators that every building share is a multiple of: whole hosts."""
        return host_unit(self.buildings)

    @property
    def common_host(self) -> int:
        """Greatest common divisor of the accelerators per host."""
        return math.gcd(*(building.accelerators_per_host for building in self.buildings))

    def optimistic_links(self) -> Links:
        """Return per level the best figures that any allocation can see on that level or farther out, for lower bounds.

        All types of the pool take part and the slowest link of an allocation sets its pace. So inside buildings a
        level is as good as the best building of the type whose best is worst.
        """
        return self._best_links(tuple(self._levels_by_type.values()))

    def optimistic_links_on(self, accelerator: str) -> Links:
        """Return ``optimistic_links`` of groups that stages on one type wait for, with its links inside buildings."""
        return self._best_links((self._levels_by_type[accelerator],))

    @cached_property
    def _levels_by_type(self) -> dict[str, list[Levels]]:
        """Levels of every building by itself, by accelerator type."""
        of_type: dict[str, list[Levels]] = {}
        for b in self.buildings:
            of_type.setdefault(b.accelerator.name, []).append(
                build_levels(self.topology, [_share(b.name, b.num_accelerators)], self.paths)
            )
        return of_type

    def _best_links(self, alike: Sequence[Sequence[Levels]]) -> Links:
        """Return the worst, over the sets of alike buildings, of the best figures in each set.

        A group may avoid a level by crossing the next one, so no level counts as worse than one outside of it.
        """
        bandwidth = np.min([np.max([levels.bandwidth for levels in each], axis=0) for each in alike], axis=0)
        bandwidth[SCALE_UP] = min(
            max(min(levels.bandwidth[SCALE_UP], levels.capacity[SCALE_UP]) for levels in each) for each in alike
        )
        capacity = np.min([np.max([levels.capacity for levels in each], axis=0) for each in alike], axis=0)
        latency = np.max([np.min([levels.latency for levels in each], axis=0) for each in alike], axis=0)
        pairs = [
            build_levels(self.topology, [_share(a.name, 1), _share(b.name, 1)], self.paths)
            for a, b in combinations(self.buildings, 2)
        ]
        for level in range(CAMPUS, NUM_LEVELS):
            at = [p for p in pairs if np.isfinite(p.capacity[level])]
            capacity[level] = max((p.capacity[level] for p in at), default=0.0)
            latency[level] = min((p.latency[level] for p in at), default=np.inf)
            bandwidth[level] = bandwidth[level] if at else 0.0
        exists = capacity > 0  # the others are never crossed
        egress = np.where(exists & (np.arange(NUM_LEVELS) >= CAMPUS), self._widest_cut(), capacity)
        curves = slowest_of_fastest([[levels.curves for levels in each] for each in alike])
        return Links(
            np.where(exists, np.maximum.accumulate(bandwidth[::-1])[::-1], 1.0),
            np.where(exists, np.maximum.accumulate(capacity[::-1])[::-1], 1.0),
            np.where(exists, np.minimum.accumulate(latency[::-1])[::-1], 0.0),
            None if curves is None else curves[None],
            egress=np.where(exists, np.maximum.accumulate(egress[::-1])[::-1], 1.0),
            two_buildings=len(self.buildings) == 2,
        )

    def _widest_cut(self) -> float:
        """Return the most bytes/s that links carry between some buildings and all others, of at most ⌊b²/4⌋ links."""
        topology = self.topology
        widths = sorted((attainable_trunk_bytes_per_s(topology, trunk) for trunk in topology.trunks), reverse=True)
        return float(sum(widths[: len(topology.buildings) ** 2 // 4]))

    def largest_children(self) -> Floats:
        """Return the largest child of every level in accelerators, (NUM_LEVELS + 1,); callers set the last entry."""
        inside = [max(b.accelerators_per(level) for b in self.buildings) for level in ("scale_up", "rack", "zone")]
        regions: dict[str, int] = {}
        for building in self.buildings:
            region = self.topology.region_of(building.name)
            regions[region] = regions.get(region, 0) + building.num_accelerators
        whole = max(building.num_accelerators for building in self.buildings)
        return np.array([1, *inside, whole, max(regions.values()), self.num_accelerators], dtype=np.float64)

    def fullest_children(self, size: Ints) -> Floats:
        """Return the least accelerators of the fullest child of each level in any allocation, (n, NUM_LEVELS)."""
        capacities = [building.num_accelerators for building in self.buildings]
        forced = np.max([size - (sum(capacities) - capacity) for capacity in capacities], axis=0)
        building = np.maximum(-(-size // len(capacities)), forced)
        inside = [min(b.accelerators_per(level) for b in self.buildings) for level in ("scale_up", "rack", "zone")]
        columns = [np.ones_like(building), *(np.minimum(child, building) for child in inside), building, building]
        return np.stack(columns, axis=-1).astype(np.float64)

    def must_cross(self, degree: Ints, stride: Ints, size: Ints) -> Ints:
        """Return the least groups of an axis that cross one border of buildings, and one of regions, (..., 2).

        This holds for any allocation of ``size`` accelerators. With E = degree · stride a cut at offset o = c mod E
        divides min(stride, o, E − o) groups. Two buildings that are both needed have one cut c, between size − capacity
        of the second and capacity of the first. Of more buildings: if every cut were within δ of a multiple of E, a
        building of q·E + r would give q·E + 2δ at most (the first and the last of the allocation q·E + δ). It would
        give all it has only if r or E − r is within 2δ. So where Σ q·E falls short of ``size`` by D,
        δ ≥ min(D / 2(B − 1), (E − r) / 2). The same is true of regions, whose buildings may lie apart.
        """
        extent = degree * stride
        if len(self.buildings) == 2:
            least = np.repeat(self._of_two(extent, stride, size)[..., None], 2, axis=-1)
        else:
            regions: dict[str, list[int]] = {}
            for building in self.buildings:
                regions.setdefault(self._regions[building.name], []).append(building.num_accelerators)
            alone = [(building.num_accelerators, 1) for building in self.buildings]
            together = [(sum(held), len(held)) for held in regions.values()]
            least = np.stack([self._of_many(units, extent, stride, size) for units in (alone, together)], axis=-1)
        return np.where((degree > 1)[..., None], least, 0)

    def _of_two(self, extent: Ints, stride: Ints, size: Ints) -> Ints:
        capacities = [building.num_accelerators for building in self.buildings]
        least = np.where(size <= max(capacities), 0, stride)
        for first, second in (capacities, capacities[::-1]):
            low = np.maximum(size - second, 1)
            # a cut at a multiple of the extent divides no group
            spared = first // extent * extent >= low
            least = np.minimum(least, np.where(spared, 0, np.minimum(low % extent, extent - first % extent)))
        return least

    def _of_many(self, units: Sequence[tuple[int, int]], extent: Ints, stride: Ints, size: Ints) -> Ints:
        """Return the least groups that cross one border between units of (accelerators, buildings)."""
        if len(units) < 2:
            return np.zeros(np.broadcast(extent, size).shape, dtype=np.int64)
        short = size - sum(held // extent * extent for held, _ in units)
        off = short / (2 * (len(self.buildings) - 1))
        for held, buildings in units:
            rest = held % extent
            off = np.where(rest > 0, np.minimum(off, (extent - rest) / (2 * buildings)), off)
        return np.where(short > 0, np.minimum(stride, np.ceil(off).astype(np.int64)), 0)

    def border_ways(self, stride: Ints, size: Ints) -> Ints:
        """Return the most building pairs over which groups at a stride cross one border in any allocation, (n,).

        Where no building between two others holds less than the stride, all groups step from the building before the
        border to the one after it. Otherwise some may begin before the one or end after the other.
        """
        sizes, of_row = np.unique(size, return_inverse=True)
        share = np.array([self._least_share(int(one)) for one in sizes])[of_row]
        return np.where(stride <= share, 1, max(1, len(self.buildings) - 1))

    def _least_share(self, size: int) -> int:
        """Return the least share of a building that is neither first nor last in any allocation (S2, S3)."""
        if size not in self._least_shares:
            granules = np.unique(np.lcm(divisors(size), self.unit))
            held = np.array([building.num_accelerators for building in self.buildings])
            target = -(-size * held // held.sum())
            whole = np.minimum(-(-target // granules[:, None]), held // granules[:, None]) * granules[:, None]
            self._least_shares[size] = int(whole[whole > 0].min(initial=size))
        return self._least_shares[size]

    @cached_property
    def _least_shares(self) -> dict[int, int]:
        """Results of ``_least_share`` by size."""
        return {}

    def allocations_of(self, degrees: Degrees) -> list[Allocation]:
        """Return the allocations for some degrees; granules are the products of any of the degrees but all of them."""
        sizes = [degrees.of(axis) for axis in GRID_AXES if degrees.of(axis) > 1]
        granules = {math.prod(some) for count in range(max(1, len(sizes))) for some in combinations(sizes, count)}
        return self.allocations(degrees.world_size, sorted(granules))

    def allocations(self, size: int, granules: Sequence[int]) -> list[Allocation]:
        """Return the distinct allocations of ``size`` accelerators (S1–S3), in a deterministic order."""
        out: dict[Allocation, None] = {}
        seen: set[tuple[object, ...]] = set()
        for granule in sorted({math.lcm(granule, self.unit) for granule in granules}, reverse=True):
            for sequence in self._sequences:
                for allocation in _spread(size, granule, sequence):
                    signature = self.signature(allocation)
                    if signature not in seen and self.uses_all_types(allocation):
                        seen.add(signature)
                        out[allocation] = None
        return list(out)

    def uses_all_types(self, allocation: Allocation) -> bool:
        """Return whether an allocation has every type of the pool (other sets of types are pools of their own)."""
        used = {self.topology.building(name).accelerator.name for name, _ in allocation}
        return len(used) == len(self.accelerators)

    @cached_property
    def _sequences(self) -> tuple[tuple[Building, ...], ...]:
        """Sequences of buildings by S1 of the module docstring."""
        if len(self.buildings) <= MAX_PERMUTED:
            return tuple(permutations(self.buildings))
        by_size = tuple(sorted(self.buildings, key=lambda b: -b.num_accelerators))
        by_name = {building.name: building for building in self.buildings}
        chains = (tuple(by_name[name] for name in self.nearest_chain(start, by_name)) for start in by_name)
        return (self.buildings, by_size, *chains)

    def nearest_chain(self, start: str, among: Iterable[str]) -> Iterator[str]:
        """Yield the buildings from ``start``, each followed by the nearest one left: least latency, widest path, size."""

        def distance(name: str) -> tuple[float, float, int, str]:
            latency_s, bytes_per_s, *_ = self.hop(here, name)
            return latency_s, -bytes_per_s, -self.topology.building(name).num_accelerators, name

        here, left = start, {*among} - {start}
        yield here
        while left:
            here = min(left, key=distance)
            left.remove(here)
            yield here

    def signature(self, allocation: Allocation) -> tuple[object, ...]:
        """Return a key shared by allocations with equal step time and cost: equal shares of alike buildings and links.

        Of regions only their borders count, so they are numbered in the order in which the allocation meets them.
        """
        kinds: list[tuple[object, ...]] = []
        seen: dict[str, int] = {}
        for name, share in allocation:
            region = self._regions[name]
            kinds.append((seen.setdefault(region, len(seen)), self._figures[name], share))
        return (tuple(kinds), tuple(self._hops[pair] for pair in combinations((name for name, _ in allocation), 2)))

    @cached_property
    def _regions(self) -> dict[str, str]:
        """Region of every building, by name."""
        return {building.name: self.topology.region_of(building.name) for building in self.buildings}

    def hop(self, here: str, there: str) -> tuple[float, ...]:
        """Return the path between two buildings: latency in s, least width in bytes/s, price per byte."""
        return self._hops[here, there]

    @cached_property
    def _figures(self) -> dict[str, str]:
        """Figures of every building as JSON, by name; equal for buildings that differ in name and size alone."""
        own = {"name", "num_hosts", "num_zones", "provenance"}
        return {building.name: building.model_dump_json(exclude=own) for building in self.buildings}

    @cached_property
    def _hops(self) -> dict[tuple[str, str], tuple[float, ...]]:
        """Figures of ``hop`` for every ordered pair of buildings."""
        figures = (self.paths.latency_s, self.paths.bytes_per_s, self.paths.price_per_byte)
        pairs = permutations((building.name for building in self.buildings), 2)
        return {pair: tuple(of(*pair) for of in figures) for pair in pairs}


def pools(topology: Topology) -> list[AcceleratorPool]:
    """One pool per non-empty set of accelerator types with one collective library, largest sets first."""
    types = [accelerator.name for accelerator in accelerator_types(topology.buildings)]
    subsets = chain.from_iterable(combinations(types, count) for count in range(len(types), 0, -1))
    used = [tuple(b for b in topology.buildings if b.accelerator.name in subset) for subset in subsets]
    return [AcceleratorPool(topology, buildings) for buildings in used if len(collective_libraries(buildings)) == 1]


def most_accelerators(topology: Topology) -> int:
    """Return the accelerators of the largest pool."""
    return max(pool.num_accelerators for pool in pools(topology))


def shares(allocation: Allocation) -> tuple[BuildingShare, ...]:
    """Return an allocation as the building shares of the spec."""
    return tuple(_share(name, count) for name, count in allocation)


def allocation_of(placed: Sequence[BuildingShare]) -> Allocation:
    """The inverse of ``shares``."""
    return tuple((share.building, share.num_accelerators) for share in placed)


def _share(name: str, count: int) -> BuildingShare:
    return BuildingShare(building=name, num_accelerators=count)


def _spread(size: int, granule: int, sequence: Sequence[Building]) -> Iterator[Allocation]:
    capacities = [building.num_accelerators for building in sequence]
    packed = _take(size, granule, capacities, capacities)
    if packed is not None:
        yield _named(sequence, packed)
    total = sum(capacities)
    if size < total:
        targets = [-(-size * capacity // total) for capacity in capacities]
        proportional = _take(size, granule, capacities, targets)
        if proportional is not None:
            yield _named(sequence, proportional)


def _named(sequence: Sequence[Building], counts: Sequence[int]) -> Allocation:
    return tuple((building.name, count) for building, count in zip(sequence, counts, strict=True) if count)


def _take(size: int, granule: int, capacities: Sequence[int], targets: Sequence[int]) -> list[int] | None:
    """Return accelerators per building: granules up to the targets in sequence, the rest in the last building reached.

    None when they do not fit.
    """
    counts, left = [0] * len(capacities), size
    for index, (capacity, target) in enumerate(zip(capacities, targets, strict=True)):
        whole = min(-(-target // granule), capacity // granule) * granule
        # only the last building that is used may hold a part of a granule
        may_take = capacity if target == capacity or index == len(capacities) - 1 else whole
        counts[index] = left if left <= may_take else whole
        left -= counts[index]
    return counts if left == 0 else None
