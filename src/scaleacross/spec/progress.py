"""Progress of a running search, passed to the function given as ``plan(progress=...)``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

STOPPED_BY_HAND: Final = "the search was stopped by hand: what it had not placed by then is what the gap leaves open"
"""Note of a plan whose search its caller ended."""
ORDERS_STOPPED: Final = "the search for orders of the pipeline was stopped by hand: the plan is the best found by then"
"""Note of a plan whose refinement its caller ended."""


@dataclass(frozen=True)
class Progress:
    """A snapshot of the search.

    Attributes:
        stage: ``enumerating``, ``bounding`` or ``placing`` (prefixed by ``one building:`` for that search); ``moving
            layers``; ``ordering`` a pipeline step; ``simulating`` tasks.
        done: candidates handled in this stage, or orders found when ordering.
        total: candidates of this stage, None while unknown.
        incumbent_s: step time of the best plan so far, s; None before the first.
        bound_s: lower bound on the step time proved so far, s; None before the first.
        elapsed_s: seconds since the search began.
    """

    stage: str
    done: int
    total: int | None
    incumbent_s: float | None
    bound_s: float | None
    elapsed_s: float


def telling(progress: Callable[[Progress], None] | None) -> Callable[[str, int, int | None], None]:
    """Return a function that reports stage, done and total to ``progress``, if given, with the seconds since now."""
    began = time.monotonic()

    def tell(stage: str, done: int, total: int | None) -> None:
        if progress is not None:
            progress(Progress(stage, done, total, None, None, time.monotonic() - began))

    return tell
