"""The arrays of a simulation run: tasks, kinds of tasks, and links, as records that ``event_loop`` changes in place.

A few arrays of records are faster than many of numbers: compiled code counts references to every array at every call.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Records = Any  # a structured array; numpy's types do not know its fields

DONE: Final = 0
PAUSED: Final = 1
FULL: Final = 2
"""Results of ``advance``: all has ended, no events are left of those allowed, or ``World.on`` lacks room."""

TASK: Final = np.dtype(
    [
        ("start_s", "f8"),
        ("end_s", "f8"),
        ("arrival_s", "f8"),
        ("left", "f8"),  # remaining amount at ``since_s``
        ("rate", "f8"),  # progress per second from then on
        ("since_s", "f8"),
        ("due_s", "f8"),  # when it ends or arrives next
        ("place", "i8"),  # in the heap; -1: not there
        ("waits", "i8"),  # number of tasks that it still waits for
        ("kind", "i8"),
        ("first", "i8"),  # followers[first:on_end] wait for its arrival,
        ("on_end", "i8"),  # followers[on_end:first of the next task] for its end
        ("mark", "i8"),  # number of the settling that saw it last
    ]
)
"""One task; a sentinel closes the array."""
LISTS: Final = np.dtype([(name, "i8") for name in ("heap", "free", "fresh", "met")])
"""Lists of task numbers, one per column: a binary heap by ``due_s``, tasks that may start, flows that began at this
moment, and flows whose rates are recomputed (a *settling*)."""
KIND: Final = np.dtype(
    [
        ("flows", "?"),
        ("amount", "f8"),  # seconds of a computation, bytes of a flow
        ("alone_rate", "f8"),  # rate of a flow without other flows, bytes/s
        ("latency_s", "f8"),
        ("device", "i8"),  # row of a computation's device; -1 where no flow ever holds it
        ("held_fraction", "f8"),
        ("first_link", "i8"),  # index of its first crossing
        ("first_held", "i8"),  # index of the first device that it holds
    ]
)
"""Facts that equal tasks share; a sentinel closes the array."""
CROSSING: Final = np.dtype([("link", "i8"), ("weight", "f8")])
ROW: Final = np.dtype(
    [
        ("capacity", "f8"),  # of a link
        ("load", "f8"),  # bytes/s if all its flows ran at their rates alone
        ("share", "f8"),  # in a settling: remaining capacity,
        ("weight", "f8"),  # and the sum of weights of flows that still rise; -1: full
        ("held", "f8"),  # of a device: the share that flows hold
        ("count", "i8"),  # flows on it, or computations
        ("mark", "i8"),
        ("shifted", "i8"),  # list: links whose flows may get other rates
        ("met", "i8"),  # list: links of a settling
    ]
)
"""One link; then one device that flows may hold a share of."""
STATE: Final = np.dtype(
    [("now", "f8"), ("horizon", "f8")]
    + [(name, "i8") for name in ("queued", "free", "fresh", "shifted", "ended", "mark")]
)


class World(NamedTuple):  # compiled code on disk knows this name: under another it could not be read
    """A run and its state; ``on``: (rows, room) flows or computations on each row; ``state``: one record."""

    tasks: Records
    lists: Records
    kinds: Records
    crossings: Records
    rows: Records
    holds: Ints
    followers: Ints
    on: Ints
    state: Records
