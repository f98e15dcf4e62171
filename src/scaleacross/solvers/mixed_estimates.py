"""Estimate step times on mixed pools: all ranks as slow as the slowest type, less the time that moving work saves.

A bound on heterogeneous ranks knows neither that layers are whole nor which links the slow ranks have. With estimates
made of that bound the step of Qwen3-235B over 1,024 H200 and 576 GB200 took 3.6 times as long as estimated in the
median, with these 1.7 times (docs/results/history.md). An estimate need not be a bound. It takes

1. the step of the same candidate where every building is like that of the slowest type, network and all, with equal
   layers and batches;
2. of its computation, warm-up and cool-down the share that is left where fast stages take whole layers from slow ones,
   which keep one a chunk at least, or fast replicas take micro-batches from slow ones, whichever gains more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats, Ints
from scaleacross.cost_models.layer_seconds import StackedTimes, layer_pass_s
from scaleacross.cost_models.stages import block_counts
from scaleacross.solvers.pools import AcceleratorPool
from scaleacross.spec.job import Job
from scaleacross.spec.topology import Building
from scaleacross.targets import needs_equal_batches
from scaleacross.workloads.layer_profile import ModelProfile

MOST_GROWN: Final = 16
"""Times that stages of one type get a layer more than if layers were divisible: a choice. With too few the estimate is
low."""


def like_the_slowest(pool: AcceleratorPool, job: Job) -> AcceleratorPool:
    """Return the pool with every building replaced by one of the slowest type with about as many accelerators."""
    slow = min(pool.buildings, key=lambda one: one.accelerator.peak_flop_per_s.get(job.precision, 0.0))
    alike = {building.name: _like(slow, building) for building in pool.buildings}
    regions = tuple(
        region.model_copy(update={"buildings": tuple(alike.get(one.name, one) for one in region.buildings)})
        for region in pool.topology.regions
    )
    return replace(
        pool, topology=pool.topology.model_copy(update={"regions": regions}), buildings=tuple(alike.values())
    )


def _like(slow: Building, other: Building) -> Building:
    if other.accelerator == slow.accelerator:
        return other
    hosts = max(1, other.num_accelerators // slow.accelerators_per_host)
    return slow.model_copy(update={"name": other.name, "num_hosts": hosts, "num_zones": None, "host_names": ()})


def share_left(
    job: Job, profile: ModelProfile, pool: AcceleratorPool, candidates: Candidates, times: Sequence[StackedTimes]
) -> Floats:
    """Return the busiest rank's seconds over those with equal layers and batches on the slowest type, (n,), ≤ 1."""
    counts = np.array([*block_counts(profile), 1, 1])
    seconds = np.stack([counts @ layer_pass_s(each, candidates) for each in times]) / profile.num_layers
    order = np.argsort(seconds, axis=0)
    seconds = np.take_along_axis(seconds, order, axis=0)  # fastest type first, (types, n)
    available = np.array(pool.num_by_type)[order]
    ranks = candidates.tp * candidates.cp
    share = _by_layers(
        profile.num_layers, candidates, seconds, _upto(candidates.pp, available // (ranks * candidates.dp))
    )
    if not needs_equal_batches(job):
        replicas = _upto(candidates.dp, available // (ranks * candidates.pp))
        share = np.minimum(share, candidates.dp / seconds[-1] / (replicas / seconds).sum(axis=0))
    return share


def _upto(number: Ints, available: Ints) -> Ints:
    """Return how many of ``number`` (n,) each type takes, fastest first, (types, n); the slowest takes one or more."""
    # row i counts what types 0…i take together, so differences of rows are the parts
    most = np.minimum(np.cumsum(available, axis=0), np.maximum(0, number - 1))
    most[-1] = number
    return np.diff(np.maximum.accumulate(most, axis=0), axis=0, prepend=0)


def _by_layers(num_layers: int, candidates: Candidates, seconds: Floats, stages: Ints) -> Floats:
    """Return the share where stages of each type hold as many whole layers as keep the longest stage short, (n,)."""
    least, layers = candidates.num_chunks, np.maximum(num_layers, candidates.pp * candidates.num_chunks)
    there = stages > 0
    longest = layers / (stages / seconds).sum(axis=0)
    # start from divisible layers rounded down; the epsilon keeps whole numbers whole
    held = np.maximum(least, np.floor(longest / seconds + 1e-9))
    for _ in range(MOST_GROWN):
        short = (stages * held).sum(axis=0) < layers
        if not short.any():
            break
        # the type whose stages would be shortest with one layer more gets it
        following = np.where(there, (held + 1) * seconds, np.inf)
        grows = short & (np.arange(len(seconds))[:, None] == following.argmin(axis=0))
        held = held + grows
    equal = np.maximum(least, -(-layers // candidates.pp)) * seconds[-1]
    return np.minimum(1.0, (held * seconds * there).max(axis=0) / equal)
