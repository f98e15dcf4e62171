"""The state of a joint search: what was placed, what was dropped with which bound, and so what is proved so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Candidates, Floats, Ints
from scaleacross.machine_code import without_compiling
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.place_parallelism import PlacementDecision, Placer, Wanted, never
from scaleacross.solvers.pools import shares
from scaleacross.solvers.search_space import Refusals
from scaleacross.solvers.work_limit import WorkClock, count_one
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision
from scaleacross.spec.progress import Progress
from scaleacross.workloads.problem import Problem

ENOUGH: Final = 1e-4
"""Relative distance to a candidate's bound at which no further allocations are tried; the reported gap shows it."""


@dataclass(frozen=True)
class Placed:
    """A candidate with its exact placement and step time in seconds; ``user_supplied`` marks a user-supplied decision."""

    step_s: float
    candidates: Candidates
    bounded: Bounded
    placement: PlacementDecision
    placer: Placer
    user_supplied: bool = False


@dataclass
class Search:
    """State and outcome of a search."""

    problem: Problem
    time_limit_s: float
    seed: int
    gap_tolerance: float
    report: Callable[[Progress], None]
    clock: Callable[[], float] = time.perf_counter
    stopped: Callable[[], bool] = never
    share: float = 1.0
    """Share of a limit in seconds that the search itself may use; later steps get the rest."""
    below_s: float = np.inf
    """Only plans faster than this (s) are looked for."""
    ended: bool | None = None
    """None while the search runs; afterwards whether the limit or the caller ended it."""
    began: float = field(init=False)
    started: float = field(default_factory=time.perf_counter)
    best: Placed | None = None
    remembered: list[Placed] = field(default_factory=list)
    refusals: Refusals = field(default_factory=Refusals)
    num_candidates: int = 0
    several_stages: bool = False
    """Whether any candidate has a pipeline."""
    several_chunks: bool = False
    """Whether any candidate has pipeline ranks with several chunks."""
    num_too_large: int = 0
    num_headroom: int = 0
    """Candidates that only the job's headroom rules out and whose bound could still win."""
    headroom_bound_s: float = np.inf
    """Least bound of those candidates."""
    num_pruned: int = 0
    num_timed: int = 0
    """Exact step times computed."""
    open_bound_s: float = np.inf
    free_bound_s: float = np.inf
    any_layers_s: float | None = None
    """Least bound over the candidates left to be placed that holds for any split of their layers; None: not computed.

    The chunks of one rank are as equal as possible.
    """
    bound_violation_s: float = 0.0
    unbounded: list[tuple[Bounded, Bounder]] = field(default_factory=list)
    """Candidates whose coarse bound is below the bound of the whole search."""
    left_out: list[str] = field(default_factory=list)
    """Parts that the searched space and its bound exclude, and how to have them searched."""

    def __post_init__(self) -> None:
        self.clock = without_compiling(self.clock)
        self.began = self.clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began, or step times computed since (``work_limit``)."""
        return self.clock() - self.began

    @property
    def work_limit(self) -> int | None:
        """Step times that the search may compute; None: it is limited by seconds."""
        return int(self.time_limit_s) if isinstance(self.clock, WorkClock) else None

    @property
    def seconds(self) -> float:
        """Seconds of the search, for reports."""
        return self.elapsed_s if self.work_limit is None else time.perf_counter() - self.started

    @contextmanager
    def beyond_limit(self) -> Iterator[None]:
        """The time of the statements inside does not count against the limit."""
        since = self.clock()
        yield
        self.began += self.clock() - since

    @property
    def out_of_time(self) -> bool:
        """Whether the search's share of the limit has passed or the caller stopped it; fixed once it has ended."""
        if self.ended is not None:
            return self.ended
        if self.work_limit is None:
            return self.elapsed_s > self.time_limit_s * self.share or self.stopped()
        # a limit in work never ends a search without a plan: the work up to the first one is the same on every machine
        return (np.isfinite(self.incumbent_s) and self.elapsed_s >= self.time_limit_s) or self.stopped()

    @property
    def past_limit(self) -> bool:
        """Whether optional work must no longer begin: the whole limit in seconds has passed, or the caller stops."""
        return self.stopped() or (self.work_limit is None and self.elapsed_s > self.time_limit_s)

    def is_over(self) -> bool:
        """Stop callback for placers: ``out_of_time`` during the search, ``past_limit`` after it."""
        return self.out_of_time if self.ended is None else self.past_limit

    @property
    def incumbent_s(self) -> float:
        """Best step time so far; before the first plan, ``below_s``."""
        return self.best.step_s if self.best else self.below_s

    @property
    def target_s(self) -> float:
        """Bounds at or above this are pruned: the incumbent minus the gap that the user tolerates."""
        return self.incumbent_s * (1 - self.gap_tolerance) if np.isfinite(self.incumbent_s) else self.incumbent_s

    @property
    def bound_s(self) -> float:
        """Lower bound on the whole space: the incumbent, unless something dropped has a smaller bound."""
        return min(self.incumbent_s, self.open_bound_s)

    @property
    def refused(self) -> Counter[str]:
        """Refused candidates by reason, memory included."""
        return self.refusals.counts + Counter({"memory": self.num_too_large})

    def keep(self, bounds_s: Floats, counts: Ints | None = None) -> Bools:
        """Which rows are below the target, (n,); the others are dropped, ``counts`` candidates each (default 1)."""
        below = bounds_s < self.target_s
        self.drop(bounds_s[~below], None if counts is None else counts[~below])
        return below

    def fit(self, bounder: Bounder, needed_bytes: Floats, bounds_s: Callable[[Ints], Floats], counts: Ints) -> Bools:
        """Which rows fit in memory, (n,), ``counts`` candidates each.

        ``bounds_s`` gives the bounds of rows that only the job's headroom rules out, for ``spec.plan.Headroom``.
        """
        fits: Bools = needed_bytes <= bounder.capacity_bytes
        self.num_too_large += int(counts[~fits].sum())
        rows = np.flatnonzero(~fits & (needed_bytes <= bounder.room_bytes(0.0)))
        if len(rows):
            self.num_headroom += int(counts[rows].sum())
            self.headroom_bound_s = min(self.headroom_bound_s, float(bounds_s(rows).min()))
        return fits

    def drop(self, bounds_s: Floats, counts: Ints | None = None) -> None:
        """Leave rows unplaced; their least bound stays part of ``bound_s``."""
        self.num_pruned += len(bounds_s) if counts is None else int(counts.sum())
        self.open_bound_s = min(self.open_bound_s, float(bounds_s.min(initial=np.inf)))

    def tell(self, stage: str, done: int, total: int | None = None) -> None:
        """Report progress."""
        incumbent = self.incumbent_s if self.best else None
        bound = self.bound_s if np.isfinite(self.bound_s) else None
        self.report(Progress(stage, done, total, incumbent, bound, self.seconds))

    def place(
        self,
        bounded: Bounded,
        row: int,
        placer: Placer,
        slowest_axis: GridAxis | None = None,
        below_s: float = np.inf,
        in_time: bool = False,
        left: Callable[[float], None] | None = None,
        enough_s: float | None = None,
        patience: int | None = None,
    ) -> Placed | None:
        """Place one candidate exactly and remember it; None if no placement stays below ``below_s``.

        Args:
            in_time: stop at the time limit; the bound of the candidate then stays part of ``bound_s``.
            left: called with the bound on the step time of placements left out by their estimates (``Wanted``); None:
                none are left out.
            enough_s, patience: as in ``Wanted``. By default the search for a placement ends only near the candidate's
                bound.
        """
        count_one(self.clock)  # a candidate counts as work even if its bounds rule out every placement
        one = bounded.take(np.array([row]))
        free_s, bound_s = float(one.free_s[0]), float(one.bound_s[0])
        if enough_s is None:
            enough_s = bound_s * (1 + min(ENOUGH, self.gap_tolerance)) - free_s

        def stop() -> bool:
            """Whether to stop; if not, count the exact step time that the placer computes next."""
            over = in_time and self.is_over()
            if not over:
                self.num_timed += 1
                count_one(self.clock)
            return over

        of_step = None if left is None else lambda added_s: left(free_s + added_s)
        wanted = Wanted(slowest_axis, enough_s, below_s - free_s, stop, of_step, patience)
        decision = placer.place(one.candidates, one.work, wanted)
        if decision is None:
            if self.ended is None and in_time and self.is_over():
                self.open_bound_s = min(self.open_bound_s, bound_s)
            return None
        placed = Placed(free_s + decision.communication_s, one.candidates, one, decision, placer)
        if slowest_axis is None and self.ended is None:
            self.bound_violation_s = max(self.bound_violation_s, bound_s - placed.step_s)
            # an incomplete placement proves nothing about the candidate, so its bound stays open
            if not decision.complete:
                self.open_bound_s = min(self.open_bound_s, bound_s)
        return self.remember(placed)

    def remember(self, placed: Placed) -> Placed:
        """Remember a placed candidate, which becomes the incumbent if it is the fastest."""
        self.remembered.append(placed)
        if placed.step_s < self.incumbent_s:
            self.best = placed
        return placed


def forget(_: float) -> None:
    """``left`` callback for placements that are tried again later, or whose bounds nobody needs."""


def decision_of(placed: Placed) -> Decision:
    """The full decision of a placed candidate."""
    placement = Placement(axis_order=placed.placement.axis_order, fill=shares(placed.placement.fill))
    chosen: dict[str, object] = {"placement": placement}
    if placed.placement.balance is not None:
        chosen |= placed.placement.balance.stated
    return placed.candidates.decision(0).model_copy(update=chosen)
