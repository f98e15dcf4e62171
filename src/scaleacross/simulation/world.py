"""The arrays of a run: tasks, what equal tasks share, and links, as records that ``event_loop`` changes in place.

Few arrays of records are passed rather than many of numbers: the compiler counts references to every array at every call.
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
"""How a run returns: at its end, after so many events, or because a link has more flows than room."""

TASK: Final = np.dtype(
    [
        ("start_s", "f8"),
        ("end_s", "f8"),
        ("arrival_s", "f8"),
        ("left", "f8"),  # of its amount, at ``since_s``
        ("rate", "f8"),  # progress per second from then on
        ("since_s", "f8"),
        ("due_s", "f8"),  # when it ends or arrives next
        ("place", "i8"),  # in the heap; -1: not there
        ("waits", "i8"),  # for how many others it still waits
        ("kind", "i8"),
        ("first", "i8"),  # followers[first:on_end] wait for its arrival,
        ("on_end", "i8"),  # followers[on_end:first of the next task] for its end
        ("mark", "i8"),  # number of the settling that saw it last
    ]
)
"""One task; a sentinel closes the array."""
LISTS: Final = np.dtype([(name, "i8") for name in ("heap", "free", "fresh", "met")])
"""Lists of tasks, each a column: a binary heap by ``due_s``, those that may start, flows that began at this moment, flows of a
settling."""
KIND: Final = np.dtype(
    [
        ("flows", "?"),
        ("amount", "f8"),  # seconds of a computation, bytes of a flow
        ("alone_rate", "f8"),  # what a flow reaches alone, bytes/s
        ("latency_s", "f8"),
        ("device", "i8"),  # of a computation, a row; -1 where no flow ever holds its device
        ("held_fraction", "f8"),
        ("first_link", "i8"),  # of its crossings
        ("first_held", "i8"),  # of the devices that it holds
    ]
)
"""What equal tasks share; a sentinel closes the array."""
CROSSING: Final = np.dtype([("link", "i8"), ("weight", "f8")])
ROW: Final = np.dtype(
    [
        ("capacity", "f8"),  # of a link
        ("load", "f8"),  # bytes/s if all its flows had what they reach alone
        ("share", "f8"),  # in a settling: what is left of its capacity,
        ("weight", "f8"),  # and the weights of flows that still rise; -1: full
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
