"""The event loop of ``shared_links``, compiled: it looks at all ranks and communicators at each event."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.machine_code import compiled

DONE, WAITS, READY, HELD, RUNS = range(5)
"""States of a rank: no action left, waits for a message, begins at a known moment, waits for its parameters, runs."""
NONE: Final = -1
LEAST_PACE: Final = 1e-9
"""Least share of the links left to calls whose links passes use fully. Rounding must not stop these calls."""


class Actions(NamedTuple):
    """Actions in an order in which every one follows those that it waits for (``CompiledSchedule``).

    Attributes:
        rank, needs, fills, link: columns of ``CompiledSchedule``.
        row, first: actions of rank 0, of rank 1 ..., and the index in ``row`` where each rank's begin, (ranks + 1,).
        lasts_s, asks: seconds alone, and the share of the links that the action asks for.
        travel_s, occupied_s: latency and occupancy of its message, s.
        parts: number of parts of equal length in which it runs.
        gated: whether its parts wait for parameters.
        call, stride: first call of its first part's gradients (NONE if it has none), and calls of each part.
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
    parts: Ints
    gated: Ints
    call: Ints
    stride: Ints
    crosses: Ints


class Calls(NamedTuple):
    """Calls of gradients and parameters, those of parameters first.

    Attributes:
        lane: number of a rank's communicator, which runs its calls in their order of arrival.
        following: call of the same part in the next communicator, NONE after the last.
        lasts_s, asks: as of ``Actions``.
        opens: action of which one part waits for this call, else NONE.
        begins: whether it starts with the step.
    """

    lane: Ints
    following: Ints
    lasts_s: Floats
    asks: Floats
    opens: Ints
    begins: Ints


class Moments(NamedTuple):
    """Moments of every action, s. ``arrival`` is that of its message; ``calls`` (1,) is the end of the last call."""

    start: Floats
    end: Floats
    arrival: Floats
    calls: Floats


class Jobs(NamedTuple):
    """Running actions and calls by place: ranks first, then communicators.

    Attributes:
        job: action or call; NONE if idle.
        left_s: seconds left of it, alone.
        asks: share of the links that it asks for.
        slower: seconds that one second of it takes.
        changed: (1,) nonzero if the sum of ``asks`` may have changed.
    """

    job: Ints
    left_s: Floats
    asks: Floats
    slower: Floats
    changed: Ints


@compiled
def time_sharing(actions: Actions, calls: Calls, num_slots: int, moments: Moments) -> None:
    """Write all moments into ``moments``.

    Args:
        num_slots: number of messages plus two (``CompiledSchedule``).
    """
    ranks, lanes = len(actions.first) - 1, 0 if len(calls.lane) == 0 else calls.lane.max() + 1
    places = ranks + lanes
    jobs = Jobs(np.full(places, NONE), np.zeros(places), np.zeros(places), np.ones(places), np.zeros(1, np.int64))
    does, at, moment = np.full(ranks, DONE), actions.first[:-1].copy(), np.zeros(ranks)
    over, there = np.zeros(len(actions.rank), np.int64), np.zeros(len(actions.rank), np.int64)
    queue, last = np.full(len(calls.lane), NONE), np.full(lanes, NONE)
    arrived, link_free = np.zeros(num_slots), np.zeros(ranks * ranks)
    for slot in actions.fills:
        arrived[slot] = np.inf
    # two more than the last way: at least one entry where no message crosses (NONE is -1)
    passed, now = np.zeros(actions.crosses.max() + 2), 0.0
    for call in range(len(calls.lane)):
        if calls.begins[call]:
            _post(calls, jobs, queue, last, ranks, call)
    for rank in range(ranks):
        _next(actions, does, at, moment, arrived, rank, 0.0)
    while True:
        # paces change only when a job that uses the links starts or stops
        if jobs.changed[0]:
            _share(jobs, ranks)
        place, then = NONE, np.inf
        for rank in range(ranks):
            if does[rank] == READY and moment[rank] < then:
                place, then = rank, moment[rank]
        for other in range(places):
            if jobs.job[other] != NONE and now + jobs.left_s[other] * jobs.slower[other] < then:
                place, then = other, now + jobs.left_s[other] * jobs.slower[other]
        # nothing runs and nothing is due: the step is over
        if place == NONE:
            return
        passed_s, now = max(0.0, then - now), max(now, then)
        for other in range(places):
            if jobs.job[other] != NONE and passed_s > 0:
                jobs.left_s[other] = max(0.0, jobs.left_s[other] - passed_s / jobs.slower[other])
        if place >= ranks:
            call = jobs.job[place]
            _end_call(calls, jobs, queue, last, ranks, place - ranks)
            moments.calls[0] = now
            opened = calls.opens[call]
            if opened != NONE:
                there[opened] += 1
                rank = actions.rank[opened]
                if does[rank] == HELD and actions.row[at[rank]] == opened:
                    _begin(actions, jobs, does, over, there, rank, opened)
            continue
        action = actions.row[at[place]]
        if does[place] == READY:
            moments.start[action] = now
            _begin(actions, jobs, does, over, there, place, action)
            continue
        if actions.call[action] != NONE:
            _post(calls, jobs, queue, last, ranks, actions.call[action] + over[action] * actions.stride[action])
        over[action] += 1
        if over[action] < actions.parts[action]:
            _begin(actions, jobs, does, over, there, place, action)
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
        _stop(jobs, place)
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


