"""The joint search: degrees, micro-batch, schedule, recompute, shard level and placement together, with a bound.

Space          the candidates of ``search_space`` (R1–R9) on every fleet, times the placements of ``place_parallelism``
               (axis orders × fills S1–S3), times the balances B1–B3 on fleets of several accelerator types
               (``mixed_fleets``, ``balance``)
Objective      step time of the cost model (``cost_models.step``), minimised
Memory         every pipeline rank fits in the smallest accelerator on it, reserve taken off

1. Enumerate *bases* (everything but the split of dp and the shard level), drop those of which nothing fits,
   bound them, sort.
2. Expand the bases block by block, least bound first; drop what does not fit; coarse bound for every candidate.
3. After every block the most promising candidate is placed exactly: the incumbent prunes everything whose bound is not
   below it, and ends the expansion once the next base is.
4. Survivors in the order of their coarse bound get the tight bound; again the incumbent prunes.
5. What is left is placed exactly by CP-SAT, lowest bound first, until the next bound is not below the incumbent: proof.

Decisions that the caller brings are incumbents from the start, whether they lie in the space or not.

The reported bound is the smallest bound of anything not placed exactly, or the incumbent. ``gap_tolerance`` ends step 5
early and is then visible in the gap.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.cost_models.settings import NOTHING, Floats, Ints, Settings, concatenate, settings_of
from scaleacross.solvers.balance import balance_of
from scaleacross.solvers.candidates import Priced, Pricing
from scaleacross.solvers.every_placement import placer_on as step_placer_on
from scaleacross.solvers.fleets import Fleet, fleets
from scaleacross.solvers.place_parallelism import PlacementDecision, Placer
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.plan import Decision
from scaleacross.spec.progress import Progress
from scaleacross.workloads.problem import Problem

TIGHT_BLOCK: Final = 2048
"""Candidates per tight-bound evaluation: large enough for arrays to pay, small enough to stop early."""
BASE_BLOCK: Final = 1024
"""Bases that are expanded together."""
ENOUGH: Final = 1e-4
"""A placement this close to its candidate's bound ends the trial of further fills; the reported gap shows it."""
PLACE_LIMIT_S: Final = 10.0
"""Time limit of one exact placement; they take milliseconds."""


@dataclass(frozen=True)
class Placed:
    """A candidate with its exact placement and step time in seconds."""

    step_s: float
    settings: Settings
    priced: Priced
    placement: PlacementDecision
    placer: Placer


