"""Actions of pipeline ranks that share links: those between buildings, which the collectives of all ranks cross.

An action that lasts d seconds alone keeps the links busy for b of them. While those that run ask for more than the links carry,
Σ b/d > 1, every one of them with b > 0 runs at 1 / Σ b/d of its pace: an action makes many short calls, which take turns. In fill
and drain few ranks run, so that each has the links to itself. Messages travel as in ``pipeline.timing``.

Cost: O(log ranks) an action.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.pipeline.compiled import CompiledSchedule


def is_crowded(seconds: Floats, busy_s: Floats, rank: Ints) -> bool:
    """Whether ranks may ever ask for more than the links carry.

    Args:
        seconds, busy_s: d and b of every kind of action on every virtual stage, (kinds, p·v).
        rank: of every virtual stage, (p·v,).
    """
    most = np.zeros(int(rank.max()) + 1)
    np.maximum.at(most, rank, _asked(seconds, busy_s).max(axis=0))
    return bool(most.sum() > 1)


def run_sharing(
    compiled: CompiledSchedule,
    rank_free: list[float],
    seconds: Floats,
    busy_s: Floats,
    latency: Floats,
    occupancy: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Start and end of every action and arrival of its message, in the compiled order; ``rank_free`` is used up.

    Args:
        seconds, busy_s: d and b of every action; ``latency``, ``occupancy``: of its message.
    """
    ranks, needs, fills, links = (
        column.tolist() for column in (compiled.rank, compiled.needs, compiled.fills, compiled.link)
    )
    lasts, travel, occupied, asks = (
        column.tolist() for column in (seconds, latency, occupancy, _asked(seconds, busy_s))
    )
    p, m, count = compiled.schedule.num_ranks, compiled.schedule.num_microbatches, len(ranks)
    start, end, arrival = ([0.0] * count for _ in range(3))
    link_free = [0.0] * (p * p)
    arrived = [0.0] * (2 * compiled.schedule.num_virtual_stages * m + 2)
    for slot in fills:
        arrived[slot] = math.inf
    waiting: dict[int, int] = {}
    todo = [np.flatnonzero(compiled.rank == rank)[::-1].tolist() for rank in range(p)]
    ready: list[tuple[float, int]] = []
    alone: list[tuple[float, int]] = []
    sharing: list[tuple[float, int]] = []
    now = asked = 0.0
    paced = 0.0  # seconds by which an action that shares has come on since the start of the step

    def post(rank: int) -> None:
        """The next action of a rank that is free begins once its message is there."""
        if todo[rank]:
            action = todo[rank].pop()
            if arrived[needs[action]] == math.inf:
                waiting[needs[action]] = action
            else:
                heappush(ready, (max(now, rank_free[rank], arrived[needs[action]]), action))

    for rank in range(p):
        post(rank)
    while ready or alone or sharing:
        slower = max(1.0, asked)
        begins, ends = ready[0][0] if ready else math.inf, alone[0][0] if alone else math.inf
        shared_ends = now + (sharing[0][0] - paced) * slower if sharing else math.inf
        then = max(now, min(begins, ends, shared_ends))
        paced += (then - now) / slower
        now = then
        if begins <= min(ends, shared_ends):
            action = heappop(ready)[1]
            start[action] = now
            asked += asks[action]
            running, since = (sharing, paced) if asks[action] else (alone, now)
            heappush(running, (since + lasts[action], action))
            continue
        action = heappop(alone if ends <= shared_ends else sharing)[1]
        asked = asked - asks[action] if sharing else 0.0  # rounding does not add up
        rank, slot = ranks[action], fills[action]
        end[action] = rank_free[rank] = now
        leave = link_free[links[action]] = max(now, link_free[links[action]]) + occupied[action]
        arrived[slot] = arrival[action] = leave + travel[action]
        if slot in waiting:
            heappush(ready, (arrived[slot], waiting.pop(slot)))
        post(rank)
    return np.array(start), np.array(end), np.array(arrival)


def _asked(seconds: Floats, busy_s: Floats) -> Floats:
    """b/d of actions: the share of the links that each asks for."""
    return np.divide(busy_s, seconds, out=np.zeros_like(busy_s), where=seconds > 0)
