"""Runs a task graph: ``run`` returns when every task starts, ends and arrives. Equal graphs give equal times.

The loop itself is compiled (``event_loop``). This file builds its arrays, runs it, and reports why a run could not end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from scaleacross.errors import InputError
from scaleacross.simulation.tasks import Floats, Ints, Task, TaskGraph, Timeline
from scaleacross.simulation.world import (
    CROSSING,
    DONE,
    FULL,
    KIND,
    LISTS,
    ROW,
    STATE,
    TASK,
    Records,
    World,
)

EVENTS: Final = 200_000  # between two reports of progress: some 50 ms
ROOM: Final = 16  # flows on a link that the first arrays have room for


def run(graph: TaskGraph, capacities: Floats, progress: Callable[[int, int], None] | None = None) -> Timeline:
    """Run all tasks; ``progress`` is called now and then with the number of ended tasks and of all tasks.

    Args:
        capacities: (links,) bytes/s.

    Raises:
        InputError: a flow can never end, because one of its links has no capacity, or tasks wait for one another.
    """
    from scaleacross.simulation.event_loop import advance  # late: it loads the compiler, which planning does not need

    world = world_of(graph, capacities)
    while (how := advance(world, EVENTS)) != DONE:
        if how == FULL:
            world = world._replace(on=np.concatenate([world.on, np.zeros_like(world.on)], axis=1))
        elif progress is not None:
            progress(int(world.state["ended"][0]), len(graph.of))
    tasks = world.tasks[:-1]
    if world.state["ended"][0] < len(tasks):
        raise InputError(_why_not(graph, world))
    return Timeline(graph.kinds, graph.of, *(tasks[name].copy() for name in ("start_s", "end_s", "arrival_s")))


def world_of(graph: TaskGraph, capacities: Floats) -> World:
    """Return the arrays of a run before its first event."""
    held = sorted({device for task in graph.kinds if task.held_fraction for device in task.holds})
    rows = np.zeros(len(capacities) + len(held), dtype=ROW)
    rows["capacity"][: len(capacities)] = capacities
    row_of = {device: len(capacities) + number for number, device in enumerate(held)}
    kinds, crossings, holds = _kinds(graph.kinds, capacities, row_of)
    tasks, followers = _tasks(graph)
    begins = np.flatnonzero(tasks["waits"][:-1] == 0)
    lists, state = np.zeros(len(tasks), dtype=LISTS), np.zeros(1, dtype=STATE)
    lists["free"][: len(begins)] = begins
    state["free"] = len(begins)
    on = np.zeros((len(rows), ROOM), dtype=np.int64)
    return World(tasks, lists, kinds, crossings, rows, holds, followers, on, state)


def _kinds(tasks: Sequence[Task], capacities: Floats, row_of: Mapping[int, int]) -> tuple[Records, Records, Ints]:
    """Return the kinds of tasks, their crossings of links, and the rows of the devices that they hold.

    Args:
        row_of: device -> row, for every device of which some flow holds a share.
    """
    paths = [task.path or () for task in tasks]
    held = [task.holds if task.held_fraction else () for task in tasks]
    kinds = np.zeros(len(tasks) + 1, dtype=KIND)
    own = kinds[:-1]
    own["flows"] = [task.path is not None for task in tasks]
    own["amount"] = [task.amount for task in tasks]
    own["alone_rate"] = [_alone(task, capacities) for task in tasks]
    own["latency_s"] = [task.latency_s for task in tasks]
    own["device"] = [-1 if task.device is None else row_of.get(task.device, -1) for task in tasks]
    own["held_fraction"] = [task.held_fraction for task in tasks]
    kinds["first_link"][1:] = np.cumsum([len(path) for path in paths])
    kinds["first_held"][1:] = np.cumsum([len(devices) for devices in held])
    crossings = np.array([hop for path in paths for hop in path], dtype=CROSSING)
    return kinds, crossings, np.array([row_of[device] for devices in held for device in devices], dtype=np.int64)


def _alone(task: Task, capacities: Floats) -> float:
    """Return the rate that a flow reaches alone, bytes/s; 1 for a computation."""
    if task.path is None:
        return 1.0
    return min([task.cap_bytes_per_s, *(float(capacities[link]) / weight for link, weight in task.path if weight > 0)])


def _tasks(graph: TaskGraph) -> tuple[Records, Ints]:
    """Return the tasks and their followers: of every task those that wait for its arrival, then for its end."""
    number = len(graph.of)
    waiting = np.repeat(np.arange(number), np.diff(graph.first_wait))
    ends = graph.waits < 0
    # 2·t counts waits for the arrival of task t, 2·t + 1 waits for its end
    what = 2 * np.where(ends, ~graph.waits, graph.waits) + ends
    bounds = np.zeros(2 * number + 1, dtype=np.int64)
    np.cumsum(np.bincount(what, minlength=2 * number), out=bounds[1:])
    tasks = np.zeros(number + 1, dtype=TASK)
    tasks["kind"][:-1], tasks["waits"][:-1] = graph.of, np.diff(graph.first_wait)
    tasks["first"], tasks["on_end"][:-1] = bounds[::2], bounds[1::2]
    tasks["place"] = -1
    for name in ("start_s", "end_s", "arrival_s"):
        tasks[name] = np.nan
    return tasks, waiting[np.argsort(what, kind="stable")]


def _why_not(graph: TaskGraph, world: World) -> str:
    """Return why some tasks have not ended, naming one of them."""
    tasks = world.tasks[:-1]
    endless = np.flatnonzero((tasks["waits"] == 0) & np.isnan(tasks["end_s"]))
    if len(endless):
        name = graph.kinds[graph.of[endless[0]]].name
        return f"'{name}' never ends: one of its links, or its device, has nothing left for it"
    stuck = int(np.flatnonzero(tasks["waits"] > 0)[0])
    return f"'{graph.kinds[graph.of[stuck]].name}' never starts: it waits for tasks that wait for it"
