"""Result of a baseline: a decision that the cost model can time, or the reason why there is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from scaleacross.solvers.work_limit import count_one
from scaleacross.spec.plan import Decision
from scaleacross.workloads.problem import Problem


@dataclass(frozen=True)
class Outcome:
    """``decision`` is None when the rule finds nothing; ``reason`` then says why. ``complete``: no time limit cut it short."""

    decision: Decision | None = None
    reason: str = ""
    complete: bool = True


@dataclass(frozen=True)
class Clock:
    """A time limit that started when the clock was made, in seconds of ``now``."""

    limit_s: float
    now: Callable[[], float] = time.perf_counter
    began: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "began", self.now())

    def count(self) -> None:
        """Count a step time that a rule computes, or an allocation on which it estimates some, for limits in work."""
        count_one(self.now)

    @property
    def over(self) -> bool:
        """Whether the limit has passed."""
        return self.now() - self.began > self.limit_s

    def is_over_for(self, decision: Decision | None) -> bool:
        """Return whether the limit has passed; without a decision so far the limit is twice as long."""
        return self.now() - self.began > self.limit_s * (2 if decision is None else 1)


@dataclass(frozen=True)
class Baseline:
    """A published rule for running a job.

    Attributes:
        title: one line for a table.
        source: the publication or product whose description the rule follows.
        decide: the rule; the clock ends it early with the best decision so far.
    """

    title: str
    source: str
    decide: Callable[[Problem, Clock], Outcome]
