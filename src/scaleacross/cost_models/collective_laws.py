"""Seconds per byte and fixed seconds of every algorithm over the crossed levels, for arrays of group shapes.

Symbols as in ``collectives``: S bytes, level l with fanout f_l, W_l what a group has for leaving a child, R_l what a ring
of it has (``links.ring_bandwidth``), α_l latency. Beyond the scale-up domain all levels share one network adapter of b_l bytes/s
per accelerator, m_l of them in a child.

* ring           (d−1)/d · S / min_l R_l + all its hops' latencies but the least (``_around_s``)
* tree           2 · S / min_l R_l + 2 · Σ_l ⌈log2 f_l⌉ · α_l
* hierarchical   A = Σ steps_l · α_l        steps f_l − 1 of a ring, log2 f_l of halving and doubling (powers of two)
                 B = Σ (f_l−1)/f_l / W_l    one level after the other
                 M = the busiest resource: the scale-up domain's links, each level's uplink or trunk with all that passes it on
                     its way farther out, or the adapter, Σ_{l > scale-up} (f_l−1)/f_l / (m_l·b_l)

                 in k chunks: A + S·B/k + (k−1)·S·M/k, since chunks follow one another and different resources work at the
                 same time, B ≥ M. With a phase of its own inside the domain, of i(S) seconds:

                     A + S·B/k + i(S/k) + (k−1)·max(S·M/k, i(S/k))

An all-reduce passes every level twice; both passes share its links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.collective_curves import curve_s
from scaleacross.cost_models.groups import GroupShape, RelaxedShape
from scaleacross.cost_models.levels import NUM_LEVELS, RACK
from scaleacross.cost_models.links import Links, group_bandwidth, ring_bandwidth, uplinks_on_the_way
from scaleacross.cost_models.settings import Bools, Floats, Ints
from scaleacross.spec.network import LINK_LEVELS, CurveOp
from scaleacross.spec.network_choice import LevelStep

ALL_LEVELS: Final = np.ones(NUM_LEVELS, dtype=bool)
OUTER_LEVELS: Final = np.arange(NUM_LEVELS) >= RACK

CHUNKS: Final = (1, 2, 4, 8, 16, 32)
MIN_CHUNK_BYTES: Final = 64 * 1024
"""Assumed: below this a chunk is dominated by per-message cost, so smaller messages are not cut."""

Inner = Callable[[Floats], Floats]
"""Seconds of the phases inside a scale-up domain for a chunk of so many bytes, both of an all-reduce."""


class Laws(NamedTuple):
    """Ring, hierarchical and (all-reduce by a) tree, each (...): seconds per byte and fixed seconds of one pass.

    ``hierarchical_s_per_byte``, ``busiest_s_per_byte`` and ``hierarchical_s`` are B, M and A of the module docstring.
    """

    ring_s_per_byte: Floats
    ring_s: Floats
    hierarchical_s_per_byte: Floats
    busiest_s_per_byte: Floats
    hierarchical_s: Floats
    tree_s_per_byte: Floats
    tree_s: Floats


def laws(shape: GroupShape, links: Links, counted: Bools, steps: Floats | None = None) -> Laws:
    """The formulas of the module docstring; only ``counted`` levels limit bandwidth or are phases.

    Args:
        steps: messages one after another on each level; None: as few as any algorithm needs (``fewest_steps``).
    """
    if isinstance(shape, RelaxedShape):
        return _bounds(shape, links, counted)
    bandwidth = np.where(counted, group_bandwidth(shape, links), np.inf)
    thinnest = np.where(counted, ring_bandwidth(shape, links), np.inf).min(axis=-1)
    moved = (shape.fanout - 1) / shape.fanout
    port = links.bandwidth if links.adapter is None else links.adapter
    adapter = np.where(counted & OUTER_LEVELS, moved / (shape.members * port), 0.0).sum(axis=-1)
    uplinks = moved * shape.crossing / links.capacity
    inner = uplinks_on_the_way(shape, links)
    if inner is not None:
        uplinks = uplinks + ((moved / shape.members)[..., None] / inner).sum(axis=-2)
    busiest = np.where(counted, np.maximum(moved / bandwidth, uplinks), 0.0).max(axis=-1)
    steps = fewest_steps(shape.fanout) if steps is None else steps
    return Laws(
        (shape.degree - 1) / shape.degree / thinnest,
        _around_s(shape, links),
        (moved / bandwidth).sum(axis=-1),
        np.maximum(busiest, adapter),
        (counted * steps * links.latency).sum(axis=-1),
        2 / thinnest,
        2 * (np.ceil(np.log2(shape.fanout)) * links.latency).sum(axis=-1),
    )


def _around_s(shape: GroupShape, links: Links) -> Floats:
    """Latencies of a ring: a block passes all hops but the one into its source, the way back from the last rank among them.

    The longest such way leaves out a hop of least latency. Of a relaxed shape it is a lower bound on monotone links: the ring
    closes over the outermost level that the group crosses.
    """
    hops, crossed = shape.pairs > 0, shape.fanout > 1
    nearest = np.where(hops, links.latency, np.inf).min(axis=-1)
    farthest = np.where(crossed, links.latency, 0.0).max(axis=-1)
    around: Floats = (shape.pairs * links.latency).sum(axis=-1) + np.maximum(0.0, farthest - nearest)
    return around


def fewest_steps(fanout: Floats) -> Floats:
    """log2 f where halving and doubling can run (powers of two), else the f − 1 of a ring."""
    doublings = np.log2(fanout)
    return np.where(doublings == np.floor(doublings), doublings, fanout - 1)


def steps_of(steps: Sequence[LevelStep], fanout: Floats) -> Floats:
    """Messages one after another on each level: as ``steps`` say, a ring's elsewhere."""
    out = np.array(fanout, dtype=np.float64) - 1
    for step in steps:
        if step.algorithm == "halving_doubling":
            level = LINK_LEVELS.index(step.level)
            out[..., level] = np.ceil(np.log2(fanout[..., level]))
    return out


