"""Atlas (Microsoft, arXiv 2411.14458): the pipeline walks through the data centers, replicas use the links in turn.

This is algorithm 1 as Sailor's authors re-implemented it for their comparison. Data centers (here: buildings) are
sorted by size, largest first. For every data-parallel degree D the stages are walked through them, stages_in_dc =
min(left, ⌊GPUs / (tp · D)⌋). The fastest walk is kept. Under temporal bandwidth sharing a replica has the whole link
while it sends. So a message of x bytes takes x / C, and D of them pass per micro-batch:

    T = P · t + (m − 1) · max(t, D · x / C) + Σ_hops 2 · (latency + x / C) + t_sync + t_update

with C the rate of the inter-building link or of the adapters of D · tp accelerators, whichever is less. All replicas of
a stage are in one building, so gradients never leave it. Our cost model divides a link evenly among those who send at
once. The throughput is equal, but the earlier start of some replicas under temporal sharing is not rewarded (for
nobody).

Degrees: tp, P, micro-batch, recompute and shard level are tried too (the paper takes them as given), ranked by the same
T.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

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
from scaleacross.solvers.pools import AcceleratorPool, Allocation, shares
from scaleacross.spec.placement import Placement
from scaleacross.spec.topology import Building
from scaleacross.workloads.problem import Problem


def decide(problem: Problem, clock: Clock) -> Outcome:
    """Return the walk with the least T."""
    return least_on_any_pool(problem, clock, _fastest, "no data center holds a stage with all its replicas")


def walk(buildings: Sequence[Building], num_stages: int, stage_size: int) -> Allocation | None:
    """Return the allocation of algorithm 1, largest building first; None when not all stages find room."""
    left, allocation = num_stages, []
    for building in sorted(buildings, key=lambda building: -building.num_accelerators):
        taken = min(left, building.num_accelerators // stage_size)
        if taken:
            allocation.append((building.name, taken * stage_size))
            left -= taken
    return None if left else tuple(allocation)


def _fastest(pool: AcceleratorPool, rows: Rows, clock: Clock) -> Found | None:
    s, rate = rows.candidates, network_bytes_per_s(pool)
    latency = max(building.links.building.one_way_latency_s for building in pool.buildings)
    fixed = without_hops_s(rows, latency, rate)
    between = {
        (a.name, b.name): distance(pool, a.name, b.name) for a in pool.buildings for b in pool.buildings if a != b
    }
    best: Found | None = None
    for row in np.argsort(fixed, kind="stable"):
        # rows are in ascending order of T without hops, so no later one can be faster
        if (best is not None and fixed[row] >= best[0][0]) or clock.over:
            break
        clock.count()
        stage_size = int(s.tp[row] * s.dp[row])
        allocation = walk(pool.buildings, int(s.pp[row]), stage_size)
        if allocation is None or (len(allocation) > 1 and any(share % pool.unit for _, share in allocation)):
            continue
        hops = [between[a, b] for (a, _), (b, _) in pairwise(allocation)]
        total = float(fixed[row]) + _hops_s(rows, int(row), hops, stage_size * rate)
        if best is None or total < best[0][0]:
            placement = Placement(axis_order=MEGATRON_ORDER, fill=shares(allocation))
            best = ((total,), s.decision(int(row)).model_copy(update={"placement": placement}))
    return best


def _hops_s(rows: Rows, row: int, hops: Sequence[Distance], adapters_bytes_per_s: float) -> float:
    """Return the seconds that the hops between data centers add to T."""
    if not hops:
        return 0.0
    s, message = rows.candidates, float(rows.message_bytes[row])
    sends = [message / min(hop.bytes_per_s, adapters_bytes_per_s) for hop in hops]
    stalls = max(0.0, int(s.dp[row]) * max(sends) - float(rows.stage_s[row]))
    there = sum(2 * (hop.latency_s + send) for hop, send in zip(hops, sends, strict=True))
    return there + (float(s.num_micro_batches[row]) - 1) * stalls
