"""The event loop of ``shared_links``, compiled: it looks at all ranks at each event."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.machine_code import compiled

DONE, WAITS, READY, RUNS = range(4)
"""States of a rank: no action left, waits for a message, begins at a known moment, runs."""
NONE: Final = -1


class Actions(NamedTuple):
    """Actions in an order in which every one follows those that it waits for (``CompiledSchedule``).

    Attributes:
        rank, needs, fills, link: columns of ``CompiledSchedule``.
        row, first: actions of rank 0, of rank 1 ..., and the index in ``row`` where each rank's begin, (ranks + 1,).
        lasts_s, asks: seconds alone, and the share of the links that the action asks for.
        travel_s, occupied_s: latency and occupancy of its message, s.
        crosses: way on which its message passes these links, NONE if it does not.
    """

    rank: Ints
    needs: Ints
    fills: Ints
    link: Ints
    row: Ints
    first: Ints
    lasts_s: Floats
    asks: Floats
    travel_s: Floats
    occupied_s: Floats
    crosses: Ints


class Moments(NamedTuple):
    """Moments of every action, s. ``arrival`` is that of its message."""

    start: Floats
    end: Floats
    arrival: Floats


@compiled
def time_sharing(actions: Actions, num_slots: int, moments: Moments) -> None:
    """Write all moments into ``moments``.

    Args:
        num_slots: number of messages plus two (``CompiledSchedule``).
    """
    ranks = len(actions.first) - 1
    does, at, moment = np.full(ranks, DONE), actions.first[:-1].copy(), np.zeros(ranks)
    # of a rank's running action: seconds left alone, and the share of the links that it asks for
    left_s, asks = np.zeros(ranks), np.zeros(ranks)
    arrived, link_free = np.zeros(num_slots), np.zeros(ranks * ranks)
    for slot in actions.fills:
        arrived[slot] = np.inf
    # two more than the last way: at least one entry where no message crosses (NONE is -1)
    passed, now = np.zeros(actions.crosses.max() + 2), 0.0
    for rank in range(ranks):
        _next(actions, does, at, moment, arrived, rank, 0.0)
    while True:
        slower = max(1.0, asks.sum())
        place, then = NONE, np.inf
        for rank in range(ranks):
            due = np.inf
            if does[rank] == READY:
                due = moment[rank]
            elif does[rank] == RUNS:
                due = now + left_s[rank] * (slower if asks[rank] > 0 else 1.0)
            if due < then:
                place, then = rank, due
        # nothing runs and nothing is due: the step is over
        if place == NONE:
            return
        passed_s, now = max(0.0, then - now), max(now, then)
        for rank in range(ranks):
            if does[rank] == RUNS and passed_s > 0:
                left_s[rank] = max(0.0, left_s[rank] - passed_s / (slower if asks[rank] > 0 else 1.0))
        action = actions.row[at[place]]
        if does[place] == READY:
            moments.start[action] = now
            does[place], left_s[place], asks[place] = RUNS, actions.lasts_s[action], actions.asks[action]
            continue
        moments.end[action] = now
        free, lane, slot = link_free, actions.link[action], actions.fills[action]
        if actions.crosses[action] != NONE:
            free, lane = passed, actions.crosses[action]
        free[lane] = max(now, free[lane]) + actions.occupied_s[action]
        arrived[slot] = moments.arrival[action] = free[lane] + actions.travel_s[action]
        for rank in range(ranks):
            if does[rank] == WAITS and actions.needs[actions.row[at[rank]]] == slot:
                does[rank], moment[rank] = READY, arrived[slot]
        asks[place] = 0.0
        at[place] += 1
        _next(actions, does, at, moment, arrived, place, now)


@compiled
def _next(actions: Actions, does: Ints, at: Ints, moment: Floats, arrived: Floats, rank: int, now: float) -> None:
    """The next action of a free rank becomes ready once its message has arrived."""
    if at[rank] == actions.first[rank + 1]:
        does[rank] = DONE
        return
    message = arrived[actions.needs[actions.row[at[rank]]]]
    does[rank] = WAITS if message == np.inf else READY
    moment[rank] = max(now, message)
