"""Find the fastest member of a *family* of plans, the plans that a baseline's rule allows.

A team that has fixed how the axes lie over the network still tries degrees, micro-batch, recompute and the rest, and
keeps what runs fastest. Here the trial is the cost model. So each baseline gets the best settings that its own rule
allows.

Space        candidates of ``search_space`` (R1–R9) that the family's job and its ``allows`` leave, on the family's axis
             orders and allocations, with no axis crossing a level beyond its ``farthest``
Objective    exact step time (``plan_cost``), minimised
Method       pools in turns, each type by itself first, as in ``joint``; each pool tries a sample of partial candidates in its
             first turn, then all in ascending order of their computation, a block a turn;
             members are estimated in arrays (``fixed_placement``). The most promising of each block get exact step
             times at once. All others get them after the last block, from the lowest estimate up, unless their bound
             is not below the best

The result is the optimum of the family unless the clock ended the tuning (``Outcome.complete``). Where it has found
nothing, the tuning goes on for as long again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools, Candidates, Floats, Ints, concatenate
from scaleacross.cost_models.distinct import distinct
from scaleacross.cost_models.replica_kinds import KnownReplicas
from scaleacross.solvers.baselines.outcome import Clock, Outcome
from scaleacross.solvers.baselines.rules import AxisOrder
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.equal_ranks import equal_ranks_on
from scaleacross.solvers.fixed_placement import FixedPlacement
from scaleacross.solvers.place_parallelism import never
from scaleacross.solvers.pools import AcceleratorPool, Allocation, pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import Job
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.placement import holds_folded
from scaleacross.spec.plan import Decision
from scaleacross.units import human_bytes
from scaleacross.workloads.problem import Problem

PARTIAL_BLOCK: Final = 1024
"""Partial candidates that are expanded together."""
FREE_BLOCK: Final = 16_384
"""Fewest partial candidates timed without communication between two looks at the clock, a quarter of a second at most."""
ROW_BLOCK: Final = 128
"""Members that are estimated together. With 512 of them pools of two types see one block in 3 s. On every twelfth
point of the published design space production is 3 % faster with 128 (geometric mean, after 2.5 s)."""
SAMPLE: Final = 512
"""Partial candidates, evenly from least to most computation, of which members are tried before all others. Where inter-building
links decide, those with the least computation are bad, and a clock that ends the tuning would leave it with them. After
2.5 s production's Llama 3.1 8B on 4,096 accelerators in three regions takes 5.16 s without the sample, with it 0.94 s.
"""
GLANCES: Final = 4
"""Blocks of the sample's members that are tried."""
PROMISING: Final = 12
"""Members of a block that get exact step times before other blocks are looked at. With 2 or 6 crosspipe's plan of 405B
on 4,096 accelerators in six buildings took 42 s after 7 s of search, with 12 it took 31 s."""


def everything(candidates: Candidates) -> Bools:
    """Return True for every candidate."""
    return np.ones(len(candidates), dtype=bool)


@dataclass(frozen=True)
class Family:
    """Plans that a rule allows.

    Attributes:
        job: the job with what the family fixes (schedules, shard levels, pinned degrees).
        orders: axis orders, fastest first.
        allocations: returns the allocations that may hold given degrees on a pool.
        allows: returns which rows belong to the family by their degrees alone; must hold for a partial candidate if it holds
            for a candidate that it stands for.
        allows_split: returns which rows belong to it once dp is split and the shard level chosen.
        farthest: axis → outermost level that its groups may cross.
    """

    job: Job
    orders: tuple[AxisOrder, ...]
    allocations: Callable[[AcceleratorPool, Degrees], list[Allocation]]
    allows: Callable[[Candidates], Bools] = everything
    allows_split: Callable[[Candidates], Bools] = everything
    farthest: Mapping[str, LinkLevel] = field(default_factory=dict)


