"""Alpha-beta time of one collective over the link levels, for any array of group shapes.

Symbols: d ranks in the group, S bytes of the full tensor, level l with f_l children per parent (``fanout``), α_l
latency, W_l bandwidth that one group has for leaving a child:

    W_l = min(members_l · bandwidth_l, capacity_l / crossing_l)

Members count because every rank of a child drives its own NIC; crossing groups share the child's uplink when all of
them send at once.

Algorithms (all-gather; reduce-scatter mirrors it, all-reduce is one of each):

* ring          (d−1)/d · S / min_l W_l + Σ_l (ranks that step over level l) · α_l. One ring through all ranks in
                position order, split over the NICs of a child; every level carries the whole stream, so the thinnest
                one sets the pace.
* hierarchical  Σ_l (f_l−1)/f_l · S / W_l + Σ_l (f_l−1) · α_l. Outermost level first with shards, then inwards; it meets
                the cut bound (K−1)/K · S per building at K buildings and pays few long latencies.
* tree          all-reduce only: 2 · S / min_l W_l + 2 · Σ_l ⌈log2 f_l⌉ · α_l (double binary tree, pipelined).

Sources: ring and tree volumes as in the NCCL tests' performance notes (bus bandwidth factors (d−1)/d and 2(d−1)/d);
hierarchical decomposition as in Cho et al., BlueConnect (2019). Regime: messages large enough for full bandwidth; the
fixed start-up cost of a collective is ``launch_s``. Sharing with *other* axes' traffic is not modelled here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.groups import GroupShape, RelaxedShape
from scaleacross.cost_models.levels import CAMPUS, Levels
from scaleacross.cost_models.settings import Floats, Ints

ALGORITHM_NAMES = ("none", "ring", "hierarchical", "tree", "pairwise", "point_to_point")
NONE, RING, HIERARCHICAL, TREE, PAIRWISE, POINT_TO_POINT = range(len(ALGORITHM_NAMES))


class Links(NamedTuple):
    """Level figures as arrays (..., NUM_LEVELS); ``Levels`` has them for one fill, the search for many."""

    bandwidth: Floats
    capacity: Floats
    latency: Floats


def links_of(levels: Levels) -> Links:
    """The link figures of one fill."""
    return Links(levels.bandwidth, levels.capacity, levels.latency)


class Timed(NamedTuple):
    """Seconds and index into ALGORITHM_NAMES."""

    time_s: Floats
    algorithm: Ints


def group_bandwidth(shape: GroupShape, links: Links) -> Floats:
    """W_l in bytes/s, inf where level l is not crossed, shape (..., NUM_LEVELS)."""
    shared = np.minimum(shape.members * links.bandwidth, links.capacity / shape.crossing)
    return np.where(shape.fanout > 1, shared, np.inf)


def gather(size_bytes: Floats, shape: GroupShape, links: Links, launch_s: float) -> Timed:
    """All-gather (or reduce-scatter) of a full tensor of ``size_bytes``; zero for a group of one."""
    ring, hierarchical, _ = _candidates(size_bytes, shape, links)
    return _best(shape, launch_s, [(RING, ring), (HIERARCHICAL, hierarchical)])


def all_reduce(size_bytes: Floats, shape: GroupShape, links: Links, launch_s: float) -> Timed:
    """All-reduce of ``size_bytes``; zero for a group of one."""
    ring, hierarchical, tree = _candidates(size_bytes, shape, links)
    return _best(shape, launch_s, [(RING, 2 * ring), (HIERARCHICAL, 2 * hierarchical), (TREE, tree)])


def _candidates(size_bytes: Floats, shape: GroupShape, links: Links) -> tuple[Floats, Floats, Floats]:
    """Seconds of ring, hierarchical and (all-reduce by a) tree."""
    size = np.asarray(size_bytes)
    if isinstance(shape, RelaxedShape):
        return _bounds(size, shape, links)
    bandwidth = group_bandwidth(shape, links)
    thinnest = bandwidth.min(axis=-1)
    steps = shape.fanout - 1
    ring = (shape.degree - 1) / shape.degree * size / thinnest + (shape.pairs * links.latency).sum(axis=-1)
    hierarchical = size * (steps / shape.fanout / bandwidth).sum(axis=-1) + (steps * links.latency).sum(axis=-1)
    hops = np.ceil(np.log2(shape.fanout))
    tree = 2 * (size / thinnest + (hops * links.latency).sum(axis=-1))
    return ring, hierarchical, tree


def _bounds(size: Floats, shape: RelaxedShape, links: Links) -> tuple[Floats, Floats, Floats]:
    """Lower bounds of ``_candidates`` over all exact shapes that a relaxed one stands for, on monotone links.

    With n_l children touched by some group, fanouts f_l ≥ n_l/n_{l+1} and members ≤ d/n_l, so

        Σ (f_l−1)/f_l / (members_l · bandwidth_l) ≥ Σ (n_l−n_{l+1}) / (d · bandwidth_l),

    least for the least n_l where bandwidth falls outwards; f−1 and ⌈log2 f⌉ are at least log2 f, so latencies are at
    least Σ log2(n_l/n_{l+1}) · α_l, least likewise; and half of the tensor or more leaves a child through one uplink.
    """
    bandwidth = group_bandwidth(shape, links)
    thinnest, degree, crossed = bandwidth.min(axis=-1), shape.degree, shape.fanout > 1
    doublings = (np.log2(shape.fanout) * links.latency).sum(axis=-1)
    steps = ((shape.fanout - 1) * links.latency).sum(axis=-1)
    hops = (np.ceil(np.log2(shape.fanout)) * links.latency).sum(axis=-1)
    uplink = np.where(crossed, shape.crossing / links.capacity, 0.0).max(axis=-1) / 2
    nics = (shape.pairs / links.bandwidth).sum(axis=-1) / degree
    ring = (degree - 1) / degree * size / thinnest + (shape.pairs * links.latency).sum(axis=-1)
    hierarchical = size * np.maximum(nics, uplink) + np.where(shape.known, steps, doublings)
    tree = 2 * (size / thinnest + np.where(shape.known, hops, doublings))
    return ring, hierarchical, tree


def _best(shape: GroupShape, launch_s: float, options: list[tuple[int, Floats]]) -> Timed:
    times = np.stack(np.broadcast_arrays(*(time for _, time in options)), axis=0)
    winner = times.argmin(axis=0)
    alone = shape.degree <= 1
    time = np.where(alone, 0.0, times.min(axis=0) + launch_s)
    return Timed(time, np.where(alone, NONE, np.array([code for code, _ in options])[winner]))


def all_to_all(sent_bytes: Floats, shape: GroupShape, links: Links, launch_s: float) -> Timed:
    """All-to-all in which every rank sends ``sent_bytes`` in all, evenly to the d ranks, itself included.

    Zero for a group of one.
    A rank's bytes for ranks outside its child of level l are (d − members_l)/d of them; all members send through the
    child's W_l.
    """
    degree = shape.degree[..., None]
    outside = np.maximum(0.0, degree - shape.members) / degree
    if isinstance(shape, RelaxedShape):  # m·(d−m) ≥ d−1 for any members m of d
        uplink = (degree - 1) / degree * shape.crossing / links.capacity
        each = np.where(shape.fanout > 1, np.maximum(outside / links.bandwidth, uplink), 0.0)
    else:
        each = outside * shape.members / group_bandwidth(shape, links)
    slowest = (np.asarray(sent_bytes)[..., None] * each).max(axis=-1)
    latency = np.where(shape.fanout > 1, links.latency, 0.0).max(axis=-1)
    alone = shape.degree <= 1
    time = np.where(alone, 0.0, slowest + latency + launch_s)
    return Timed(time, np.where(alone, NONE, PAIRWISE))


class Boundary(NamedTuple):
    """Delay of one message between pipeline neighbours, near (inside a building) and far (across buildings), (...).

    ``*_latency_s`` passes without occupying the link, ``*_occupancy_s`` is bytes over bandwidth. ``num_far`` boundaries
    of a pipeline are far; ``tail`` ranks lie behind the last of them, ``spacing`` between two of them.
    """

    near_latency_s: Floats
    near_occupancy_s: Floats
    far_latency_s: Floats
    far_occupancy_s: Floats
    num_far: Floats
    tail: Floats
    spacing: Floats


def neighbour_messages(size_bytes: Floats, shape: GroupShape, links: Links) -> Boundary:
    """Send of ``size_bytes`` from every rank to its successor on the axis.

    A message has its own NIC (bandwidth_l) and, where all crossing groups send at once, its share of the uplink
    (capacity_l / crossing_l). Near delay: the slowest inner level that any neighbour pair uses; of a relaxed shape the
    fastest, with the whole uplink, since pairs that it counts on an outer level may be far ones.
    """
    used, crossing = shape.pairs > 0, shape.crossing
    if isinstance(shape, RelaxedShape):
        inner = np.arange(used.shape[-1]) < CAMPUS
        crossing = np.where(inner, 1.0, crossing)
        used = used & (~inner | (np.cumsum(used, axis=-1) == 1))
    rate = np.minimum(links.bandwidth, links.capacity / np.where(used, crossing, 1.0))
    occupancy = np.where(used, np.asarray(size_bytes)[..., None] / rate, 0.0)
    latency = np.where(used, links.latency, 0.0)
    near, far = slice(None, CAMPUS), slice(CAMPUS, None)
    return Boundary(
        latency[..., near].max(axis=-1),
        occupancy[..., near].max(axis=-1),
        latency[..., far].max(axis=-1),
        occupancy[..., far].max(axis=-1),
        shape.pairs[..., far].sum(axis=-1),
        shape.tail,
        shape.spacing,
    )
