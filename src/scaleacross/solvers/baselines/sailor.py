"""Sailor (SOSP'25, arXiv 2504.17096): data parallel inside a region, pipeline across regions, by dynamic programming.

Rules of the paper: H1 tp inside a host; H2 the smallest tp that fits; H3, H4 all data-parallel degrees are tried; H5 dp
inside a region, pp across; H6 the zones (here: buildings) of a region are one pool; schedule 1F1B. Time of a plan, as
in its simulator (sync is a ring):

    T = Σ t_s + Σ c_s + (m − 1) · max_s(t_s + c_s) + t_update + t_sync,   c = 2 · (latency + bytes / bandwidth) to the next stage

Its recursion gives stages to regions, T[l₀][P][R] = min_r T_total(…). Stages are equal here (a plan splits layers
evenly). So the recursion decides in which order regions are visited, each taking as many stages as it holds. The state
is (regions visited, last one). A pool of several accelerator types counts as its slowest type, and money is left out.

The paper has neither recomputation nor sharding and leaves experts open. Without them large models do not fit at all,
so recomputation and ZeRO-1 are allowed, ranked by the same T. Of plans with equal T the one with fewer accelerators is
taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from scaleacross.solvers.baselines.outcome import Clock, Outcome
from scaleacross.solvers.baselines.own_model import (
    Distance,
    Found,
    Rows,
    distance,
    least_on_any_pool,
    network_bytes_per_s,
    without_hops_s,
)
from scaleacross.solvers.baselines.rules import MEGATRON_ORDER
from scaleacross.solvers.pools import AcceleratorPool, Allocation, allocation_of, shares
from scaleacross.spec.placement import Placement, first_accelerators
from scaleacross.spec.topology import Building
from scaleacross.workloads.problem import Problem


@dataclass(frozen=True)
class Walk:
    """Regions in the order of the pipeline with the stages of each, and sum and maximum of the hops between them, s."""

    stages: tuple[tuple[int, int], ...]
    sum_s: float
    max_s: float


def decide(problem: Problem, clock: Clock) -> Outcome:
    """Return the plan with the least T."""
    return least_on_any_pool(problem, clock, _fastest, "no region holds a stage with all its replicas")


def _fastest(pool: AcceleratorPool, rows: Rows, clock: Clock) -> Found | None:
    regions = by_region(pool)
    rate = network_bytes_per_s(pool)
    latency = max(building.links.building.one_way_latency_s for building in pool.buildings)
    between = {pair: _between(pool, *pair) for pair in ((a, b) for a in regions for b in regions if a != b)}
    fixed = without_hops_s(rows, latency, rate)
    best: Found | None = None
    left = smallest_tp(rows)
    for row in left[np.argsort(fixed[left], kind="stable")]:
        # rows are in ascending order of T without hops; equal T may still mean fewer accelerators
        if (best is not None and fixed[row] > best[0][0]) or clock.over:
            break
        clock.count()
        at = rows.candidates.take(np.array([row]))
        tp, pp, size = int(at.tp[0]), int(at.pp[0]), int(at.tp[0] * at.dp[0])
        message = float(rows.message_bytes[row]) / tp
        hops = {pair: 2 * (d.latency_s + message / min(rate, d.bytes_per_s)) for pair, d in between.items()}
        capacities = {name: sum(b.num_accelerators for b in members) // size for name, members in regions.items()}
        walk = visit(pp, capacities, hops)
        allocation = None if walk is None else _allocation(regions, walk, size, pool.unit)
        if walk is None or allocation is None:
            continue
        near = 2 * (latency + message / rate) if pp > len(walk.stages) else 0.0
        hop = max(near, walk.max_s)
        inside = near * (pp - len(walk.stages))
        total = fixed[row] + inside + walk.sum_s + (float(at.num_micro_batches[0]) - 1) * hop
        key = (float(total), int(at.world_size[0]))
        if best is None or key < best[0]:
            placement = Placement(axis_order=MEGATRON_ORDER, fill=shares(allocation))
            best = (key, at.decision(0).model_copy(update={"placement": placement}))
    return best


def smallest_tp(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the rows that remain by H2: of rows that differ in tp alone, the one with the smallest tp."""
    s = rows.candidates
    # tp is the last key, so the first row of each run of equal other keys has the smallest tp
    key = np.stack([s.pp, s.dp_shard, s.dp_replicate, s.micro_batch, s.recompute, s.shard, s.schedule, s.tp], axis=1)
    order = np.lexsort(key.T[::-1])
    first = np.ones(len(order), dtype=bool)
    first[1:] = (np.diff(key[order][:, :-1], axis=0) != 0).any(axis=1)
    return order[first]


def by_region(pool: AcceleratorPool) -> dict[str, list[Building]]:
    """Return the buildings of every region (H6)."""
    out: dict[str, list[Building]] = {}
    for building in pool.buildings:
        out.setdefault(pool.topology.region_of(building.name), []).append(building)
    return out


def visit(num_stages: int, capacities: Mapping[str, int], hops: Mapping[tuple[str, str], float]) -> Walk | None:
    """Return the sequence of regions that holds all stages with the least hops, by recursion over (visited, last one).

    A region that is visited takes as many stages as it holds: leaving room there never saves a hop.
    """
    names = list(capacities)

    @cache
    def rest(left: int, visited: frozenset[str], last: str) -> Walk | None:
        if left <= 0:
            return Walk((), 0.0, 0.0)
        best: Walk | None = None
        for name in names:
            if name in visited or not capacities[name]:
                continue
            taken = min(left, capacities[name])
            behind = rest(left - taken, visited | {name}, name)
            if behind is None:
                continue
            hop = hops[last, name] if last else 0.0
            stages = ((names.index(name), taken), *behind.stages)
            walk = Walk(stages, hop + behind.sum_s, max(hop, behind.max_s))
            if best is None or (walk.max_s, walk.sum_s) < (best.max_s, best.sum_s):
                best = walk
        return best

    return rest(num_stages, frozenset(), "")


def _between(pool: AcceleratorPool, here: str, there: str) -> Distance:
    """Return the path of least latency between two regions, the widest of equals."""
    regions = by_region(pool)
    pairs = [(a.name, b.name) for a in regions[here] for b in regions[there]]
    return min((distance(pool, *pair) for pair in pairs), key=lambda d: (d.latency_s, -d.bytes_per_s))


def _allocation(regions: Mapping[str, list[Building]], walk: Walk, stage_size: int, unit: int) -> Allocation | None:
    """Return the building shares of a walk; None when a host would be cut in two."""
    allocation: list[tuple[str, int]] = []
    names = list(regions)
    for index, num_stages in walk.stages:
        number = num_stages * stage_size
        if number % unit and len(walk.stages) > 1:
            return None
        allocation += allocation_of(first_accelerators(regions[names[index]], number))
    return tuple(allocation) if len(allocation) == 1 or all(share % unit == 0 for _, share in allocation) else None