def tune(problem: Problem, family: Family, clock: Clock) -> Outcome:
    """Return the fastest member of a family, or why it has none."""
    tuning = _Tuning(problem, family, clock)
    for _ in zip_longest(*(tuning.on(pool) for pool in reversed(pools(problem.topology)))):
        if clock.is_over_for(tuning.best):
            break
    if tuning.best is not None:
        return Outcome(tuning.best, complete=not clock.over)
    return Outcome(None, tuning.why_none(), complete=not clock.over)


def partials_that_fit(
    space: SearchSpace,
    bounder: Bounder,
    allows: Callable[[Candidates], Bools],
    stop: Callable[[], bool] = never,
) -> tuple[Candidates, float]:
    """Return the partial candidates of which a candidate may fit, and the least bytes that any of all needs (inf without any).

    ``stop``: asked now and then; once true, the partial candidates that follow are left out.
    """
    parts, least = [], np.inf
    for partials in space.partials(Refusals()):
        if stop():
            break
        rows = partials.take(allows(partials))
        if len(rows):
            needed = bounder.partial_needed_bytes(rows)
            least = min(least, float(needed.min()))
            parts.append(rows.take(needed <= bounder.capacity_bytes))
    return concatenate(parts), least


class _Estimated(NamedTuple):
    """Members of a block on their allocations and orders: place, bound and estimate (s) of each."""

    block: Bounded
    places: Sequence[tuple[FixedPlacement, AxisOrder, int]]
    least_s: Floats
    guess_s: Floats

    def decision(self, index: int) -> tuple[FixedPlacement, Decision]:
        """Return one member's placement and decision."""
        placed, order, row = self.places[index]
        return placed, placed.placed(self.block.candidates, row, order)


