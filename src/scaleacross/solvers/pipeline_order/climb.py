"""The greedy stage: start the list scheduler from a few rules, then search locally over the rules themselves.

A rule has two numbers per stream, so its neighbourhood is small, and a run takes microseconds per computation. So a
step of thousands of computations is improved by moving a whole stream, not one micro-batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from scaleacross.schedules.pipeline import Kind
from scaleacross.solvers.pipeline_order.bounds import Windows
from scaleacross.solvers.pipeline_order.greedy import ListScheduler, Rule, Starts
from scaleacross.solvers.pipeline_order.streams import Streams

_DEPTH_SCALES: Final = (1.0, 1.25, 1.5, 2.0)
_ENTRY_SCALES: Final = (0.0, 1.0, 2.0)  # share of the trip between chunks of a rank that delays a later F
_WEIGHT_DELAYS: Final = (0.0, 2.0, 5.0, 1000.0)  # micro-batches that W waits behind its I unless its rank would idle
_PATIENCES: Final = (0.0, 0.5, 1.0)
_MOVES: Final = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
_PATIENCE_MOVES: Final = (0.0, 0.25, 0.5, 1.0, 2.0)
_WORSE_FRACTION: Final = 0.01  # a worse rule is accepted this often, if it is worse by at most this fraction


@dataclass(frozen=True)
class Found:
    """An order with its step; ``rule`` is None when it does not come from a rule."""

    ticks: int
    starts: Starts
    rule: Rule | None = None


def first_rules(streams: Streams, windows: Windows) -> Iterator[Rule]:
    """Yield rules: depth by the stages that follow (as 1F1B) or by the round trip, W soon or late, patient or not."""
    size, period = streams.problem.num_virtual_stages, max(streams.work) / streams.count
    by_count = [(size - x) / streams.problem.num_chunks - 0.5 for x in range(size)]
    forward = [int(windows.head[x, 0]) for x in range(size)]
    trip = [(int(windows.head[streams.backward(x), 0]) - forward[x]) / period for x in range(size)]
    first_on_rank = [min(forward[y] for y in row if y < size) for row in streams.on_rank]
    entry = [(forward[x] - first_on_rank[streams.streams[x].rank]) / period for x in range(size)]
    depths = [by_count, *([scale * t + 0.5 for t in trip] for scale in _DEPTH_SCALES)]
    scales = _ENTRY_SCALES if streams.problem.num_chunks > 1 else (0.0,)
    delays = _WEIGHT_DELAYS if streams.split else (0.0,)
    for scale, depth, delay, patience in product(scales, depths, delays, _PATIENCES):
        behind = {Kind.F: 0.0, Kind.W: delay}
        offset = tuple(
            scale * entry[s.stage] + (0.0 if s.kind is Kind.F else depth[s.stage]) + behind.get(s.kind, 0.0)
            for s in streams.streams
        )
        yield Rule(offset, (patience,) * len(offset))


def best_rule(scheduler: ListScheduler, rules: Iterator[Rule]) -> Found:
    """Return the order with the fewest ticks among those of ``rules``."""
    found = (Found(*scheduler.run(rule), rule) for rule in rules)
    return min(found, key=lambda f: f.ticks)


def climb(scheduler: ListScheduler, start: Found, lower: int, left: Callable[[], float], seed: int) -> Found:
    """Change the rule of ``start`` at random and keep what is not worse, until ``lower`` is reached or the time is up.

    Args:
        left: the seconds left.
    """
    rng = random.Random(seed)
    if start.rule is None or start.ticks <= lower:
        return start
    best = current = start
    rule = start.rule
    while best.ticks > lower and left() > 0:
        changed = _neighbour(rule, scheduler.streams, rng)
        ticks, starts = scheduler.run(changed)
        worse_allowed = best.ticks * (1 + _WORSE_FRACTION) if rng.random() < _WORSE_FRACTION else current.ticks
        if ticks <= max(worse_allowed, current.ticks):
            current, rule = Found(ticks, starts, changed), changed
            if ticks < best.ticks:
                best = current
        # now and then return to the best rule, so that accepted losses do not add up
        elif rng.random() < _WORSE_FRACTION / 5:
            current, rule = best, best.rule or rule
    return best


def _neighbour(rule: Rule, streams: Streams, rng: random.Random) -> Rule:
    """Return the rule after one to three changes, of a patience, an offset, or one kind's offsets from a stage on."""
    offset, patience = list(rule.offset), list(rule.patience)
    for _ in range(rng.choice((1, 1, 3))):
        k, kind_of_move, move = rng.randrange(len(offset)), rng.random(), rng.choice(_MOVES)
        if kind_of_move < 0.3:
            patience[k] = rng.choice(_PATIENCE_MOVES)
        elif kind_of_move < 0.7:
            offset[k] += move
        else:
            kind, first = streams.streams[k].kind, streams.streams[k].stage
            for other, stream in enumerate(streams.streams):
                if stream.kind is kind and stream.stage >= first:
                    offset[other] += move
    return Rule(tuple(offset), tuple(patience))
