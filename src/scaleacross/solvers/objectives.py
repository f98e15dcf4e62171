"""Objectives other than step time, and limits on them, in the joint search.

The search compares one number per candidate and placement, its *score*. By default that is the step time T. Here it is

    score = (a(j)·T + b(j)·C + egress(j, order)) / R

with a(j) and b(j) the spending rates of allocation j (``cost_models.spending``) and C the candidate's computation,
which no placement changes. R is the greatest a + b of any allocation, so that a score is in seconds of all
accelerators. Bounds carry over:

O1 rates      for N accelerators of the pool, a(j) ≥ the N of least a and the least buildings and links that hold them
              (``SitePrices.least_per_s``), b(j) ≥ the N of least b
O2 time       T ≥ the candidate's bound on step time, because a and b are not negative
O3 egress     ≥ 0, and where no building holds N accelerators ≥ the least of any placement (``egress_pricing``;
              tight bound)
O4 limit      a limit L on another objective refuses a candidate whose bound (O1–O3) on it exceeds L, and every
              placement whose exact spending does; the rest of the space stays as it is

Candidates are tried in the order of their scores at the estimated step time.

For useful tokens, T/G replaces T, with the useful share G of a placement (U1–U3, ``useful``). O2 divides the bound on T
by a bound on G.

A candidate is placed by trying all orders on all allocations (``GoalPlacer``): rates, egress and limits depend on both.
On mixed pools every balance of every layout is tried as well (``EveryPlacement``); the balances themselves are those
for speed (B1, B2). There the bound on T is that of ``mixed_pools``. O2 and O3 say no more than C ≥ 0 and egress ≥ 0,
because what the slowest rank computes and sends depends on the balance. Failure domains (C1) hold as they do for step
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats
from scaleacross.cost_models.spending import Spending, objective_spending
from scaleacross.cost_models.step import placement_free_s
from scaleacross.cost_models.traffic import Flow, flows
from scaleacross.cost_models.work import Work
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.egress_pricing import EgressPricing
from scaleacross.solvers.every_placement import EveryPlacement, balanced, placed_at
from scaleacross.solvers.mixed_pools import bounder_on
from scaleacross.solvers.place_parallelism import (
    ANYWHERE,
    Place,
    PlacementDecision,
    Placer,
    Wanted,
    axes_of,
    orders_of,
)
from scaleacross.solvers.pools import AcceleratorPool, Allocation, shares
from scaleacross.solvers.useful import UsefulShare
from scaleacross.spec.job import ObjectiveName, counts_failures
from scaleacross.spec.topology import Topology
from scaleacross.workloads.problem import Problem

SLACK: Final = 1 + 1e-12
"""Ratio up to which a limit counts as met: floating-point noise."""


@dataclass(frozen=True)
class Measure:
    """One objective as a score in seconds of all accelerators; ``spending`` None: the score is the step time."""

    name: ObjectiveName
    spending: Spending | None
    reference: float
    useful: UsefulShare | None = None

    @classmethod
    def of(cls, topology: Topology, name: ObjectiveName, problem: Problem | None = None) -> Measure:
        """The measure of an objective. Objectives that count useful tokens need the ``problem``.

        Raises:
            InputError: the topology lacks a figure that the objective needs, or has accelerators that cost nothing.
            ValueError: the objective counts useful tokens, and ``problem`` is None.
        """
        if name == "step_time":
            return cls(name, None, 1.0)
        if counts_failures(name) and problem is None:
            raise ValueError("useful tokens are those of a problem")
        useful = UsefulShare(problem) if problem is not None and counts_failures(name) else None
        if name == "useful_tokens_per_s":
            return cls(name, None, 1.0, useful)
        spending = objective_spending(topology, name)
        whole = sum(
            building.num_accelerators * (rate.step_per_s + rate.compute_per_s)
            for building in topology.buildings
            for rate in (spending.rates[building.name],)
        )
        return cls(name, spending, whole or 1.0, useful)

    def bound(
        self,
        pool: AcceleratorPool,
        num_accelerators: Floats,
        step_s: Floats,
        compute_s: Floats,
        egress: Floats | float,
        share: Floats | float,
    ) -> Floats:
        """O1–O3: lower bound on the score, (n,). ``share`` is an upper bound on the useful share."""
        step_s = step_s / share
        if self.spending is None:
            return step_s
        held_per_s = self._cheapest(pool, "step_per_s", num_accelerators)
        if self.spending.sites is not None:
            held_per_s = held_per_s + self.spending.sites.least_per_s(pool.buildings, num_accelerators)
        # an impossible candidate, of infinite time, stays impossible where nothing has a price
        held = np.multiply(held_per_s, step_s, out=np.full(np.shape(step_s), np.inf), where=np.isfinite(step_s))
        busy = self._cheapest(pool, "compute_per_s", num_accelerators) * compute_s
        return (held + busy + (egress if self.spending.pays_egress else 0.0)) / self.reference

    def share_bound(self, candidates: Candidates, partials: bool) -> Floats | float:
        """U1, U3: upper bound on the useful share of every placement of a candidate or a partial candidate, (n,)."""
        if self.useful is None:
            return 1.0
        return self.useful.partial_bound(candidates) if partials else self.useful.bound(candidates)

    def share(self, candidates: Candidates, place: Place) -> float:
        """Useful share of the time of one placed candidate."""
        if self.useful is None:
            return 1.0
        return self.useful.exact(candidates.decision(0).degrees, int(candidates.num_micro_batches[0]), *place)

    def exact(
        self, allocation: Allocation, step_s: float, compute_s: float, egress: float, share: float = 1.0
    ) -> float:
        """Score of one placed candidate."""
        if self.spending is None:
            return step_s / share
        return sum(self.spending.parts(shares(allocation), step_s / share, compute_s, egress).values()) / self.reference

    def spent(self, score: float) -> float:
        """Convert a score to joules or currency units."""
        return score * self.reference

    def _cheapest(self, pool: AcceleratorPool, part: str, num_accelerators: Floats) -> Floats:
        """Sum of the N least rates of the pool, (n,): piecewise linear and convex in N."""
        if self.spending is None:
            return np.zeros_like(num_accelerators)
        rates = sorted((getattr(self.spending.rates[b.name], part), b.num_accelerators) for b in pool.buildings)
        sizes = np.cumsum([0, *(size for _, size in rates)])
        totals = np.cumsum([0.0, *(rate * size for rate, size in rates)])
        return np.interp(num_accelerators, sizes, totals)


@dataclass(frozen=True)
class Goal:
    """The measure to minimise, and limits on the scores of other measures."""

    measure: Measure
    limits: tuple[tuple[Measure, float], ...] = ()

    def allows(self, candidates: Candidates, place: Place, step_s: float, compute_s: float, egress: float) -> bool:
        """O4: whether one placed candidate keeps every limit."""
        return all(
            one.exact(place[0], step_s, compute_s, egress, one.share(candidates, place)) <= most * SLACK
            for one, most in self.limits
        )

    def bound(
        self,
        pool: AcceleratorPool,
        candidates: Candidates,
        step_s: Floats,
        compute_s: Floats,
        egress: Floats | float = 0.0,
        partials: bool = False,
    ) -> Floats:
        """Lower bound on the score, inf where a limit cannot be met, (n,)."""
        number = candidates.world_size.astype(np.float64)
        refused = np.zeros(len(candidates), dtype=bool)
        for one, most in self.limits:
            share = one.share_bound(candidates, partials)
            refused |= one.bound(pool, number, step_s, compute_s, egress, share) > most * SLACK
        share = self.measure.share_bound(candidates, partials)
        return np.where(refused, np.inf, self.measure.bound(pool, number, step_s, compute_s, egress, share))

    @property
    def falls_with_step_time(self) -> bool:
        """Whether scores are proportional to step times for all splits of a placed candidate's layers."""
        return self.measure.spending is None and not self.limits

    @property
    def pays_egress(self) -> bool:
        """Whether the objective or a limit counts bytes between buildings."""
        every = (self.measure, *(one for one, _ in self.limits))
        return any(one.spending is not None and one.spending.pays_egress for one in every)