@dataclass
class Search:
    """State and outcome of a search."""

    problem: Problem
    time_limit_s: float
    seed: int
    gap_tolerance: float
    report: Callable[[Progress], None]
    began: float = field(default_factory=time.perf_counter)
    best: Placed | None = None
    pool: list[Placed] = field(default_factory=list)
    refusals: Refusals = field(default_factory=Refusals)
    num_candidates: int = 0
    num_too_large: int = 0
    num_pruned: int = 0
    open_bound_s: float = np.inf
    free_bound_s: float = np.inf
    bound_violation_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.began

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit has passed."""
        return self.elapsed_s > self.time_limit_s

    @property
    def incumbent_s(self) -> float:
        """Best step time so far, inf before the first."""
        return self.best.step_s if self.best else np.inf

    @property
    def bound_s(self) -> float:
        """Lower bound on the whole space: the incumbent, unless something with a smaller bound was left open."""
        return min(self.incumbent_s, self.open_bound_s)

    @property
    def refused(self) -> Counter[str]:
        """Refused candidates by reason, memory included."""
        return self.refusals.counts + Counter({"memory": self.num_too_large})

    def tell(self, stage: str, done: int, total: int | None = None) -> None:
        """Report progress."""
        incumbent = self.incumbent_s if self.best else None
        bound = self.bound_s if np.isfinite(self.bound_s) else None
        self.report(Progress(stage, done, total, incumbent, bound, self.elapsed_s))

    def place(self, priced: Priced, row: int, placer: Placer, slowest_axis: GridAxis | None = None) -> Placed | None:
        """Place one candidate exactly and remember it; None when no fill holds it."""
        one = priced.take(np.array([row]))
        free_s, bound_s = float(one.free_s[0]), float(one.bound_s[0])
        enough_s = bound_s * (1 + min(ENOUGH, self.gap_tolerance)) - free_s
        decision = placer.place(one.settings, one.work, PLACE_LIMIT_S, slowest_axis, enough_s)
        if decision is None:
            return None
        placed = Placed(free_s + decision.communication_s, one.settings, one, decision, placer)
        if slowest_axis is None:
            self.bound_violation_s = max(self.bound_violation_s, bound_s - placed.step_s)
            if not decision.complete:
                self.open_bound_s = min(self.open_bound_s, bound_s)
        return self.keep(placed)

    def keep(self, placed: Placed) -> Placed:
        """Remember a placed candidate; it is the incumbent if it is faster."""
        self.pool.append(placed)
        if placed.step_s < self.incumbent_s:
            self.best = placed
        return placed


def search(
    problem: Problem,
    *,
    time_limit_s: float,
    seed: int = 0,
    gap_tolerance: float = 0.0,
    report: Callable[[Progress], None] = lambda progress: None,
    placer_on: Callable[[Fleet], Placer] | None = None,
    incumbents: Sequence[Decision] = (),
) -> Search:
    """Search the whole space. ``best`` is None when nothing fits or the time limit came first (``out_of_time``).

    Args:
        placer_on: makes the placer of a fleet; one with another goal (``objectives``) makes every ``_s`` of the outcome a score.
        incumbents: placed, legal decisions that fit in memory; the result is never slower than any of them.
    """
    state = Search(problem, time_limit_s, seed, gap_tolerance, report)
    survivors: list[tuple[Priced, Placer]] = []
    for fleet in fleets(problem.topology):
        placer = placer_on(fleet) if placer_on else _step_placer(state, fleet)
        _start_from(state, incumbents, placer)
        survivors += [(priced, placer) for priced in _price_fleet(state, fleet, placer)]
    tight = _tighten(state, survivors)
    _place_all(state, tight)
    return state


def _step_placer(state: Search, fleet: Fleet) -> Placer:
    """The placer for step time."""
    problem = state.problem
    return step_placer_on(fleet, problem.job, problem.profile, state.seed, lambda: state.incumbent_s)


def _start_from(state: Search, incumbents: Sequence[Decision], placer: Placer) -> None:
    """The decisions that use exactly the accelerator types of this fleet, as incumbents at their exact cost."""
    problem, fleet = state.problem, placer.fleet
    types = {accelerator.name for accelerator in fleet.accelerators}
    for decision in incumbents:
        placement = decision.placement
        if placement is None:
            continue
        used = {problem.topology.building(share.building).accelerator.name for share in placement.fill}
        if used == types:
            named = decision.pipeline.model_copy(update={"order": None})  # candidates have the order of their schedule
            decision = decision.model_copy(update={"pipeline": named})
            priced = placer.pricing.coarse(settings_of(decision, problem.job.global_batch_sequences))
            step_s = plan_cost(problem.job, problem.profile, problem.topology, decision).cost.step_s
            fill = tuple((share.building, share.num_accelerators) for share in placement.fill)
            exposed_s = step_s - float(priced.free_s[0])
            state.free_bound_s = min(state.free_bound_s, float(priced.free_s[0]))
            balance = balance_of(problem, decision, placement, priced.settings)
            at = PlacementDecision(placement.axis_order, fill, exposed_s, complete=True, balance=balance)
            state.keep(Placed(step_s, priced.settings, priced, at, placer))


def _price_fleet(state: Search, fleet: Fleet, placer: Placer) -> list[Priced]:
    """Steps 1 to 3 on one fleet: candidates whose coarse bound is below the incumbent."""
    pricing, kept = placer.pricing, []
    space = SearchSpace(state.problem.job, state.problem.profile, fleet.num_accelerators, fleet.unit)
    bases, bounds, counts = _bases(state, space, pricing)
    for start in range(0, len(bases), BASE_BLOCK):
        if bounds[start] >= state.incumbent_s or state.out_of_time:
            state.num_pruned += int(counts[start:].sum())
            if bounds[start] < state.incumbent_s:
                state.open_bound_s = min(state.open_bound_s, float(bounds[start]))
            break
        fitting = _that_fit(
            state,
            pricing,
            space.expand(bases.take(np.arange(start, min(start + BASE_BLOCK, len(bases)))), state.refusals),
        )
        if not len(fitting):
            continue
        priced = pricing.coarse(fitting)
        state.free_bound_s = min(state.free_bound_s, float(priced.free_s.min()))
        _place_most_promising(state, priced, placer)
        kept.append(_below_incumbent(state, priced))
        state.tell("pricing", start + BASE_BLOCK, len(bases))
    return kept


def _bases(state: Search, space: SearchSpace, pricing: Pricing) -> tuple[Settings, Floats, Ints]:
    """Step 1: the bases that may fit, with their bounds and the candidates that they stand for, least bound first."""
    parts, bounds, counts = [], [], []
    for bases in space.bases(state.refusals):
        count = space.num_candidates(bases)
        state.num_candidates += int(count.sum())
        fits = pricing.base_needed_bytes(bases) <= pricing.capacity_bytes
        state.num_too_large += int(count[~fits].sum())
        if fits.any():
            parts.append(bases.take(fits))
            bounds.append(pricing.base_bound_s(parts[-1]))
            counts.append(count[fits])
        state.tell("enumerating", state.num_candidates)
    if not parts:
        return NOTHING, np.zeros(0), np.zeros(0, dtype=np.int64)
    order = np.argsort(np.concatenate(bounds), kind="stable")
    return concatenate(parts).take(order), np.concatenate(bounds)[order], np.concatenate(counts)[order]


def _place_most_promising(state: Search, priced: Priced, placer: Placer) -> None:
    """Place the candidate with the least tight bound, if that is below the incumbent."""
    block = priced.take(np.argsort(priced.bound_s, kind="stable")[:TIGHT_BLOCK])
    block = block.take(block.bound_s < state.incumbent_s)
    if len(block.bound_s) and not state.out_of_time:
        block = placer.pricing.tight(block)
        if block.bound_s.min() < state.incumbent_s:
            state.place(block, int(block.bound_s.argmin()), placer)


def _that_fit(state: Search, pricing: Pricing, settings: Settings) -> Settings:
    fits = pricing.needed_bytes(settings) <= pricing.capacity_bytes
    state.num_too_large += int((~fits).sum())
    return settings.take(fits)


def _below_incumbent(state: Search, priced: Priced) -> Priced:
    keep = priced.bound_s < state.incumbent_s
    state.num_pruned += int((~keep).sum())
    return priced.take(keep)


def _tighten(state: Search, survivors: list[tuple[Priced, Placer]]) -> list[tuple[Priced, Placer]]:
    """Step 4, block by block in the order of the coarse bounds."""
    out = []
    total = sum(len(priced.bound_s) for priced, _ in survivors)
    done = 0
    for priced, placer in survivors:
        ordered = _below_incumbent(state, priced.take(np.argsort(priced.bound_s, kind="stable")))
        for start in range(0, len(ordered.bound_s), TIGHT_BLOCK):
            block = ordered.take(np.arange(start, min(start + TIGHT_BLOCK, len(ordered.bound_s))))
            done += len(block.bound_s)
            if not state.out_of_time:
                block = placer.pricing.tight(block)
            out.append((_below_incumbent(state, block), placer))
            state.tell("pricing", done, total)
    return [(block, placer) for block, placer in out if len(block.bound_s)]


def _place_all(state: Search, blocks: list[tuple[Priced, Placer]]) -> None:
    """Step 5."""
    queue = sorted(
        (float(bound), block, row)
        for block, (priced, _) in enumerate(blocks)
        for row, bound in enumerate(priced.bound_s)
    )
    for done, (bound, block, row) in enumerate(queue):
        if bound >= state.incumbent_s * (1 - state.gap_tolerance) or state.out_of_time:
            state.open_bound_s = min(state.open_bound_s, bound)
            state.num_pruned += len(queue) - done
            return
        state.place(blocks[block][0], row, blocks[block][1])
        if done % 16 == 0:
            state.tell("placing", done, len(queue))
