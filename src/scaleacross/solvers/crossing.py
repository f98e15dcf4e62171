"""Two lower bounds for given degrees: what must cross buildings, and what memory lets a pipeline keep in flight.

A candidate of more accelerators than any building holds spans several. The slowest axis of its order has groups over
all global ranks, so it crosses buildings. Which axis that is depends on the placement, so each is tried and the least
is kept.

cut             free time + what the slowest axis adds, with infinitely fast links inside buildings: its exposed calls,
                and its traffic in the windows beyond the computation that overlaps with it
memory latency  Little's law on the first rank. It holds at most K chunk activations (``pipeline.max_in_flight``), chunk
                c of a micro-batch from its forward to its backward, hence for (v−c)/v of a trip through all layers and
                back or longer:
                    step ≥ m·(v+1)/(2K) · (T + 2·Σ latency) + optimizer
                T computation of one micro-batch on all ranks (of chunks: as short as the shortest),
                m micro-batches, v chunks. The latencies of all p·v − 1 hops count, those between buildings where pp is
                the slowest axis. Schedules that split the backward are left out.

An allocation of N accelerators joins a set of buildings that together hold N, one after another, so it crosses every
cut of that set. The best set counts, with the best width and latency that its narrowest (longest) cut offers: the
bottleneck of a spanning tree. All sets are looked at up to MAX_BUILDINGS. With more buildings, the best inter-building
link of all counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Final

import networkx as nx
import numpy as np

from scaleacross.cost_models.axes import waits_of
from scaleacross.cost_models.candidates import Candidates, Floats, Ints
from scaleacross.cost_models.early_gradients import early_gradients
from scaleacross.cost_models.least_passes import LeastPasses
from scaleacross.cost_models.least_waits import longest_s
from scaleacross.cost_models.levels import CAMPUS, REGION
from scaleacross.cost_models.links import Links
from scaleacross.cost_models.overlap import windows
from scaleacross.cost_models.pipeline.timed_bounds import WHOLE, among, max_in_flight
from scaleacross.solvers.arcs import exposed_in_windows_s
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.pools import AcceleratorPool
from scaleacross.spec.parallelism import GRID_AXES

MAX_BUILDINGS: Final = 10
"""Most buildings for which all sets of them are looked at."""


@dataclass(frozen=True)
class Crossing(Bounder):
    """Bounder in which only inter-building links take time.

    Attributes:
        held: accelerators of every set of buildings, ascending, (sets,).
        crossing: width (bytes/s) and latency (s), (sets, 2 levels, 2), the best of sets with as many accelerators or more.
    """

    held: Ints
    crossing: Floats

    @classmethod
    def of(cls, bounder: Bounder) -> Crossing:
        """Return the crossing part of the bounder of a pool of one type."""
        same = {f.name: getattr(bounder, f.name) for f in fields(Bounder)}
        held, crossing = _crossing_figures(bounder.pool, bounder.links)
        return cls(**same, held=held, crossing=crossing)

    @property
    def launch_s(self) -> float:
        """Zero, because a group that stays in one building may be free here."""
        return 0.0

    def bounds_s(self, bounded: Bounded) -> tuple[Floats, Floats]:
        """Return the cut bound and the memory-latency bound of candidates, s, (n,) each."""
        candidates, work = bounded.candidates, bounded.work
        volumes, over = self.volumes(candidates, work), windows(candidates, work)
        beyond = candidates.world_size > max(building.num_accelerators for building in self.pool.buildings)
        cut, law = np.where(beyond, np.inf, 0.0), np.where(beyond, np.inf, self._trips_s(bounded, crossing=False))
        for axis in GRID_AXES:
            degree = getattr(candidates, axis)
            rows = np.flatnonzero(beyond & (degree > 1))
            if not len(rows):
                continue
            some = volumes.take(rows)
            stride = some.candidates.world_size // degree[rows]
            here = tuple(window.take(rows) for window in over)
            calls = self._calls(axis, some, stride, coarse=False)
            traffic, unshared = self._carried_s(axis, some, stride)
            waits = waits_of(some, calls)
            waited = longest_s(waits.waited_s, waits.alone_s)
            early, shards, longest = early_gradients(some), LeastPasses.of(some), waited
            later, endless = here, np.full(len(rows), np.inf)  # a trip does not tell what precedes gradients
            if shards is not None:
                beyond_s, whole_s = shards.bounds_s(traffic)
                longest = longest_s(np.maximum(waits.waited_s + beyond_s, whole_s - shards.computed_s), waited)
                here, later = shards.overlapping(here, longest), shards.overlapping(here, endless)
            if early is not None:
                unshared = np.zeros((2, len(rows))) if unshared is None else unshared
                here, traffic = early.overlapping(here, longest, waits.early_s), early.alone(traffic, unshared)
                later = early.overlapping(later, endless, 0.0)
            added = longest + exposed_in_windows_s(traffic, here)
            trips = self._trips_s(bounded.take(rows), crossing=axis == "pp")
            if axis != "pp":
                trips = trips + waited + exposed_in_windows_s(traffic, later)
            cut[rows], law[rows] = np.minimum(cut[rows], added), np.minimum(law[rows], trips)
        return bounded.free_s + cut, law + work.optimizer_s

    def _trips_s(self, bounded: Bounded, crossing: bool) -> Floats:
        """Return the bound of Little's law, s, (n,); 0 where the backward is split."""
        candidates, work = bounded.candidates, bounded.work
        p, m, v = candidates.pp, candidates.num_micro_batches, candidates.num_chunks
        latency = self.links.latency
        near_s = latency[:CAMPUS].min()
        hops = (p * v - 1) * near_s
        if crossing:
            largest = max(building.num_accelerators for building in self.pool.buildings)
            # a pipeline over all global ranks crosses at least this many borders between buildings
            num_crossing = -(-candidates.world_size // largest) - 1
            crossing_s = self._crossing_of(candidates.world_size)[:, :, 1].min(axis=1)
            hops = hops + v * num_crossing * np.maximum(0.0, crossing_s - near_s)
        slots = max_in_flight(candidates.schedule_names, p, m, v, 0)
        whole = work.whole_share * (work.forward_s + work.backward_s)
        trip = np.where(v == 1, whole, p * (work.least_forward_s + work.least_backward_s)) + 2 * hops
        return np.where(among(candidates.schedule, WHOLE), m * (v + 1) / (2 * slots) * trip, 0.0)

    def _crossing_of(self, world: Ints) -> Floats:
        return self.crossing[np.minimum(np.searchsorted(self.held, world), len(self.held) - 1)]

    def _links_of(self, candidates: Candidates) -> Links:
        crossing = self._crossing_of(candidates.world_size)
        shape = (len(candidates), len(self.links.bandwidth))
        # links inside buildings take no time here, so only the levels from CAMPUS on get figures
        bandwidth, capacity = (np.full(shape, np.inf) for _ in range(2))
        latency = np.zeros(shape)
        bandwidth[:, CAMPUS:] = self.links.bandwidth[CAMPUS:]
        capacity[:, CAMPUS:], latency[:, CAMPUS:] = crossing[:, :, 0], crossing[:, :, 1]
        egress = np.where(
            np.isfinite(capacity), self.links.capacity if self.links.egress is None else self.links.egress, np.inf
        )
        return Links(bandwidth, capacity, latency, egress=egress, two_buildings=self.links.two_buildings)


def _crossing_figures(pool: AcceleratorPool, links: Links) -> tuple[Ints, Floats]:
    """Return ``held`` and ``crossing`` of ``Crossing``."""
    best = np.stack([links.capacity[CAMPUS:], links.latency[CAMPUS:]], axis=1)
    if not 2 <= len(pool.buildings) <= MAX_BUILDINGS:
        return np.array([pool.num_accelerators]), best[None]
    sets = sorted(_sets(pool, best), key=lambda one: one[0])
    held, crossing = np.array([size for size, _ in sets]), np.stack([figures for _, figures in sets])
    # a larger set may serve a smaller candidate, so each row takes the best of the rows after it
    crossing[:, :, 0] = np.maximum.accumulate(crossing[::-1, :, 0], axis=0)[::-1]
    crossing[:, :, 1] = np.minimum.accumulate(crossing[::-1, :, 1], axis=0)[::-1]
    return held, crossing


def _sets(pool: AcceleratorPool, best: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield accelerators and (level, width and latency) of every set of two buildings or more.

    Inside one region the set's cuts are crossed on campus level. Over several regions, buildings of one region need not
    be adjacent, so only the cuts between regions are known to be crossed.
    """
    region = {building.name: pool.topology.region_of(building.name) for building in pool.buildings}
    for count in range(2, len(pool.buildings) + 1):
        for some in combinations(pool.buildings, count):
            figures, names = best.copy(), [building.name for building in some]
            together = {region[name] for name in names}
            level = 0 if len(together) == 1 else REGION - CAMPUS
            units = {name: name if level == 0 else region[name] for name in names}
            width, latency = _bottleneck(pool, units)
            figures[level] = min(best[level, 0], width), max(best[level, 1], latency)
            if level == 0:
                figures[REGION - CAMPUS] = figures[0]
            else:  # a group may avoid the campus level by crossing regions
                figures[0] = max(best[0, 0], figures[level, 0]), min(best[0, 1], figures[level, 1])
            yield sum(building.num_accelerators for building in some), figures


def _bottleneck(pool: AcceleratorPool, units: dict[str, str]) -> tuple[float, float]:
    """Return width (bytes/s) and latency (s) of the worst link of the best tree that joins buildings or regions.

    ``units`` maps each building to itself or to its region.
    """
    widths, latencies = nx.Graph(), nx.Graph()
    for here, there in combinations(units, 2):
        ends = units[here], units[there]
        if ends[0] != ends[1]:
            latency_s, width, _ = pool.hop(here, there)
            widths.add_edge(*ends, weight=max(width, widths.edges[ends]["weight"] if widths.has_edge(*ends) else 0.0))
            known = latencies.edges[ends]["weight"] if latencies.has_edge(*ends) else np.inf
            latencies.add_edge(*ends, weight=min(latency_s, known))
    widest = nx.maximum_spanning_tree(widths).edges(data="weight")
    nearest = nx.minimum_spanning_tree(latencies).edges(data="weight")
    return min(w for *_, w in widest), max(w for *_, w in nearest)
