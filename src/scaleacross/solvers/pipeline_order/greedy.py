"""A list scheduler: whenever a rank is free, it starts the available computation with the smallest key.

A key counts micro-batches: computation j of stream k has key j + offset[k]. With F at offset 0, an I at offset d means
that micro-batch j's I goes before F of j + d. So d is the depth, the number of micro-batches that the rank prefers to
have in flight. W comes late (large offset), but a rank takes it when memory keeps it from F, or when it would idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from scaleacross.solvers.pipeline_order.streams import Streams

Starts = list[list[int]]  # [stream][micro-batch] -> tick


@dataclass(frozen=True)
class Rule:
    """Preferences of the list scheduler.

    Attributes:
        offset: per stream, added to the number of the micro-batch.
        patience: per stream, the part of its duration that a rank would rather wait for a computation with a smaller
            key whose message is on its way; 0 never waits.
    """

    offset: tuple[float, ...]
    patience: tuple[float, ...]


class ListScheduler:
    """Runs rules on one problem; everything that does not depend on the rule is prepared once."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.ticks = [s.ticks for s in streams.streams]
        self.rank = [s.rank for s in streams.streams]
        self.out = [
            [(a.target, a.occupancy, a.latency, _link(streams, a.link)) for a in streams.arcs if a.source == k]
            for k in range(len(self.ticks))
        ]
        self.num_sources = [sum(a.target == k for a in streams.arcs) for k in range(len(self.ticks))]
        stages = streams.problem.num_virtual_stages
        # An F must leave room for one micro-batch in every later chunk of its rank: then the furthest micro-batch can always
        # go on, and nothing deadlocks.
        self.needs, self.frees = [0] * len(self.ticks), [0] * len(self.ticks)
        for x in range(stages):
            self.needs[x] = streams.problem.num_chunks - streams.streams[x].chunk
            self.frees[x], self.frees[streams.weight(x)] = -1, 1

    def run(self, rule: Rule, keys: list[list[float]] | None = None) -> tuple[int, Starts]:
        """Return (ticks of the step, starts) of a rule; ``keys[stream][micro-batch]`` replace those of the rule."""
        streams, m = self.streams, self.streams.count
        ticks, offset, patience, out = self.ticks, rule.offset, rule.patience, self.out
        needs, frees, rank_of = self.needs, self.frees, self.rank
        free = list(streams.limit)
        done = [0] * len(ticks)
        ready = [[0] * m for _ in ticks]
        missing = [[n] * m for n in self.num_sources]
        starts: Starts = [[] for _ in ticks]
        link_free = [0] * (streams.problem.num_ranks**2 + 1)
        idle_at = [0] * streams.problem.num_ranks
        events = [(0, r) for r in range(streams.problem.num_ranks)]
        while events:
            now, r = heappop(events)
            # the rank is busy; the end of its computation has an event of its own
            if now < idle_at[r]:
                continue
            space = free[r]
            best, best_key, wait_key, wait_until = -1, 1e300, 1e300, 0
            for k in streams.on_rank[r]:
                j = done[k]
                if j == m or missing[k][j]:
                    continue
                if needs[k] > space:
                    continue
                key = keys[k][j] if keys else j + offset[k]
                at = ready[k][j]
                if at <= now:
                    if key < best_key:
                        best, best_key = k, key
                elif wait_until == 0 or at < wait_until:
                    wait_key, wait_until = key, at  # the first to arrive of those on their way
            if best < 0:
                if wait_until:
                    heappush(events, (wait_until, r))
                continue
            if wait_until and wait_key < best_key and wait_until - now < patience[best] * ticks[best]:
                heappush(events, (wait_until, r))
                continue
            j = done[best]
            done[best] = j + 1
            starts[best].append(now)
            end = now + ticks[best]
            idle_at[r] = end
            free[r] = space + frees[best]
            heappush(events, (end, r))
            for target, occupancy, latency, link in out[best]:
                arrival = end
                if link:
                    leave = link_free[link] if link_free[link] > end else end
                    link_free[link] = leave + occupancy
                    arrival = leave + occupancy + latency
                if arrival > ready[target][j]:
                    ready[target][j] = arrival
                missing[target][j] -= 1
                if rank_of[target] != r:
                    heappush(events, (arrival, rank_of[target]))
        return self.step(starts), starts

    def step(self, starts: Starts) -> int:
        """Return the ticks of the step: the last end of a stream."""
        return max(row[-1] + ticks for row, ticks in zip(starts, self.ticks, strict=True))


def _link(streams: Streams, link: tuple[int, int] | None) -> int:
    """Return the number of a directed link, 0 for none."""
    return 0 if link is None else 1 + link[0] * streams.problem.num_ranks + link[1]
