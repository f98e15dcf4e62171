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
from scaleacross.solvers.candidates import Pricing
from scaleacross.solvers.fleets import shares
from scaleacross.solvers.place_parallelism import PlacementDecision, Placer, Wanted, never
from scaleacross.solvers.priced import Priced
from scaleacross.solvers.search_space import Refusals
from scaleacross.solvers.work_limit import WorkClock, count_one
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision
from scaleacross.spec.progress import Progress
from scaleacross.workloads.problem import Problem

ENOUGH: Final = 1e-4
"""A placement this close to its candidate's bound ends the trial of further fills; the reported gap shows it."""


@dataclass(frozen=True)
class Placed:
    """A candidate with its exact placement and step time in seconds; ``brought``: the caller's own decision."""

    step_s: float
    candidates: Candidates
    priced: Priced
    placement: PlacementDecision
    placer: Placer
    brought: bool = False


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
    """Of a limit in seconds what the search itself may take; the rest is for what comes after it."""
    below_s: float = np.inf
    """Nothing at or above this is looked for."""
    ended: bool | None = None
    """Once the search is over: whether the limit, or somebody, ended it."""
    began: float = field(init=False)
    started: float = field(default_factory=time.perf_counter)
    best: Placed | None = None
    pool: list[Placed] = field(default_factory=list)
    refusals: Refusals = field(default_factory=Refusals)
    num_candidates: int = 0
    several_stages: bool = False
    """Whether any of them has a pipeline."""
    several_chunks: bool = False
    """Whether any of them has pipeline ranks with several chunks."""
    num_too_large: int = 0
    num_headroom: int = 0
    """Of those too large, what fits without the job's headroom, and was not known to be slower."""
    headroom_bound_s: float = np.inf
    """Least bound of any of them."""
    num_pruned: int = 0
    num_timed: int = 0
    """Exact step times computed."""
    open_bound_s: float = np.inf
    free_bound_s: float = np.inf
    any_layers_s: float | None = None
    """Least bound of candidates that were left to be placed, however their layers are split (a rank's chunks as equal as
    possible); None: the search did not look at it."""
    bound_violation_s: float = 0.0
    unbounded: list[tuple[Priced, Pricing]] = field(default_factory=list)
    """Candidates whose coarse bound is below the bound of the whole search."""
    left_out: list[str] = field(default_factory=list)
    """What the searched space, and so its bound, does not hold, and how to have it searched."""

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
        """What runs inside takes no time of the search."""
        since = self.clock()
        yield
        self.began += self.clock() - since

    @property
    def out_of_time(self) -> bool:
        """Whether the search's share of the limit has passed, or somebody has stopped it; as it was when the search ended."""
        if self.ended is not None:
            return self.ended
        if self.work_limit is None:
            return self.elapsed_s > self.time_limit_s * self.share or self.stopped()
        # a limit in work never ends a search without a plan: what it takes to the first one is the same everywhere
        return (np.isfinite(self.incumbent_s) and self.elapsed_s >= self.time_limit_s) or self.stopped()

    @property
    def past_limit(self) -> bool:
        """Whether nothing that may be left out is begun any more: the whole limit in seconds has passed, or somebody stops."""
        return self.stopped() or (self.work_limit is None and self.elapsed_s > self.time_limit_s)

    def is_over(self) -> bool:
        """For placers that ask between exact prices: ``out_of_time``, and ``past_limit`` after the search."""
        return self.out_of_time if self.ended is None else self.past_limit

    @property
    def incumbent_s(self) -> float:
        """Best step time so far; before the first, what it must stay below."""
        return self.best.step_s if self.best else self.below_s

    @property
    def target_s(self) -> float:
        """Nothing with a bound of this or more is looked at: the incumbent less the gap that the user tolerates."""
        return self.incumbent_s * (1 - self.gap_tolerance) if np.isfinite(self.incumbent_s) else self.incumbent_s

    @property
    def bound_s(self) -> float:
        """Lower bound on the whole space: the incumbent, unless something with a smaller bound was left open."""
        return min(self.incumbent_s, self.open_bound_s)

    @property
    def refused(self) -> Counter[str]:
        """Refused candidates by reason, memory included."""
        return self.refusals.counts + Counter({"memory": self.num_too_large})

    def keep(self, bounds_s: Floats, counts: Ints | None = None) -> Bools:
        """Which rows may still beat the target; the others are dropped, ``counts`` candidates each (one by default)."""
        below = bounds_s < self.target_s
        self.drop(bounds_s[~below], None if counts is None else counts[~below])
        return below

    def fit(self, pricing: Pricing, needed_bytes: Floats, bounds_s: Callable[[Ints], Floats], counts: Ints) -> Bools:
        """Which rows fit, (n,), of ``counts`` candidates each; ``bounds_s`` of some rows is asked of those that only the job's
        headroom rules out, for ``spec.plan.Headroom``."""
        fits: Bools = needed_bytes <= pricing.capacity_bytes
        self.num_too_large += int(counts[~fits].sum())
        rows = np.flatnonzero(~fits & (needed_bytes <= pricing.room_bytes(0.0)))
        if len(rows):
            self.num_headroom += int(counts[rows].sum())
            self.headroom_bound_s = min(self.headroom_bound_s, float(bounds_s(rows).min()))
        return fits

    def drop(self, bounds_s: Floats, counts: Ints | None = None) -> None:
        """Leave rows unplaced; what their bounds allow stays visible in ``bound_s``."""
        self.num_pruned += len(bounds_s) if counts is None else int(counts.sum())
        self.open_bound_s = min(self.open_bound_s, float(bounds_s.min(initial=np.inf)))

    def tell(self, stage: str, done: int, total: int | None = None) -> None:
        """Report progress."""
        incumbent = self.incumbent_s if self.best else None
        bound = self.bound_s if np.isfinite(self.bound_s) else None
        self.report(Progress(stage, done, total, incumbent, bound, self.seconds))

    def place(
        self,
        priced: Priced,
        row: int,
        placer: Placer,
        slowest_axis: GridAxis | None = None,
        below_s: float = np.inf,
        in_time: bool = False,
        left: Callable[[float], None] | None = None,
        enough_s: float | None = None,
        patience: int | None = None,
    ) -> Placed | None:
        """Place one candidate exactly and remember it; None when no fill holds it or it cannot stay below ``below_s``.

        ``in_time``: not beyond the time limit; what its bound allows then stays visible. ``left``: told the bound on the step of
        placements left out by their estimates (``Wanted``); None: none are. ``enough_s``, ``patience``: of ``Wanted``, too;
        by default what is as good as the bound, and no end of it.
        """
        count_one(self.clock)  # a candidate is work, too, where its bounds leave nothing to be priced
        one = priced.take(np.array([row]))
        free_s, bound_s = float(one.free_s[0]), float(one.bound_s[0])
        if enough_s is None:
            enough_s = bound_s * (1 + min(ENOUGH, self.gap_tolerance)) - free_s

        def stop() -> bool:
            """Asked before every exact price, which is work."""
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
            if not decision.complete:
                self.open_bound_s = min(self.open_bound_s, bound_s)
        return self.remember(placed)

    def remember(self, placed: Placed) -> Placed:
        """Remember a placed candidate; it is the incumbent if it is faster."""
        self.pool.append(placed)
        if placed.step_s < self.incumbent_s:
            self.best = placed
        return placed


def forget(_: float) -> None:
    """For placements whose left out alternatives nobody asks for, or that are tried again later."""


def decision_of(placed: Placed) -> Decision:
    """The full decision of a placed candidate."""
    placement = Placement(axis_order=placed.placement.axis_order, fill=shares(placed.placement.fill))
    chosen: dict[str, object] = {"placement": placement}
    if placed.placement.balance is not None:
        chosen |= placed.placement.balance.stated
    return placed.candidates.decision(0).model_copy(update=chosen)
