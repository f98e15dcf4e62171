"""Effect of unequal histories on a step, with samples as they come, balanced in a building, or everywhere.

A history of L tokens takes time a·L + b·L² (``workloads.sequences``). A step waits for its busiest rank: the mean
rank's seconds times E[max]/mean, from drawn batches. Balanced samples travel: 8 bytes per row number, except for the
share that stays, in one all-to-all among the ranks that share them. Its time counts in full, though a prefetching
loader may overlap it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.embedding.exchange import slope
from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.samples.balance import balanced, busiest
from scaleacross.spec.placement import BuildingShare
from scaleacross.spec.recommendation import SampleRule, SampleSharing
from scaleacross.spec.topology import Topology
from scaleacross.workloads.recommendation import ID_BYTES, Dlrm
from scaleacross.workloads.sequences import Lengths

_DRAWN: Final = 60_000
"""Approximate number of samples drawn in all, which determines the share of idle time to a few percent of itself."""
_MOST_DRAWS: Final = 12


def drawn(lengths: Lengths, generator: np.random.Generator, count: int) -> Floats:
    """Lengths of ``count`` samples of one batch."""
    top = lengths.longest or 0
    if lengths.kind == "measured":
        return generator.choice(np.asarray(lengths.values), count)
    if lengths.kind == "lognormal":
        return np.minimum(generator.lognormal(lengths.mean_log or 0.0, lengths.deviation_log or 1.0, count), top)
    if lengths.kind == "constant":
        return np.full(count, float(top))
    values = np.arange(1.0, top + 1)
    if lengths.kind == "uniform":
        return generator.choice(values, count)
    weights = values ** -(lengths.exponent or 1.0)
    return generator.permutation(values)[generator.choice(top, count, p=weights / weights.sum())]


@lru_cache(maxsize=64)
def busiest_over_mean(
    lengths: Lengths, costs: tuple[float, float], ranks: tuple[int, ...], batch: int
) -> tuple[float, ...]:
    """E[max over ranks] / mean of as_they_come, in_building and everywhere.

    Args:
        costs: (a, b) of a·L + b·L².
        ranks: number of ranks of every building.
        batch: samples per rank.
    """
    whole = sum(ranks)
    draws = int(np.clip(_DRAWN // (whole * batch), 2, _MOST_DRAWS))
    # a fixed seed makes estimates repeatable
    generator, found = np.random.default_rng(0), []
    for _ in range(draws):
        own = drawn(lengths, generator, whole * batch)
        cost = costs[0] * own + costs[1] * own**2
        parts = np.split(cost, np.cumsum(ranks)[:-1] * batch)
        near = max(busiest(part, balanced(part, number), number) for part, number in zip(parts, ranks, strict=True))
        far = busiest(cost, balanced(cost, whole), whole) if len(ranks) > 1 else near
        found.append([float(cost.reshape(whole, batch).sum(axis=1).max()), near, far, float(cost.sum()) / whole])
    most = np.mean(found, axis=0)
    return tuple((most[:3] / most[3]).tolist())


def sample_sharings(
    model: Dlrm,
    topology: Topology,
    allocation: Sequence[BuildingShare],
    batch: int,
    rules: Sequence[SampleRule],
    flop_per_s: float,
) -> tuple[SampleSharing, ...]:
    """Every allowed rule with its times, fastest first; empty where histories are no part of the model.

    Args:
        batch: samples per rank.
        flop_per_s: of products, of one rank.
    """
    layers = model.sequence
    if layers is None or layers.lengths is None:
        return ()
    ranks, (linear, quadratic) = tuple(share.num_accelerators for share in allocation), layers.flop()
    lengths = layers.lengths
    mean_s = 3 * batch * (linear * lengths.moment(1) + quadratic * lengths.moment(2)) / flop_per_s
    factors = busiest_over_mean(lengths, (linear, quadratic), ranks, batch)
    sent = ID_BYTES * batch * model.reads_per_sample
    slopes = 0.0, max(_slope(topology, (share,)) for share in allocation), _slope(topology, allocation)
    every: tuple[SampleRule, ...] = ("as_they_come", "in_building", "everywhere")
    out = []
    for rule, factor, each, size in zip(every, factors, slopes, (1, min(ranks), sum(ranks)), strict=True):
        if rule in rules and (rule != "everywhere" or len(ranks) > 1):
            moved = sent * (1 - 1 / size)
            out.append(
                SampleSharing(
                    rule=rule,
                    busiest_over_mean=factor,
                    idle_fraction=1 - 1 / factor,
                    moved_bytes=moved,
                    exchange_s=each * sent,
                    seconds=mean_s * factor + each * sent,
                )
            )
    return tuple(sorted(out, key=lambda one: one.seconds))


def _slope(topology: Topology, allocation: Sequence[BuildingShare]) -> float:
    """Seconds per byte of an all-to-all over all ranks of ``allocation``."""
    levels = build_levels(topology, tuple(allocation))
    if levels.num_ranks < 2:
        return 0.0
    return slope(Group(exact_shape(levels.num_ranks, 1, levels), links_of(levels), 0.0).all_to_all)
