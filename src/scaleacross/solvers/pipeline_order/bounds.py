"""Lower bounds on the step, in ticks, from three facts.

* **Lags.** The j-th computation of one stream waits for the (j − lag)-th of another: lag 0 along the precedences; and
  memory that holds K micro-batches of a stage makes F of micro-batch j wait for the backward of j − K. Lags add up along
  a path, so the least lag of all pairs is a shortest path (``least_lags``).
* **Heads.** A computation starts no sooner than its predecessors' messages arrive, and no sooner than its rank has
  finished all that must come before it: of these, the ones that cannot start before t need t + their total duration,
  for every t. **Tails** are the heads of the step run backwards: what must still happen after a computation ends.
* **One rank, one link.** For every set of computations of a rank, (least head) + (total duration) + (least tail) bounds
  the step; Jackson's preemptive schedule finds the largest over all sets (Carlier 1982). The messages of a directed link
  are such a set too.

With memory for K micro-batches, the set of all but the first K forwards of rank s gives: round trip to the last stage and
back, plus the work that the rank cannot have done in the meantime. This is what makes the bound better than
max(work, critical path).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Ints
from scaleacross.solvers.pipeline_order.streams import Streams

_NEVER = 10**9  # lag of streams that do not wait for each other


class Windows(NamedTuple):
    """Per stream and micro-batch, shape (streams, m): ``head`` ≤ start, ``tail`` ≤ ticks from its end to the step's end."""

    head: Ints
    tail: Ints


def lower_bound(streams: Streams, windows: Windows | None = None) -> int:
    """Return the best of the bounds above, in ticks."""
    head, tail = windows or earliest_and_latest(streams)
    ticks = np.array([s.ticks for s in streams.streams])
    best = int((head + ticks[:, None] + tail).max())
    for row in streams.on_rank:
        index = list(row)
        best = max(best, _jackson(head[index], np.repeat(ticks[index], streams.count), tail[index]))
    links: dict[tuple[int, int], list[int]] = {}
    for number, arc in enumerate(streams.arcs):
        if arc.link and arc.occupancy:
            links.setdefault(arc.link, []).append(number)
    for numbers in links.values():
        arcs = [streams.arcs[n] for n in numbers]
        sources = [a.source for a in arcs]
        # the tail of a message: its latency, then its target's computation and tail
        after = [tail[a.target] + streams.streams[a.target].ticks + a.latency for a in arcs]
        occupancy = np.repeat([a.occupancy for a in arcs], streams.count)
        best = max(best, _jackson(head[sources] + ticks[sources, None], occupancy, np.array(after)))
    return best


def least_lags(streams: Streams) -> Ints:
    """Return ``lags[k, l]``: computation j of stream l starts after the end of j − lags[k, l] of stream k."""
    size = len(streams.streams)
    lags = np.full((size, size), _NEVER, dtype=np.int64)
    np.fill_diagonal(lags, 1)
    for arc in streams.arcs:
        lags[arc.source, arc.target] = 0
    for source, target, depth, _ in memory_depths(streams):
        lags[source, target] = min(lags[source, target], depth)
    # shortest paths over all pairs (Floyd and Warshall)
    for via in range(size):
        np.minimum(lags, lags[:, via, None] + lags[None, via, :], out=lags)
    return lags


class Depth(NamedTuple):
    """F of micro-batch j of stream ``forward`` starts ``gap`` ticks or more after the end of j − ``depth`` of ``frees``."""

    frees: int
    forward: int
    depth: int
    gap: int


