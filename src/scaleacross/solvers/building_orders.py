"""Propose other orders of the buildings of a found decision whose pipelines run through three or more of them.

An estimate knows how many messages cross and what a link carries in the mean. It does not know which link the messages
of which stage pass one after another. A simulation does, so it decides among the few orders that this file proposes.

Sets          O  permutations of the buildings of an allocation that keep the accelerator type of every place, each
              building with its share (up to MAX_ORDERED buildings; beyond, the nearest-neighbour chains)
Parameters    load(o)     seconds per byte of the busiest inter-building link, if every two neighbours of every pipeline
                          (its last and first rank too, where chunks run in a loop) exchange one byte, on the paths of
                          ``TrunkPaths``
              latency(o)  sum of one-way latencies between all these neighbours, s
Chosen        the o of least load (of these the least latency) and of least latency (of these the least load), as far as
              they are below the present order, each with its reversal; one of several with equal ``AcceleratorPool.signature``

Where pp is the slowest axis, latency alone makes it a shortest Hamiltonian path, and load alone the bottleneck form of
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations
from typing import Final

import numpy as np

from scaleacross.cost_models.failures import replicas_lost
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.solvers.pools import AcceleratorPool, Allocation, allocation_of, shares
from scaleacross.spec.placement import strides
from scaleacross.spec.plan import Decision
from scaleacross.spec.topology import attainable_trunk_bytes_per_s
from scaleacross.workloads.problem import Problem

MAX_ORDERED: Final = 6
"""Most buildings whose orders are all looked at: at most 720, some milliseconds each on the largest pools."""
LEAST_BUILDINGS: Final = 3
"""With two buildings, both orders load the only path alike."""
NEARER: Final = 1 - 1e-9
"""Ratio below which an order is better than the present one by more than rounding."""

Figures = tuple[float, float]
"""Load and latency of an order."""
Crossing = dict[tuple[int, int], int]
"""Number of pipeline neighbours in every pair of places of an allocation."""


def other_orders(problem: Problem, decision: Decision) -> list[Decision]:
    """Return up to four decisions with the buildings in orders that promise a shorter simulated step.

    They have no network and no spans. The list is empty where less than three buildings are used, or replicas have
    shares of the batch by building.

    Raises:
        ValueError: the decision has no placement.
    """
    placement = decision.placed
    topology, limit, present = problem.topology, problem.job.failure_domains, allocation_of(placement.fill)
    if decision.degrees.pp == 1 or len(present) < LEAST_BUILDINGS or decision.batch_shares is not None:
        return []
    pool, out = AcceleratorPool(topology, tuple(topology.building(name) for name, _ in present)), []
    for allocation in _promising(pool, present, partial(_figures, pool, decision)):
        other = placement.model_copy(update={"fill": shares(allocation), "spans": {}})
        apart = limit is None or (
            replicas_lost(topology, other.fill, decision.degrees, other.axis_order, limit.level)
            <= limit.max_replicas_lost
        )
        if apart:
            out.append(decision.model_copy(update={"placement": other, "network": None}))
    return out


def _promising(
    pool: AcceleratorPool, present: Allocation, figures: Callable[[Allocation], Figures]
) -> Iterator[Allocation]:
    """Yield the chosen orders, each once, without the present one."""
    of = {allocation: figures(allocation) for allocation in _orders(pool, present)}
    seen = {pool.signature(present)}
    for first, second in ((0, 1), (1, 0)):
        best = min(of, key=lambda allocation: (of[allocation][first], of[allocation][second]))
        if of[best][first] >= of[present][first] * NEARER:
            continue
        for allocation in (best, best[::-1]):
            if allocation in of and pool.signature(allocation) not in seen:
                seen.add(pool.signature(allocation))
                yield allocation


def _orders(pool: AcceleratorPool, present: Allocation) -> list[Allocation]:
    """Return O with the present order first, in a deterministic order."""
    types = [_type(pool, name) for name, _ in present]
    if len(present) <= MAX_ORDERED:
        every: Sequence[Allocation] = list(permutations(present))
    else:
        share = dict(present)
        chains = [tuple((name, share[name]) for name in pool.nearest_chain(start, share)) for start in share]
        every = [present, *chains, *(chain[::-1] for chain in chains)]
    return [allocation for allocation in every if [_type(pool, name) for name, _ in allocation] == types]


def _figures(pool: AcceleratorPool, decision: Decision, allocation: Allocation) -> Figures:
    """Return load and latency of an order."""
    busy_s, latency_s = dict.fromkeys((trunk.between for trunk in pool.topology.trunks), 0.0), 0.0
    for (here, there), count in _crossing(decision, [number for _, number in allocation]).items():
        ends = allocation[here][0], allocation[there][0]
        latency_s += count * pool.paths.latency_s(*ends)
        for trunk in pool.paths.between(*ends).trunks:
            busy_s[trunk.between] += count / attainable_trunk_bytes_per_s(pool.topology, trunk)
    return max(busy_s.values(), default=0.0), latency_s


def _crossing(decision: Decision, sizes: Sequence[int]) -> Crossing:
    """Return the pairs of places between which pipelines cross, with how many neighbours do.

    Places are shares of ``sizes`` in sequence. Ranks within the stride of pp and between two cuts lie alike, so one is
    counted for all.
    """
    placement, pipeline, pp = decision.placement, decision.pipeline, decision.degrees.pp
    if placement is None:
        return {}
    stride = strides(decision.degrees, placement.axis_order)["pp"]
    unit = math.gcd(stride, *sizes)
    place = np.repeat(np.arange(len(sizes)), [size // unit for size in sizes]).reshape(-1, pp, stride // unit)
    pairs = [(place[:, :-1], place[:, 1:])]
    if pipeline.num_chunks > 1 and SCHEDULES[pipeline.schedule].placement == "loop":
        pairs.append((place[:, -1:], place[:, :1]))
    out: Crossing = {}
    for here, there in pairs:
        ends, counts = np.unique(np.stack([here.ravel(), there.ravel()]), axis=1, return_counts=True)
        for (one, other), count in zip(ends.T.tolist(), counts.tolist(), strict=True):
            if one != other:
                out[one, other] = out.get((one, other), 0) + count * unit
    return out


def _type(pool: AcceleratorPool, building: str) -> str:
    return pool.topology.building(building).accelerator.name