@dataclass
class _Tuning:
    problem: Problem
    family: Family
    clock: Clock
    best: Decision | None = None
    best_s: float = np.inf
    least_bytes: float = np.inf
    capacity_bytes: float = 0.0
    fitted: bool = False
    _placed: dict[Allocation, FixedPlacement] = field(default_factory=dict)
    _known: KnownReplicas = field(default_factory=KnownReplicas)
    _allocations: dict[tuple[tuple[str, ...], tuple[int, ...]], list[Allocation]] = field(default_factory=dict)

    def on(self, pool: AcceleratorPool) -> Iterator[None]:
        """Tune on one pool: a first turn on the sample, then a block of partial candidates a turn."""
        if self._is_over():
            return
        bounder = equal_ranks_on(pool, self.family.job, self.problem.profile)
        space = SearchSpace(self.family.job, self.problem.profile, pool.num_accelerators, pool.unit)
        partials, least = partials_that_fit(space, bounder, self.family.allows, self._is_over)
        self.least_bytes = min(self.least_bytes, least)
        self.capacity_bytes = max(self.capacity_bytes, bounder.capacity_bytes)
        if len(partials) and self.best is not None:
            partials = partials.take(bounder.partial_floor_s(partials) < self.best_s)
        free_s = self._free_s(partials, bounder) if len(partials) else None
        if free_s is None:
            return
        order, left = np.argsort(free_s, kind="stable"), list[_Estimated]()
        sample = partials.take(order[:: -(-len(order) // SAMPLE)])
        for _ in islice(self._on_partials(sample, space, bounder), GLANCES):
            pass
        yield
        for start in range(0, len(order), PARTIAL_BLOCK):
            rows = order[start : start + PARTIAL_BLOCK]
            if free_s[rows[0]] >= self.best_s:
                break
            left += self._on_partials(partials.take(rows[free_s[rows] < self.best_s]), space, bounder)
            yield
        self._try_all(left)

    def _on_partials(self, partials: Candidates, space: SearchSpace, bounder: Bounder) -> Iterator[_Estimated]:
        """Yield ``_try_promising`` of the candidates that ``partials`` stand for."""
        if not self._is_over():
            promising = bounder.partial_bound_s(partials) < self.best_s
            if promising.any() and not self._is_over():
                yield from self._try_promising(space.expand(partials.take(promising), Refusals()), bounder)

    def _is_over(self) -> bool:
        return self.clock.is_over_for(self.best)

    def _free_s(self, partials: Candidates, bounder: Bounder) -> Floats | None:
        """Return the computation of every partial candidate, s, (n,); None when time is over.

        Parts are whole pipeline degrees, whose partial candidates share most of the work.
        """
        parts: list[Floats] = []
        start = 0
        for end in (*(np.flatnonzero(np.diff(partials.pp)) + 1).tolist(), len(partials)):
            if end - start < FREE_BLOCK and end < len(partials):
                continue
            if self._is_over():
                return None
            parts.append(bounder.partial_free_s(partials.take(np.arange(start, end))))
            start = end
        return np.concatenate(parts)

    def why_none(self) -> str:
        """Return why no plan was found, after all pools."""
        if self._is_over():
            return "the limit ended its rule before the first plan"
        if not np.isfinite(self.least_bytes):
            return "its rules leave no legal degrees"
        if not self.fitted:
            short = f"{human_bytes(self.least_bytes)} of {human_bytes(self.capacity_bytes)}"
            return f"does not fit in memory: needs {short} per accelerator at least"
        return "no placement keeps its axes inside the levels that it allows"

    def _try_promising(self, rows: Candidates, bounder: Bounder) -> Iterator[_Estimated]:
        """Estimate the members, block by block, and compute exact step times of the most promising ones."""
        rows = rows.take(self.family.allows(rows) & self.family.allows_split(rows))
        rows = rows.take(bounder.needed_bytes(rows) <= bounder.capacity_bytes) if len(rows) else rows
        self.fitted |= len(rows) > 0
        rows = rows.take(self._held(rows, bounder.pool))
        if not len(rows):
            return
        bounded = bounder.coarse(rows)
        if self._is_over():
            return
        for block in _ascending(self._on_orders(bounded.take(bounded.bound_s < self.best_s), bounder)):
            block = block.take(block.bound_s < self.best_s)
            if not len(block.bound_s) or self._is_over():
                return
            found = self._estimated(block, bounder.pool)
            self._try_some(found, np.argsort(found.guess_s, kind="stable")[:PROMISING].tolist())
            yield found

    def _held(self, rows: Candidates, pool: AcceleratorPool) -> Bools:
        """Return which members some allocation of the family holds, (n,)."""
        kinds = distinct(*(getattr(rows, axis) for axis in Degrees.model_fields))
        degrees = zip(*(getattr(rows, axis)[kinds.first].tolist() for axis in Degrees.model_fields), strict=True)
        return np.array([len(self._allocations_of(pool, some)) > 0 for some in degrees], dtype=bool)[kinds.code]

    def _try_all(self, left: Sequence[_Estimated]) -> None:
        """Compute exact step times of all that may be faster than the best, lowest estimate first."""
        of = np.repeat(np.arange(len(left)), [len(found.places) for found in left])
        within = np.concatenate([np.arange(len(found.places)) for found in left]) if left else of
        guesses = np.concatenate([found.guess_s for found in left]) if left else np.zeros(0)
        for index in np.argsort(guesses, kind="stable").tolist():
            if self._is_over():
                return
            self._try_some(left[of[index]], [int(within[index])])

    def _on_orders(self, bounded: Bounded, bounder: Bounder) -> Bounded:
        """Return the members that may still win, with their least bound on the family's orders for any allocation."""
        if not len(bounded.bound_s):
            return bounded
        least_s = bounder.order_bounds_s(bounded.candidates, bounded.work, self.family.orders).min(axis=0)
        tight = replace(bounded, bound_s=np.maximum(bounded.bound_s, bounded.free_s + least_s))
        return tight.take(tight.bound_s < self.best_s)

    def _estimated(self, block: Bounded, pool: AcceleratorPool) -> _Estimated:
        """Return every (member, allocation, order) of a block, without members whose axes cross too far."""
        holding: dict[Allocation, list[int]] = {}
        columns = (getattr(block.candidates, axis).tolist() for axis in Degrees.model_fields)
        for row, degrees in enumerate(zip(*columns, strict=True)):
            for allocation in self._allocations_of(pool, degrees):
                holding.setdefault(allocation, []).append(row)
        alike = len(pool.accelerators) == 1  # bounds on a fill assume its slowest type on all ranks
        orders, places, parts, guesses = self.family.orders, [], [np.zeros(0)], [np.zeros(0)]
        for allocation, held in holding.items():
            if self._is_over():
                break
            rows, placed = np.array(held), self._placed_on(pool, allocation)
            near = self._near_enough(placed, block.candidates.take(rows))
            rows, near = rows[near.any(axis=0)], near[:, near.any(axis=0)]
            if not len(rows):
                continue
            self.clock.count()  # estimating a few members on one fill takes about as long as a step time
            members = block.take(rows)
            figures = placed.order_figures_s(members.candidates, members.work, orders)
            for order, is_near, bounds, estimates in zip(orders, near, *figures, strict=True):
                parts.append(np.where(is_near, members.free_s + bounds if alike else members.bound_s, np.inf))
                guesses.append(np.where(is_near, members.free_s + estimates, np.inf))
                places += [(placed, order, row) for row in rows.tolist()]
        return _Estimated(block, places, np.concatenate(parts), np.concatenate(guesses))

    def _try_some(self, found: _Estimated, indices: Sequence[int]) -> None:
        """Compute exact step times of those that may be faster than the best."""
        for index in indices:
            if found.least_s[index] < self.best_s:
                self.clock.count()
                placed, decision = found.decision(index)
                step_s = placed.step_s(decision, self._known, self.best_s)
                found.least_s[index] = step_s  # not again
                if step_s < self.best_s:
                    self.best, self.best_s = decision, step_s

    def _placed_on(self, pool: AcceleratorPool, allocation: Allocation) -> FixedPlacement:
        if allocation not in self._placed:
            problem = self.problem
            self._placed[allocation] = FixedPlacement.of(
                pool, allocation, self.family.job, problem.profile, network="library"
            )
        return self._placed[allocation]

    def _near_enough(self, placed: FixedPlacement, candidates: Candidates) -> Bools:
        """Return which members have no axis that crosses a level beyond its farthest, (orders, n)."""
        folded = candidates.expert_lanes > 1
        limits = {axis: LINK_LEVELS.index(level) for axis, level in self.family.farthest.items()}
        near = np.ones((len(self.family.orders), len(candidates)), dtype=bool)
        if limits:
            for index, order in enumerate(self.family.orders):
                spans = placed.spans(candidates, order)
                near[index] = np.all([spans[axis] <= limit for axis, limit in limits.items()], axis=0)
        if folded.any():
            some = candidates.take(folded)
            near[:, folded] &= np.array([self._holds_folded(some, order) for order in self.family.orders])
        return near

    @staticmethod
    def _holds_folded(folded: Candidates, order: AxisOrder) -> Bools:
        """Return which members with folded experts may lie in an order, (n,)."""
        active = np.stack([getattr(folded, axis) > 1 for axis in order])
        kinds, of = np.unique(active, axis=1, return_inverse=True)
        holds = [holds_folded([axis for axis, on in zip(order, kind, strict=True) if on]) for kind in kinds.T]
        return np.array(holds)[of.reshape(-1)]

    def _allocations_of(self, pool: AcceleratorPool, degrees: tuple[int, ...]) -> list[Allocation]:
        """Return the allocations for degrees in the order of the fields of ``Degrees``."""
        key = (tuple(building.name for building in pool.buildings), degrees)
        if key not in self._allocations:
            named = dict(zip(Degrees.model_fields, degrees, strict=True))
            self._allocations[key] = self.family.allocations(pool, Degrees(**named))
        return self._allocations[key]


def _ascending(bounded: Bounded) -> Iterator[Bounded]:
    order: Ints = np.argsort(bounded.bound_s, kind="stable")
    for start in range(0, len(order), ROW_BLOCK):
        yield bounded.take(order[start : start + ROW_BLOCK])