@compiled
def _begin(actions: Actions, jobs: Jobs, does: Ints, over: Ints, there: Ints, rank: int, action: int) -> None:
    """Start the next part of an action, or hold it until its parameters are there."""
    if actions.gated[action] and there[action] <= over[action]:
        _stop(jobs, rank)
        does[rank] = HELD
        return
    does[rank] = RUNS
    _start(jobs, rank, action, actions.lasts_s[action] / actions.parts[action], actions.asks[action])


@compiled
def _post(calls: Calls, jobs: Jobs, queue: Ints, last: Ints, ranks: int, call: int) -> None:
    """Start a call, or queue it behind the calls of its communicator."""
    lane = calls.lane[call]
    if jobs.job[ranks + lane] == NONE:
        _run(calls, jobs, ranks + lane, call)
    else:
        queue[last[lane]] = call
    last[lane] = call


@compiled
def _end_call(calls: Calls, jobs: Jobs, queue: Ints, last: Ints, ranks: int, lane: int) -> None:
    """End a call: its communicator runs the next one, and the same part goes on to the next communicator."""
    call = jobs.job[ranks + lane]
    _stop(jobs, ranks + lane)
    if queue[call] != NONE:
        _run(calls, jobs, ranks + lane, queue[call])
    if calls.following[call] != NONE:
        _post(calls, jobs, queue, last, ranks, calls.following[call])


@compiled
def _run(calls: Calls, jobs: Jobs, place: int, call: int) -> None:
    _start(jobs, place, call, calls.lasts_s[call], calls.asks[call])


@compiled
def _start(jobs: Jobs, place: int, job: int, lasts_s: float, asks: float) -> None:
    jobs.changed[0] += asks != jobs.asks[place]
    jobs.job[place], jobs.left_s[place], jobs.asks[place] = job, lasts_s, asks


@compiled
def _stop(jobs: Jobs, place: int) -> None:
    jobs.changed[0] += jobs.asks[place] != 0
    jobs.job[place], jobs.asks[place] = NONE, 0.0


@compiled
def _share(jobs: Jobs, ranks: int) -> None:
    """Update the pace of passes and calls when all jobs ask for more than the links carry (``shared_links``)."""
    jobs.changed[0] = 0
    passes, asking, states = 0.0, 0, 0.0
    for place in range(len(jobs.job)):
        if jobs.job[place] != NONE and place >= ranks:
            states += jobs.asks[place]
        elif jobs.job[place] != NONE and jobs.asks[place] > 0:
            passes, asking = passes + jobs.asks[place], asking + 1
    slower = max(1.0, passes)
    if asking:
        slower += states * passes / asking
    left = max(LEAST_PACE, 1.0 - passes / slower)
    for place in range(len(jobs.job)):
        if jobs.asks[place] > 0:
            jobs.slower[place] = slower if place < ranks else max(1.0, states / left)
        else:
            jobs.slower[place] = 1.0
