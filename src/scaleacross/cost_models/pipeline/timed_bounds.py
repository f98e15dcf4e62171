"""Families of pipeline schedules, and the activations that a rank holds under each.

ZBH1 without delay takes m(F+B) + (p−1)(F+B−2W) if W ≤ F (arXiv 2401.10241, tested). Symbols as in ``closed_form``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.pipeline.delay import microbatches_per_round
from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import SCHEDULES, generate
from scaleacross.schedules.pipeline.check import peak_in_flight
from scaleacross.spec.parallelism import ADDED_SCHEDULES, SCHEDULE_NAMES, ScheduleName

CLOSED: Final[tuple[ScheduleName, ...]] = ("GPipe", "1F1B", "Interleaved1F1B")
"""Schedules with a closed form (``pipeline.closed_form``)."""
MIRRORED: Final[tuple[ScheduleName, ...]] = ("Eager1F1B", "LoopedBFS")
"""Other schedules with a whole backward, whose cool-down mirrors their warm-up."""
WHOLE: Final[tuple[ScheduleName, ...]] = (*CLOSED, *MIRRORED)
"""All schedules with a whole backward: their weight gradients use no idle time."""
SPLIT: Final[tuple[ScheduleName, ...]] = (
    "ZBH1", "ZBH2", "InterleavedZeroBubble", "ZBVZeroBubble", "VHalf", "VMin", *ADDED_SCHEDULES,
)  # fmt: skip
"""Schedules without any whole backward, which compute input and weight gradients apart. Added ones may be so."""


def among(schedule_codes: Ints, names: Sequence[ScheduleName]) -> Bools:
    """Mask of the codes (indices of SCHEDULE_NAMES) that stand for one of these schedules, (n,)."""
    listed: Bools = np.array([name in names for name in SCHEDULE_NAMES])[schedule_codes]
    return listed


def folded(schedule_codes: Ints) -> Bools:
    """Mask of the codes of schedules whose stages form a V, (n,). Only schedules that occur are looked up."""
    listed = np.zeros(len(SCHEDULE_NAMES), dtype=bool)
    for code in np.flatnonzero(np.bincount(schedule_codes, minlength=0)):
        listed[code] = SCHEDULES[SCHEDULE_NAMES[code]].placement == "v"
    found: Bools = listed[schedule_codes]
    return found


def idle_share(schedule: ArrayLike, forward_s: ArrayLike, backward_s: ArrayLike) -> Floats:
    """Least idle time of a rank in a step without delay, as a share of (p−1)(F+B)/v."""
    name, F, B = np.asarray(schedule), np.asarray(forward_s, dtype=np.float64), np.asarray(backward_s)
    whole = np.isin(name, WHOLE)
    return np.asarray(np.where(whole, 1.0, F / np.where(F + B > 0, F + B, 1.0)))


def max_in_flight(
    schedule: ArrayLike, num_ranks: ArrayLike, num_microbatches: ArrayLike, num_chunks: ArrayLike, rank: ArrayLike
) -> Ints:
    """Chunk activations (1/v of a rank's layers, one micro-batch) that ``rank`` holds at once, also for W.

    Equal to the count of the generated orders; for schedules that packages add, the orders are counted. At most m·v.

    Raises:
        InputError: a schedule that is not in this table.
    """
    name, p, m, v = np.asarray(schedule), np.asarray(num_ranks), np.asarray(num_microbatches), np.asarray(num_chunks)
    s, a_round = np.asarray(rank), microbatches_per_round(p, m)
    table: dict[ScheduleName, Callable[[], Ints]] = {
        "1F1B": lambda: p - s,
        "Interleaved1F1B": lambda: (v - 1) * a_round + 2 * (p - s - 1) + 1,
        "GPipe": lambda: m,
        "Eager1F1B": lambda: 2 * (p - s) - 1,
        "LoopedBFS": lambda: m * v,
        "ZBH1": lambda: p,
        "ZBH2": lambda: 2 * p - 1,
        "InterleavedZeroBubble": lambda: (v - 1) * a_round + p,
        "ZBVZeroBubble": lambda: np.minimum(2 * p, m + 1 + s),
        "VHalf": lambda: 2 * (p // 2) + 2,
        "VMin": lambda: 2 * ((p + 1) // 3) + 2,
        "DualPipe": lambda: p + 1,
        "DualPipeV": lambda: 2 * p + 1,
    }
    known, held = np.isin(name, ADDED_SCHEDULES), np.zeros(np.broadcast(name, p, m, v, s).shape, dtype=np.int64)
    if known.any():
        held = _counted(name, p, m, v, s)
    for key, slots in table.items():
        if known.all():
            break
        here = name == key
        if here.any():
            known, held = known | here, np.where(here, slots(), held)
    if not known.all():
        unknown = name[~known].flat[0]
        raise InputError(f"schedule {unknown}: its activations in flight are not stated, so memory cannot be counted")
    return np.asarray(np.minimum(m * v, held), dtype=np.int64)


def _counted(*columns: NDArray[Any]) -> Ints:
    """Chunk activations that added schedules hold; 0 for the others. Columns name, p, m, v, rank broadcast."""
    rows = np.broadcast_arrays(*columns)
    out = np.zeros(rows[0].shape, dtype=np.int64)
    for place in zip(*np.nonzero(np.isin(rows[0], ADDED_SCHEDULES)), strict=True):
        name, p, m, v, rank = (row[place] for row in rows)
        out[place] = _peaks(str(name), int(p), int(m), int(v))[int(rank)]
    return out


@lru_cache(maxsize=65_536)
def _peaks(name: ScheduleName, num_ranks: int, num_microbatches: int, num_chunks: int) -> tuple[int, ...]:
    return peak_in_flight(generate(name, num_ranks, num_microbatches, num_chunks))