def inner_of(op: CurveOp, num_ranks: Floats, curves: Floats, curve: Ints | int) -> Inner:
    """Phases inside a domain by their measured curves: both of an all-reduce, its own curve where they are unknown."""

    def seconds(of: CurveOp, size: Floats) -> Floats:
        return curve_s(curves, curve, of, num_ranks, size)

    def inner(size: Floats) -> Floats:
        if op != "all_reduce":
            return seconds(op, size)
        both = seconds("reduce_scatter", size) + seconds("all_gather", size)
        return np.where(np.isnan(both), seconds("all_reduce", size), both)

    return inner


def layered_s(size: Floats, chunks: Floats | int, law: Laws, passes: int, inner: Inner | None = None) -> Floats:
    """Seconds of a hierarchical collective in k chunks; ``inner`` as in the module docstring."""
    piece = size / chunks
    each, busiest = passes * law.hierarchical_s_per_byte * piece, passes * law.busiest_s_per_byte * piece
    inside = inner(piece) if inner else np.zeros(())
    seconds: Floats = passes * law.hierarchical_s + each + inside + (chunks - 1) * np.maximum(busiest, inside)
    return seconds


def best_layered_s(size: Floats, law: Laws, passes: int, inner: Inner | None = None) -> Floats:
    """The least of ``layered_s`` over CHUNKS with pieces of MIN_CHUNK_BYTES or more."""
    if inner is None:  # M ≤ B: the more chunks, the better
        most = np.clip(np.floor(np.log2(np.maximum(size, 1.0) / MIN_CHUNK_BYTES)), 0.0, np.log2(CHUNKS[-1]))
        return layered_s(size, np.exp2(most), law, passes)
    best = layered_s(size, 1, law, passes, inner)
    for chunks in CHUNKS[1:]:
        if not (size / chunks >= MIN_CHUNK_BYTES).any():
            break
        cut = layered_s(size, chunks, law, passes, inner)
        best = np.where(size / chunks >= MIN_CHUNK_BYTES, np.minimum(best, cut), best)
    return best


def _bounds(shape: RelaxedShape, links: Links, counted: Bools) -> Laws:
    """Lower bounds of ``laws`` over all exact shapes that a relaxed one stands for, on monotone links.

    With n_l children touched by some group, fanouts f_l ≥ n_l/n_{l+1} and members ≤ d/n_l, so

        Σ (f_l−1)/f_l / (members_l · bandwidth_l) ≥ Σ (n_l−n_{l+1}) / (d · bandwidth_l),

    least for the least n_l where bandwidth falls outwards, over all levels (for B) and over those that share the adapter (for
    M; either the scale-up domain or the adapter has half of B, the one level of a known shape all of it); f−1 and ⌈log2 f⌉ are
    at least log2 f, so latencies are at least Σ log2(n_l/n_{l+1}) · α_l, least likewise; and half of the tensor or more leaves
    a child through one uplink.
    """
    thinnest = np.where(counted, ring_bandwidth(shape, links), np.inf).min(axis=-1)
    degree, crossed = shape.degree, (shape.fanout > 1) & counted
    doublings = np.log2(shape.fanout)
    steps = (counted * fewest_steps(shape.fanout) * links.latency).sum(axis=-1)
    hops = (np.ceil(doublings) * links.latency).sum(axis=-1)
    uplink = np.where(crossed, shape.crossing / links.capacity, 0.0).max(axis=-1) / 2
    each = counted * shape.pairs / links.bandwidth
    adapter, together = each[..., RACK:].sum(axis=-1) / degree, each.sum(axis=-1) / degree
    log_latency = (counted * doublings * links.latency).sum(axis=-1)
    return Laws(
        (degree - 1) / degree / thinnest,
        _around_s(shape, links),
        np.maximum(together, uplink),
        np.maximum(np.where(shape.known, together, np.maximum(adapter, together / 2)), uplink),
        np.where(shape.known, steps, log_latency),
        2 / thinnest,
        2 * np.where(shape.known, hops, (doublings * links.latency).sum(axis=-1)),
    )