@dataclass(frozen=True)
class GoalBounder(Bounder):
    """Bounder whose bounds are scores of a goal; ``free_s`` stays the placement-free part of the step time.

    ``times`` has the bounds on step time and memory.
    """

    goal: Goal
    egress: EgressPricing
    times: Bounder

    @classmethod
    def towards(cls, goal: Goal, pool: AcceleratorPool, problem: Problem) -> GoalBounder:
        """The bounder of a goal on one accelerator pool."""
        times = bounder_on(pool, problem.job, problem.profile)
        same = {f.name: getattr(times, f.name) for f in fields(Bounder)}
        return cls(**same, goal=goal, egress=EgressPricing(pool), times=times)

    def room_bytes(self, headroom_fraction: float) -> float:
        """Memory per accelerator with the headroom left free, by ``times``."""
        return self.times.room_bytes(headroom_fraction)

    def needed_bytes(self, candidates: Candidates) -> Floats:
        """Bytes to compare with ``capacity_bytes``, by ``times``, (n,)."""
        return self.times.needed_bytes(candidates)

    def partial_floor_s(self, partials: Candidates) -> Floats:
        """Lower bound on the scores of all candidates of a partial candidate, from the time of its layers alone, (n,)."""
        return self.goal.bound(
            self.pool, partials, self.times.partial_floor_s(partials), np.zeros(len(partials)), partials=True
        )

    def partial_free_s(self, partials: Candidates) -> Floats:
        """Lower bound on the scores of all candidates of a partial candidate, from computation alone, (n,)."""
        return self._of_partials(partials, self.times.partial_free_s(partials))

    def partial_bound_s(self, partials: Candidates) -> Floats:
        """Lower bound on the scores of all candidates of a partial candidate, (n,)."""
        return self._of_partials(partials, self.times.partial_bound_s(partials))

    def partial_estimate_s(self, partials: Candidates, bound_s: Floats) -> Floats:
        """The score at the estimated step time of each partial candidate, (n,)."""
        if self._of_one_type:
            return bound_s
        return self._of_partials(
            partials, self.times.partial_estimate_s(partials, self.times.partial_bound_s(partials))
        )

    def coarse(self, candidates: Candidates) -> Bounded:
        """The candidates with their work and the coarse bound on the score."""
        return self._scored(self.times.coarse(candidates), 0.0)

    def tight(self, bounded: Bounded) -> Bounded:
        """The same candidates with the tight bound on the score."""
        # on a mixed pool what a rank sends depends on the balance, so only egress ≥ 0 is known (O3)
        pays = self.goal.pays_egress and self._of_one_type
        egress = self.egress.least(self.volumes(bounded.candidates, bounded.work)) if pays else 0.0
        timed = (
            bounded if self._of_one_type else self.times.coarse(bounded.candidates)
        )  # bounds of ``bounded`` are scores
        return self._scored(self.times.tight(timed), egress)

    def score(self, candidates: Candidates, place: Place, step_s: float, busy_s: float, sent: Sequence[Flow]) -> float:
        """Score of one placed candidate, inf where a limit forbids it; ``sent``: flows of its busiest stage."""
        (allocation, order), degrees, measure = place, candidates.decision(0).degrees, self.goal.measure
        egress = 0.0
        if sent and self.goal.pays_egress:
            egress = self.egress.exact(degrees, order, allocation, sent, int(candidates.num_chunks[0]))
        allowed = self.goal.allows(candidates, place, step_s, busy_s, egress)
        return (
            measure.exact(allocation, step_s, busy_s, egress, measure.share(candidates, place)) if allowed else np.inf
        )

    @property
    def _of_one_type(self) -> bool:
        return len(self.accelerators) == 1

    def _of_partials(self, partials: Candidates, step_s: Floats) -> Floats:
        busy_s = compute_s(partials, self.work(partials)) if self._of_one_type else np.zeros(len(partials))
        return self.goal.bound(self.pool, partials, step_s, busy_s, partials=True)

    def _scored(self, bounded: Bounded, egress: Floats | float) -> Bounded:
        busy_s = compute_s(bounded.candidates, bounded.work) if self._of_one_type else np.zeros(len(bounded.bound_s))
        of_time = partial(self.goal.bound, self.pool, bounded.candidates, compute_s=busy_s, egress=egress)
        return replace(bounded, bound_s=of_time(bounded.bound_s), estimate_s=of_time(bounded.estimate_s))


