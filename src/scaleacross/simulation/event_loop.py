"""The compiled event loop of a simulation, over the arrays of ``world``; ``clock`` calls ``advance``.

A task takes well below a microsecond. Every moment has three steps, in this order: tasks end or arrive, tasks start,
rates are recomputed. A link is *over* if its flows would exceed its capacity at the rates that they reach alone. A
start or an end changes rates only through such links, so only flows that share them, directly or through others, are
recomputed.

Rates are max-min fair: no flow can get more without taking from a flow that has no more. Progressive filling finds
them: all rates rise together until a flow reaches its rate alone or a link is full. Source: Bertsekas and Gallager,
Data Networks (1992), section 6.5.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from scaleacross.machine_code import compiled
from scaleacross.simulation.world import DONE, FULL, PAUSED, World

ROUNDING: Final = 1e-12
"""Relative tolerance: two moments closer than this are one, and so are two limits of a rate."""


@compiled
def advance(world: World, most: int) -> int:
    """Process up to ``most`` events; return DONE, PAUSED, or FULL if ``world.on`` needs more room.

    After PAUSED or FULL the caller calls again.
    """
    state, tasks, lists = world.state[0], world.tasks, world.lists
    while True:
        while state.free:
            task = lists[state.free - 1].free
            # checked before anything changes, so that the call after FULL starts the same task
            if not _has_room(world, tasks[task].kind):
                return FULL
            state.free -= 1
            _begin(world, task)
        if not state.queued or tasks[lists[0].heap].due_s > state.horizon:
            _settle(world)
            if not state.queued or tasks[lists[0].heap].due_s == np.inf:
                return DONE
            if most <= 0:
                return PAUSED
            state.now = tasks[lists[0].heap].due_s
            state.horizon = state.now * (1 + ROUNDING)
        most -= 1
        _happen(world, lists[0].heap)


@compiled
def _has_room(world: World, kind: int) -> bool:
    """Return whether ``world.on`` has a place for a task of this kind on its device and on all its links."""
    one, room = world.kinds[kind], world.on.shape[1]
    if one.device >= 0 and world.rows[one.device].count == room:
        return False
    for at in range(one.first_link, world.kinds[kind + 1].first_link):
        if world.rows[world.crossings[at].link].count == room:
            return False
    return True


@compiled
def _begin(world: World, number: int) -> None:
    """Start a task. One without work ends at once; a flow gets its rate when the moment is settled."""
    task, state = world.tasks[number], world.state[0]
    kind = world.kinds[task.kind]
    task.start_s = task.since_s = state.now
    task.left, task.rate = kind.amount, 0.0
    if kind.amount <= 0:
        _end(world, number)
    elif not kind.flows:
        pace = 1.0
        if kind.device >= 0:
            pace = max(0.0, 1.0 - world.rows[kind.device].held)
            _join(world, kind.device, number)
        _set_rate(world, number, pace)
    else:
        for at in range(kind.first_link, world.kinds[task.kind + 1].first_link):
            crossing = world.crossings[at]
            row = world.rows[crossing.link]
            _join(world, crossing.link, number)
            row.load += crossing.weight * kind.alone_rate
            if row.load > row.capacity * (1 + ROUNDING):
                _shift(world, crossing.link)
        world.lists[state.fresh].fresh = number
        state.fresh += 1
        _hold(world, task.kind, kind.held_fraction)


@compiled
def _happen(world: World, number: int) -> None:
    """Process the earliest event of the heap: the end or the arrival of task ``number``."""
    task = world.tasks[number]
    kind = world.kinds[task.kind]
    _take_first(world)
    if not np.isnan(task.end_s):
        _arrive(world, number)
        return
    if kind.device >= 0:
        _leave(world, kind.device, number)
    for at in range(kind.first_link, world.kinds[task.kind + 1].first_link):
        crossing = world.crossings[at]
        row = world.rows[crossing.link]
        if row.load > row.capacity * (1 + ROUNDING):
            _shift(world, crossing.link)
        _leave(world, crossing.link, number)
        # an empty link is reset to zero, or rounding would add up
        row.load = row.load - crossing.weight * kind.alone_rate if row.count else 0.0
    _end(world, number)


@compiled
def _end(world: World, number: int) -> None:
    """End a task: its last byte has left, or its computation is over. It arrives after its latency."""
    task, state = world.tasks[number], world.state[0]
    latency_s = world.kinds[task.kind].latency_s
    state.ended += 1
    task.end_s, task.arrival_s = state.now, state.now + latency_s
    for at in range(task.on_end, world.tasks[number + 1].first):
        _release(world, world.followers[at])
    if latency_s > 0:
        _schedule(world, number, task.arrival_s)
    else:
        _arrive(world, number)


@compiled
def _arrive(world: World, number: int) -> None:
    task = world.tasks[number]
    kind = world.kinds[task.kind]
    if kind.amount > 0:
        _hold(world, task.kind, -kind.held_fraction)
    for at in range(task.first, task.on_end):
        _release(world, world.followers[at])


@compiled
def _release(world: World, number: int) -> None:
    """Count down the tasks that task ``number`` waits for; at zero it may start."""
    task, state = world.tasks[number], world.state[0]
    task.waits -= 1
    if not task.waits:
        world.lists[state.free].free = number
        state.free += 1


@compiled
def _hold(world: World, kind: int, fraction: float) -> None:
    """Add ``fraction`` to the held share of a flow's devices and change the pace of their computations.

    The fraction is positive when the flow starts and negative when its last byte arrives.
    """
    if not fraction:
        return
    for at in range(world.kinds[kind].first_held, world.kinds[kind + 1].first_held):
        device = world.holds[at]
        row = world.rows[device]
        row.held += fraction
        if abs(row.held) < ROUNDING:
            row.held = 0.0
        for place in range(row.count):
            _set_rate(world, world.on[device, place], max(0.0, 1.0 - row.held))


@compiled
def _settle(world: World) -> None:
    """Set the rates of fresh flows, and of flows connected to a change through links that are or were over."""
    state, lists = world.state[0], world.lists
    if state.shifted:
        flows, links = _reached(world)
        _fill(world, flows, links)
    else:
        for at in range(state.fresh):
            task = lists[at].fresh
            _set_rate(world, task, world.kinds[world.tasks[task].kind].alone_rate)
    state.fresh = state.shifted = 0


@compiled
def _reached(world: World) -> tuple[int, int]:
    """Collect in the columns ``met`` what changes can affect; return the numbers of flows and links.

    The search starts at shifted links and fresh flows. From a flow it goes on only to links that are over.
    """
    state, tasks, rows, kinds = world.state[0], world.tasks, world.rows, world.kinds
    state.mark += 1
    flows = links = 0
    for at in range(state.shifted):
        links = _meet_link(world, rows[at].shifted, links)
    for at in range(state.fresh):
        flows = _meet_flow(world, world.lists[at].fresh, flows)
    next_flow = next_link = 0
    while next_flow < flows or next_link < links:
        if next_link < links:
            link = rows[next_link].met
            next_link += 1
            for place in range(rows[link].count):
                flows = _meet_flow(world, world.on[link, place], flows)
        else:
            kind = tasks[world.lists[next_flow].met].kind
            next_flow += 1
            for at in range(kinds[kind].first_link, kinds[kind + 1].first_link):
                link = world.crossings[at].link
                if rows[link].load > rows[link].capacity * (1 + ROUNDING):
                    links = _meet_link(world, link, links)
    return flows, links


@compiled
def _meet_flow(world: World, number: int, flows: int) -> int:
    if world.tasks[number].mark == world.state[0].mark:
        return flows
    world.tasks[number].mark = world.state[0].mark
    world.lists[flows].met = number
    return flows + 1


@compiled
def _meet_link(world: World, link: int, links: int) -> int:
    if world.rows[link].mark == world.state[0].mark:
        return links
    world.rows[link].mark = world.state[0].mark
    world.rows[links].met = link
    return links + 1


@compiled
def _fill(world: World, flows: int, links: int) -> None:
    """Set max-min fair rates of the ``met`` flows by progressive filling over the ``met`` links.

    No other link limits these flows below their rates alone.
    """
    tasks, kinds, rows, crossings, lists = world.tasks, world.kinds, world.rows, world.crossings, world.lists
    mark, rising = world.state[0].mark, flows
    for at in range(links):
        rows[rows[at].met].share = rows[rows[at].met].capacity
    while rising:
        limit = np.inf
        for at in range(links):
            rows[rows[at].met].weight = 0.0
        for at in range(rising):
            kind = tasks[lists[at].met].kind
            limit = min(limit, kinds[kind].alone_rate)
            for place in range(kinds[kind].first_link, kinds[kind + 1].first_link):
                rows[crossings[place].link].weight += crossings[place].weight
        for at in range(links):
            row = rows[rows[at].met]
            if row.weight > 0:
                limit = min(limit, row.share / row.weight)
        for at in range(links):
            row = rows[rows[at].met]
            # -1 marks a full link; every flow on it stops at this limit
            if row.weight > 0 and row.share <= limit * (1 + ROUNDING) * row.weight:
                row.weight = -1.0
        still = 0
        for at in range(rising):
            number = lists[at].met
            kind = tasks[number].kind
            first, last = kinds[kind].first_link, kinds[kind + 1].first_link
            stops = kinds[kind].alone_rate <= limit * (1 + ROUNDING)
            for place in range(first, last):
                row = rows[crossings[place].link]
                stops = stops or (row.mark == mark and row.weight < 0)
            if not stops:
                lists[still].met = number
                still += 1
                continue
            for place in range(first, last):
                row = rows[crossings[place].link]
                if row.mark == mark:
                    row.share = max(0.0, row.share - limit * crossings[place].weight)
            _set_rate(world, number, limit)
        rising = still


@compiled
def _set_rate(world: World, number: int, rate: float) -> None:
    """Book the progress up to now, then set the rate and the time of the end (inf at rate 0)."""
    task, now = world.tasks[number], world.state[0].now
    if rate == task.rate and task.place >= 0:
        return
    passed = now - task.since_s
    if passed > 0 and task.rate > 0:
        task.left = max(0.0, task.left - task.rate * passed)
    task.since_s, task.rate = now, rate
    _schedule(world, number, now + task.left / rate if rate > 0 else np.inf)


@compiled
def _shift(world: World, link: int) -> None:
    """Note that the flows of a link may get other rates."""
    row, state = world.rows[link], world.state[0]
    # −1 − mark says that it is noted since the last settling; ``_meet_link`` uses +mark in the same field
    if row.mark != -1 - state.mark:
        row.mark = -1 - state.mark
        world.rows[state.shifted].shifted = link
        state.shifted += 1


@compiled
def _join(world: World, row: int, number: int) -> None:
    world.on[row, world.rows[row].count] = number
    world.rows[row].count += 1


@compiled
def _leave(world: World, row: int, number: int) -> None:
    world.rows[row].count -= 1
    last = world.rows[row].count
    for at in range(last):
        if world.on[row, at] == number:
            world.on[row, at] = world.on[row, last]
            return


@compiled
def _schedule(world: World, number: int, time_s: float) -> None:
    """Put task ``number``, which ends or arrives at ``time_s``, into the heap or move it there."""
    task, state = world.tasks[number], world.state[0]
    task.due_s = time_s
    if task.place < 0:
        task.place = state.queued
        state.queued += 1
    _up(world, number)
    _down(world, number)


@compiled
def _take_first(world: World) -> None:
    """Remove the first task from the heap."""
    state, lists = world.state[0], world.lists
    world.tasks[lists[0].heap].place = -1
    state.queued -= 1
    if state.queued:
        last = lists[state.queued].heap
        world.tasks[last].place = 0
        _down(world, last)


@compiled
def _up(world: World, number: int) -> None:
    tasks, lists, at = world.tasks, world.lists, world.tasks[number].place
    while at and tasks[number].due_s < tasks[lists[(at - 1) // 2].heap].due_s:
        lists[at].heap = lists[(at - 1) // 2].heap
        tasks[lists[at].heap].place = at
        at = (at - 1) // 2
    lists[at].heap, tasks[number].place = number, at


@compiled
def _down(world: World, number: int) -> None:
    tasks, lists, size, at = world.tasks, world.lists, world.state[0].queued, world.tasks[number].place
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and tasks[lists[child + 1].heap].due_s < tasks[lists[child].heap].due_s:
            child += 1
        if tasks[lists[child].heap].due_s >= tasks[number].due_s:
            break
        lists[at].heap = lists[child].heap
        tasks[lists[at].heap].place = at
        at = child
    lists[at].heap, tasks[number].place = number, at
