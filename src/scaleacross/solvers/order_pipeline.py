"""The best order of a pipeline step for given times, links and memory, with a lower bound.

An order says what each rank computes next. The search has three parts:

1. Lower bound: heads and tails with the lags that memory imposes, one rank and one link at a time
   (``pipeline_order.bounds``).
2. List scheduling by a few rules, the offsets of a periodic steady state among them, and local search over the rules
   (``greedy``, ``periodic``, ``climb``). Orders of the schedule generators and user-supplied orders join.
3. CP-SAT on the whole order while it is small enough, large-neighbourhood search otherwise
   (``model``, ``neighbourhood``).

The search ends when an order reaches the bound: that is the proof. The reported objective is the order as timed by
``cost_models.pipeline.timing``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from scaleacross.errors import VerificationError
from scaleacross.schedules.pipeline import PipelineSchedule
from scaleacross.schedules.pipeline.check import check
from scaleacross.solvers.pipeline_order.bounds import Windows, earliest_and_latest, lower_bound
from scaleacross.solvers.pipeline_order.climb import Found, best_rule, climb, first_rules
from scaleacross.solvers.pipeline_order.greedy import ListScheduler
from scaleacross.solvers.pipeline_order.known import fitting_schedules
from scaleacross.solvers.pipeline_order.model import OrderModel
from scaleacross.solvers.pipeline_order.neighbourhood import search_neighbourhoods
from scaleacross.solvers.pipeline_order.periodic import steady_rule
from scaleacross.solvers.pipeline_order.problem import OrderProblem, step_s
from scaleacross.solvers.pipeline_order.streams import Streams, make_streams
from scaleacross.solvers.place_parallelism import never
from scaleacross.solvers.until import Until
from scaleacross.spec.progress import Progress

GREEDY_S: Final = 1.5
"""Most seconds for rules and their local search, which also get at most a fourth of the time limit ..."""
GREEDY_SHARE: Final = 0.4
"""... or this share of the time limit, where the order is too large for CP-SAT as a whole."""
WHOLE_COMPUTATIONS: Final = 2_000
"""Up to this many computations, CP-SAT gets the whole order first."""
WHOLE_SHARE: Final = 0.5
"""... for this share of the time that is left; neighbourhoods get the rest."""
PROVED_RATIO: Final = 1e-4
"""A gap up to this counts as optimal: times without a common tick are rounded by less."""

_ROUNDING: Final = 1e-9

Method = Literal["greedy", "whole", "neighbourhoods"]
METHODS: Final[tuple[Method, ...]] = ("greedy", "whole", "neighbourhoods")


@dataclass(frozen=True)
class PipelineOrder:
    """The best order found.

    Attributes:
        schedule: the order; ``check`` has proved it legal.
        status: ``optimal`` if the gap is at most ``PROVED_RATIO``, else ``time_limit``.
        objective_s: seconds of the step in this order.
        bound_s: lower bound on the step of any order of this problem.
    """

    schedule: PipelineSchedule
    status: Literal["optimal", "time_limit"]
    objective_s: float
    bound_s: float

    @property
    def gap(self) -> float:
        """(objective − bound) / objective."""
        return (self.objective_s - self.bound_s) / self.objective_s


def order_pipeline(
    problem: OrderProblem,
    time_limit_s: float = 60.0,
    *,
    seed: int = 0,
    methods: Sequence[Method] = METHODS,
    starts: Sequence[PipelineSchedule] = (),
    report: Callable[[Progress], None] = lambda progress: None,
    stopped: Callable[[], bool] = never,
) -> PipelineOrder:
    """The best order of ``problem``'s computations.

    Args:
        methods: stages of the search that may run; ``greedy`` always does.
        starts: further orders to start from, legal and within memory.
        report: called at every improvement.
        stopped: polled as often as the clock; once true, the search ends as if its time were over.

    Raises:
        VerificationError: one of ``starts`` is illegal; or the bound exceeds the order's time, which would be a defect.
    """
    search = _Search(make_streams(problem), Until.within(time_limit_s, stopped=stopped), seed, report)
    for schedule in (*starts, *fitting_schedules(search.streams)):
        search.offer(schedule)
    is_small = problem.num_microbatches * len(search.streams.streams) <= WHOLE_COMPUTATIONS
    search.greedy(min(GREEDY_S, time_limit_s / 4) if is_small else GREEDY_SHARE * time_limit_s)
    if "whole" in methods and is_small:
        search.whole(WHOLE_SHARE if "neighbourhoods" in methods else 1.0)
    if "neighbourhoods" in methods:
        search.neighbourhoods()
    return search.result()


@dataclass
class _Search:
    """State of one search; all times in ticks."""

    streams: Streams
    until: Until
    seed: int
    report: Callable[[Progress], None]
    began: float = field(default_factory=time.perf_counter)
    best: Found | None = None
    improvements: int = 0

    def __post_init__(self) -> None:
        self.scheduler = ListScheduler(self.streams)
        self.windows: Windows = earliest_and_latest(self.streams)
        self.lower = lower_bound(self.streams, self.windows)

    def offer(self, schedule: PipelineSchedule) -> None:
        """Keep a given order if it is better."""
        check(schedule)
        starts = self.streams.starts_of(schedule)
        self._keep(Found(self.scheduler.step(starts), starts))

    def greedy(self, limit_s: float) -> None:
        """Rules, a periodic rule where the step is long, and local search from the best of them."""
        found = best_rule(self.scheduler, first_rules(self.streams, self.windows))
        if found.ticks > self.lower and self.streams.count > 2 * self.streams.problem.num_ranks:
            rule = steady_rule(self.streams, min(limit_s, GREEDY_S) / 2, self.seed, self.until.stopped)
            if rule:
                found = min(found, Found(*self.scheduler.run(rule), rule), key=lambda f: f.ticks)
        left = replace(self.until, end_s=self.began + limit_s).left
        self._keep(climb(self.scheduler, found, self.lower, left, self.seed))

    def whole(self, share: float) -> None:
        """CP-SAT on the whole order."""
        best = self._best()
        if best.ticks <= self.lower or (left := self.until.left()) <= 0:
            return
        model = OrderModel(self.streams, self.windows, self.lower, best.ticks, best.starts)
        result = model.solve(left * share, self.seed, self.until.stopped, self._tell)
        self.lower = max(self.lower, result.bound)
        if result.starts:
            self._keep(Found(self.scheduler.step(result.starts), result.starts))

    def neighbourhoods(self) -> None:
        """Large-neighbourhood search until the time is up."""
        found = search_neighbourhoods(
            self.scheduler, self.windows, self._best(), self.lower, self.until, self.seed, self._tell
        )
        self._keep(found)

    def result(self) -> PipelineOrder:
        """The best order, timed and checked."""
        problem, best = self.streams.problem, self._best()
        schedule = self.streams.schedule(best.starts)
        check(schedule)
        objective_s, bound_s = step_s(problem, schedule), self.lower * self.streams.tick_s
        if bound_s > objective_s * (1 + _ROUNDING):
            raise VerificationError(f"the order takes {objective_s} s, less than its lower bound of {bound_s} s")
        proved = objective_s - bound_s <= PROVED_RATIO * objective_s
        return PipelineOrder(
            schedule=schedule,
            status="optimal" if proved else "time_limit",
            objective_s=objective_s,
            bound_s=min(bound_s, objective_s),
        )

    def _best(self) -> Found:
        if self.best is None:
            raise ValueError("greedy runs first")
        return self.best

    def _keep(self, found: Found) -> None:
        """Time ``found`` with its messages in the order of the computations, and keep it if it is better.

        CP-SAT need not respect that order of messages.
        """
        starts = self.streams.starts_of(self.streams.schedule(found.starts))
        found = Found(self.scheduler.step(starts), starts, found.rule)
        if self.best is None or found.ticks < self.best.ticks:
            self.best = found
            self._tell(found.ticks)

    def _tell(self, ticks: int) -> None:
        self.improvements += 1
        self.report(
            Progress(
                stage="ordering",
                done=self.improvements,
                total=None,
                incumbent_s=ticks * self.streams.tick_s,
                bound_s=self.lower * self.streams.tick_s,
                elapsed_s=time.perf_counter() - self.began,
            )
        )