def compute_s(candidates: Candidates, work: Work) -> Floats:
    """Computation of the busiest stage (``CostBreakdown.compute_s``), (n,)."""
    busy: Floats = candidates.num_micro_batches * (work.forward_s + work.backward_s)
    return busy


@dataclass
class GoalPlacer(Placer):
    """Places candidates by their score. ``communication_s`` of its decisions is the score minus ``Bounded.free_s``."""

    @property
    def goal_bounder(self) -> GoalBounder:
        """The bounder, with its goal.

        Raises:
            ValueError: the bounder has no goal.
        """
        if not isinstance(self.bounder, GoalBounder):
            raise ValueError("a GoalPlacer needs a GoalBounder")
        return self.bounder

    def place(self, candidates: Candidates, work: Work, wanted: Wanted = ANYWHERE) -> PlacementDecision | None:
        """The placement with the least score among those within the limits; None when there is none. All are tried.

        ``cutoff_s`` is a score minus ``Bounded.free_s``, like ``communication_s``; placements at or above it are left
        out.
        """
        volumes = self.bounder.volumes(candidates, work)
        free_s, busy_s = float(placement_free_s(volumes)[0]), float(compute_s(candidates, work)[0])
        sent = flows(volumes)
        best: PlacementDecision | None = None
        least = wanted.cutoff_s + free_s
        for floor, place in self._by_score(candidates, work, free_s, busy_s, wanted):
            if floor >= least:
                break
            if wanted.stop():
                return best and replace(best, complete=False)
            allocation, order = place
            step_s = free_s + self.exposed_s(candidates, work, allocation, order)
            score = self.goal_bounder.score(candidates, place, step_s, busy_s, sent)
            if score < least:
                best, least = PlacementDecision(order, allocation, score - free_s, complete=True), score
        return best

    def _by_score(
        self, candidates: Candidates, work: Work, free_s: float, busy_s: float, wanted: Wanted
    ) -> list[tuple[float, Place]]:
        """Every placement with a lower bound on its score without egress, least first."""
        idle, orders = axes_of(candidates)[1], wanted.among(orders_of(candidates))
        allocations = self.allocations_of(candidates) if orders else []
        if not allocations:
            return []
        bounds = free_s + self.bounds_s(candidates, work, orders, allocations)
        places = [(allocation, (*idle, *order)) for allocation in allocations for order in orders]
        measure = self.goal_bounder.goal.measure
        floors = [
            (measure.exact(place[0], bound, busy_s, 0.0, measure.share(candidates, place)), place)
            for place, bound in zip(places, bounds.ravel().tolist(), strict=True)
        ]
        return sorted(floors, key=lambda one: one[0])


