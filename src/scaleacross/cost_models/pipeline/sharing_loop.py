"""The play of ``shared_links``, compiled: one event after another, looking at all ranks and communicators at each."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.machine_code import compiled

DONE, WAITS, READY, HELD, RUNS = range(5)
"""What a rank does: nothing more, wait for a message, begin at a known moment, wait for its parameters, run."""
NONE: Final = -1
LEAST_PACE: Final = 1e-9
"""Of calls that wait for passes which leave nothing of the links: rounding must not stop them."""


class Actions(NamedTuple):
    """Actions in an order in which every one follows what it waits for (``CompiledSchedule``).

    Attributes:
        rank, needs, fills, link: of each, as there; ``row``: actions of rank 0, of rank 1 ...; ``first``: (ranks + 1,) where each
            rank's begin.
        lasts_s, asks: alone, and the share of the links that it asks for.
        travel_s, occupied_s: of its message.
        parts: in which it runs, of equal length.
        gated: whether its parts wait for parameters.
        call, stride: first call of its first part's gradients, NONE without, and calls of each part.
        crosses: number of the way on which its message passes these links, NONE if it does not.
        ahead_s, hidden_s, more_s: of a part whose calls wait for messages (``message_waits``); 0 where none does.
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
    ahead_s: Floats
    hidden_s: Floats
    more_s: Floats


class Calls(NamedTuple):
    """Calls of gradients and parameters, those of parameters first.

    Attributes:
        lane: number of a rank's communicator, which runs its calls in the order in which they come.
        following: call of the same part in the next communicator, NONE after the last.
        lasts_s, asks: as of ``Actions``.
        opens: action of which a part waits for this call; NONE.
        begins: whether it sets out when the step begins.
    """

    lane: Ints
    following: Ints
    lasts_s: Floats
    asks: Floats
    opens: Ints
    begins: Ints


class Played(NamedTuple):
    """Moments of every action, s: ``arrival`` of its message; ``calls``: (1,) end of the last call."""

    start: Floats
    end: Floats
    arrival: Floats
    calls: Floats


class Jobs(NamedTuple):
    """What runs, by place: ranks, then communicators.

    Attributes:
        job: action or call; NONE.
        left_s: of it, alone; ``asks``: of the links; ``slower``: seconds that a second of it takes.
        changed: (1,) whether what is asked of the links has changed.
    """

    job: Ints
    left_s: Floats
    asks: Floats
    slower: Floats
    changed: Ints


@compiled
def play(actions: Actions, calls: Calls, num_slots: int, played: Played) -> None:
    """Write all moments into ``played``.

    Args:
        num_slots: messages, and two more (``CompiledSchedule``).
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
    passed, now = np.zeros(actions.crosses.max() + 2), 0.0
    for call in range(len(calls.lane)):
        if calls.begins[call]:
            _post(calls, jobs, queue, last, ranks, call)
    for rank in range(ranks):
        _next(actions, does, at, moment, arrived, rank, 0.0)
    while True:
        if jobs.changed[0]:
            _share(jobs, ranks)
        place, then = NONE, np.inf
        for rank in range(ranks):
            if does[rank] == READY and moment[rank] < then:
                place, then = rank, moment[rank]
        for other in range(places):
            if jobs.job[other] != NONE and now + jobs.left_s[other] * jobs.slower[other] < then:
                place, then = other, now + jobs.left_s[other] * jobs.slower[other]
        if place == NONE:
            return
        passed_s, now = max(0.0, then - now), max(now, then)
        for other in range(places):
            if jobs.job[other] != NONE and passed_s > 0:
                jobs.left_s[other] = max(0.0, jobs.left_s[other] - passed_s / jobs.slower[other])
        if place >= ranks:
            call = jobs.job[place]
            _end_call(calls, jobs, queue, last, ranks, place - ranks)
            played.calls[0] = now
            opened = calls.opens[call]
            if opened != NONE:
                there[opened] += 1
                rank = actions.rank[opened]
                if does[rank] == HELD and actions.row[at[rank]] == opened:
                    _begin(actions, jobs, does, over, there, rank, opened, passed - now)
            continue
        action = actions.row[at[place]]
        if does[place] == READY:
            played.start[action] = now
            _begin(actions, jobs, does, over, there, place, action, passed - now)
            continue
        if actions.call[action] != NONE:
            _post(calls, jobs, queue, last, ranks, actions.call[action] + over[action] * actions.stride[action])
        over[action] += 1
        if over[action] < actions.parts[action]:
            _begin(actions, jobs, does, over, there, place, action, passed - now)
            continue
        played.end[action] = now
        free, lane, slot = link_free, actions.link[action], actions.fills[action]
        if actions.crosses[action] != NONE:
            free, lane = passed, actions.crosses[action]
        free[lane] = max(now, free[lane]) + actions.occupied_s[action]
        arrived[slot] = played.arrival[action] = free[lane] + actions.travel_s[action]
        for rank in range(ranks):
            if does[rank] == WAITS and actions.needs[actions.row[at[rank]]] == slot:
                does[rank], moment[rank] = READY, arrived[slot]
        _stop(jobs, place)
        at[place] += 1
        _next(actions, does, at, moment, arrived, place, now)


@compiled
def _next(actions: Actions, does: Ints, at: Ints, moment: Floats, arrived: Floats, rank: int, now: float) -> None:
    """The next action of a free rank begins once its message is there."""
    if at[rank] == actions.first[rank + 1]:
        does[rank] = DONE
        return
    message = arrived[actions.needs[actions.row[at[rank]]]]
    does[rank] = WAITS if message == np.inf else READY
    moment[rank] = max(now, message)


@compiled
def _begin(
    actions: Actions, jobs: Jobs, does: Ints, over: Ints, there: Ints, rank: int, action: int, messages_s: Floats
) -> None:
    """The next part of an action begins, or waits for its parameters; ``messages_s``: until those of every way are through."""
    if actions.gated[action] and there[action] <= over[action]:
        _stop(jobs, rank)
        does[rank] = HELD
        return
    does[rank] = RUNS
    most_s = min(messages_s.max(), actions.ahead_s[action] + actions.more_s[action])
    waits_s = max(0.0, most_s - actions.ahead_s[action] - actions.hidden_s[action])
    _start(jobs, rank, action, actions.lasts_s[action] / actions.parts[action] + waits_s, actions.asks[action])


@compiled
def _post(calls: Calls, jobs: Jobs, queue: Ints, last: Ints, ranks: int, call: int) -> None:
    """A call begins once its communicator is free."""
    lane = calls.lane[call]
    if jobs.job[ranks + lane] == NONE:
        _run(calls, jobs, ranks + lane, call)
    else:
        queue[last[lane]] = call
    last[lane] = call


@compiled
def _end_call(calls: Calls, jobs: Jobs, queue: Ints, last: Ints, ranks: int, lane: int) -> None:
    """The next call of this communicator begins, and the next one of the same part may."""
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
    """How much slower passes and calls are for what all that run ask for (``shared_links``)."""
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