def memory_depths(streams: Streams) -> list[Depth]:
    """Return how many micro-batches memory lets a stage have in flight.

    A micro-batch between F and the backward of a stage also holds the activations of the earlier chunks of the same
    rank. Where ``depth`` micro-batches before their I leave no room for one before its W, the W of the micro-batch
    whose I ends must run as well, or another I: the shorter of them is the gap.
    """
    out = []
    for x in range(streams.problem.num_virtual_stages):
        rank, back, weight = streams.streams[x].rank, streams.backward(x), streams.weight(x)
        limit, chunks = streams.limit[rank], streams.streams[x].chunk + 1
        full = streams.split and limit % chunks == 0
        gap = min(streams.streams[back].ticks, streams.streams[weight].ticks) if full else 0
        out.append(Depth(back, x, limit // chunks, gap))
        if streams.split:
            out.append(Depth(weight, x, limit, 0))
    return [entry for entry in out if entry.depth < streams.count]


class Extra(NamedTuple):
    """``ticks`` of work that cannot start before the first of ``earliest``, (stream, micro-batch) pairs, does."""

    ticks: int
    earliest: tuple[tuple[int, int], ...]


def memory_extras(streams: Streams) -> dict[tuple[int, int], Extra]:
    """Return work before F of (stream, micro-batch) beyond what the two depths of its stage demand one by one.

    Let a I's and b W's have ended when F of micro-batch j starts. The depths give least a and least b, but memory may
    not allow both at once: (j + 1 − a) micro-batches before their I and (a − b) before their W must fit. The (a, b)
    with least work that fits is the extra.
    """
    out = {}
    depths = {(d.forward, d.frees): d.depth for d in memory_depths(streams)}
    for x in range(streams.problem.num_virtual_stages):
        back, weight = streams.backward(x), streams.weight(x)
        if not streams.split or (x, back) not in depths:
            continue
        limit, chunks = streams.limit[streams.streams[x].rank], streams.streams[x].chunk + 1
        for j in range(depths[x, back], streams.count):
            first_a, first_b = j + 1 - depths[x, back], max(0, j + 1 - depths.get((x, weight), streams.count))
            extra = min(
                (a - first_a) * streams.streams[back].ticks
                + (max(first_b, a - (limit - (j + 1 - a) * chunks)) - first_b) * streams.streams[weight].ticks
                for a in range(first_a, j + 1)
            )
            if extra:
                out[x, j] = Extra(extra, ((back, min(first_a, j)), (weight, first_b)))
    return out


def earliest_and_latest(streams: Streams) -> Windows:
    """Return heads and tails of all computations."""
    lags = least_lags(streams)
    edges = [(a.source, a.target, 0, a.occupancy, a.latency) for a in streams.arcs]
    edges += [(d.frees, d.forward, d.depth, 0, d.gap) for d in memory_depths(streams)]
    order = _topological(streams)
    head = _heads(streams, order, edges, lags, memory_extras(streams))
    back = [(target, source, lag, occupancy, latency) for source, target, lag, occupancy, latency in edges]
    tail = _heads(streams, order[::-1], back, lags.T, {})
    return Windows(head, tail[:, ::-1].copy())


def _heads(
    streams: Streams,
    order: list[int],
    edges: list[tuple[int, int, int, int, int]],
    lags: Ints,
    extras: dict[tuple[int, int], Extra],
) -> Ints:
    """Return earliest starts, (streams, m); with reversed edges, order and lags the tails, micro-batches reversed."""
    m = streams.count
    ticks = np.array([s.ticks for s in streams.streams])
    head = np.zeros((len(ticks), m), dtype=np.int64)
    arrival = {n: np.zeros(m, dtype=np.int64) for n, edge in enumerate(edges) if edge[3]}
    into = [[(n, edge) for n, edge in enumerate(edges) if edge[1] == k] for k in range(len(ticks))]
    for j in range(m):
        for k in order:
            start = 0
            for n, (source, _, lag, occupancy, latency) in into[k]:
                if j < lag:
                    continue
                end = int(head[source, j - lag] + ticks[source])
                if occupancy:  # messages of one stream follow each other on the link
                    end = max(end, int(arrival[n][j - 1]) if j else 0) + occupancy
                    arrival[n][j] = end
                start = max(start, end + latency)
            head[k, j] = max(start, _rank_head(streams, head, ticks, lags, k, j, extras.get((k, j))))
    return head


def _rank_head(streams: Streams, head: Ints, ticks: Ints, lags: Ints, k: int, j: int, extra: Extra | None) -> int:
    """Return when the rank of stream k can have finished all that must come before computation j."""
    starts, lengths = [], []
    for other in streams.on_rank[streams.streams[k].rank]:
        count = j - int(lags[other, k]) + 1
        if count > 0 and ticks[other]:
            starts.append(head[other, :count])
            lengths.append(np.full(count, ticks[other]))
    if extra:
        starts.append(np.array([min(int(head[other, i]) for other, i in extra.earliest)]))
        lengths.append(np.array([extra.ticks]))
    if not starts:
        return 0
    when, length = np.concatenate(starts), np.concatenate(lengths)
    # with the latest start first, cumsum totals all that cannot start before each head
    late_first = np.argsort(-when, kind="stable")
    return int((when[late_first] + np.cumsum(length[late_first])).max())


def _topological(streams: Streams) -> list[int]:
    """Return the streams in an order that all arcs follow: F down the stages, backward up, then W."""
    size = streams.problem.num_virtual_stages
    order = [*range(size), *range(2 * size - 1, size - 1, -1)]
    return order + list(range(2 * size, 3 * size)) if streams.split else order


def _jackson(head: Ints, ticks: Ints, tail: Ints) -> int:
    """Return the makespan of the preemptive one-machine schedule; it runs the available job with the largest tail."""
    jobs = sorted(zip(head.ravel().tolist(), ticks.tolist(), tail.ravel().tolist(), strict=True))
    best, now, at = 0, 0, 0
    queue: list[tuple[int, int]] = []
    while queue or at < len(jobs):
        if not queue:
            now = max(now, jobs[at][0])
        while at < len(jobs) and jobs[at][0] <= now:
            heappush(queue, (-jobs[at][2], jobs[at][1]))
            at += 1
        late, left = heappop(queue)
        run = left if at == len(jobs) else min(left, jobs[at][0] - now)
        now += run
        if run < left:
            heappush(queue, (late, left - run))
        else:
            best = max(best, now - late)
    return best