@dataclass
class BalancedGoalPlacer(EveryPlacement):
    """``GoalPlacer`` for mixed pools, which balance work over types, and for jobs with failure domains."""

    def place(self, candidates: Candidates, work: Work, wanted: Wanted = ANYWHERE) -> PlacementDecision | None:
        """The placement and balance with the least score within the limits; None when there is none. All are tried."""
        bounder = self.bounder
        if not isinstance(bounder, GoalBounder):
            raise ValueError("a BalancedGoalPlacer needs a GoalBounder")
        measure, best_score, best = bounder.goal.measure, np.inf, None
        for trial in self._balanced(candidates, wanted.among(orders_of(candidates))):
            balance = trial.balance
            decision = balanced(candidates.decision(0), balance)
            for place, floor_s in zip(trial.places, self._floors_s([trial])[0].tolist(), strict=True):
                allocation, order = place
                # O2, O3: computation and egress of a balance are at least 0
                floor = measure.exact(allocation, floor_s, 0.0, 0.0, measure.share(candidates, place))
                if wanted.stop() or floor >= best_score:
                    continue
                cost = self.on(allocation).cost(placed_at(decision, place))
                score = bounder.score(candidates, place, cost.cost.step_s, cost.cost.compute_s, cost.sent)
                if score < best_score:
                    best_score, best = score, PlacementDecision(order, allocation, 0.0, complete=True, balance=balance)
        free_s = float(placement_free_s(bounder.volumes(candidates, work))[0])
        return best and replace(best, communication_s=best_score - free_s, complete=not wanted.stop())


def goal_placer(goal: Goal, problem: Problem, pool: AcceleratorPool) -> Placer:
    """The placer of a goal for ``joint.search``."""
    one_type = len(pool.accelerators) == 1
    placer = GoalPlacer if one_type and problem.job.failure_domains is None else BalancedGoalPlacer
    return placer(pool, GoalBounder.towards(goal, pool, problem))
