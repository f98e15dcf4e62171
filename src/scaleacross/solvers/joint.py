"""The joint search: degrees, micro-batch, schedule, recompute, shard level and placement together, with a bound.

Sets          B buildings with their zones, racks and hosts as *classes* (counts and link figures, never single devices);
              T  accelerator types; F fleets, the non-empty subsets of T (``fleets``); L layers; G sequences per step
Variables     f ∈ F                                       fleet
              tp, cp, pp, dp_shard, dp_replicate, ep ∈ ℕ    degrees
              b ∈ ℕ sequences per micro-batch, m = G / (dp·b) micro-batches per replica
              σ ∈ SCHEDULE_NAMES with v ∈ ℕ chunks, ρ ∈ RECOMPUTES, ζ ∈ SHARD_LEVELS
              π   order of the axes of degree > 1, fastest first
              n_β ∈ ℕ accelerators of building β, in the sequence of a fill (S1–S3, ``fleets``)
              layers per stage (B1, ``balance``, ``uneven_layers``), and micro-batches per replica class where f has
              several types (B2)
Constraints   C1 heads        tp divides heads, key/value heads and MLP widths                          (R1)
              C2 sequence     2·cp and tp divide the sequence, enough tokens per rank                   (R2)
              C3 layers       pp·v ≤ L, no stage count that another serves as well                      (R3)
              C4 batch        dp·b divides G                                                            (R4)
              C5 experts      ep divides the experts and dp_shard                                       (R5)
              C6 accelerators tp·cp·pp·dp = Σ n_β ≤ all of the fleet, whole hosts, n_β ≤ size of β      (R6, S2)
              C7 schedule     σ exists for (pp, m, v)                                                   (R7)
              C8 sharding     ζ = none exactly where there is nothing to shard over                     (R8)
              C9 user         pins of the job                                                           (R9)
              C10 memory      every pipeline rank fits in the smallest accelerator on it, reserve and headroom taken off
              C11 types       every type of f is used
              C12 failures    no unit holds more replicas than the job allows to lose (``every_placement``)
Objective     min step time of the cost model (``cost_models.step``)

R1–R9 are those of ``search_space``; π and n are decided by ``place_parallelism``.

1. Enumerate *bases* (all but dp's split, ζ, π, n; where these are too many, all but ρ and offloads too: ``open_policies``).
   A sample of them gives the first incumbent, one building alone (``one_building``) perhaps a better one. The others are
   dropped by computation alone, then by memory, then by the bound with communication; what is left is sorted.
2. Expand the bases block by block, least estimate first (on one accelerator type the bound serves as estimate); drop what does
   not fit; coarse bound for every candidate.
3. After every block the most promising candidate is placed exactly: the incumbent prunes every candidate, and every base still
   to be expanded, whose bound is not below it. Fleets take turns, smallest sets of types first: all are sampled before any is
   expanded, then each expands a block in turn, so that no clock ends the search with a fleet unseen.
4. Of survivors on several types those with the least estimates are placed (``PLACED_FIRST``). Then all get the tight bound in the
   order of their coarse estimate; again the best are placed and the incumbent prunes.
5. What is left is placed exactly (``place_survivors``), lowest estimate first, on the fills and axis orders whose own
   estimate is below the incumbent; then, lowest bound first, whatever has a bound below it: proof.
6. On fleets of one type every candidate with a pipeline is bounded once more, whatever its layers per stage, and placed with
   those of ``uneven_layers``, after all others: its bounds are further from its steps.

Estimates (``Priced.estimate_s``) are bounds of a step in which gradients that cross buildings meet those of all other pipeline
ranks there: closer than bounds, but a step may be below them.

Decisions that the caller brings are incumbents from the start, whether they lie in the space or not.

Proof: every candidate is refused by a rule, too large, dropped with a bound that holds under any placement, or placed
exactly. The reported bound is the least of the dropped ones, or the incumbent: it is valid for the whole space and for the
decisions that the caller brought. With a ``gap_tolerance`` everything within that share of the incumbent is dropped too,
which the reported bound then shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Final

import numpy as np

from scaleacross.cost_models.axes import searched_network
from scaleacross.cost_models.candidates import NOTHING, Candidates, Floats, Ints, candidate_of, concatenate
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.solvers.balance import balance_of
from scaleacross.solvers.candidates import Pricing
from scaleacross.solvers.every_placement import placer_on as step_placer_on
from scaleacross.solvers.first_plan import first_plan
from scaleacross.solvers.fleets import Fleet, fleets
from scaleacross.solvers.open_policies import in_parts, narrowed, promising, stands_for
from scaleacross.solvers.place_parallelism import PlacementDecision, Placer, never
from scaleacross.solvers.place_survivors import place_survivors
from scaleacross.solvers.priced import Priced
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Placed, Search, forget
from scaleacross.solvers.uneven_layers import UnevenLayers, uneven_placers
from scaleacross.spec.plan import Decision
from scaleacross.spec.progress import Progress
from scaleacross.spec.recomputation import BY_STAGE
from scaleacross.workloads.problem import Problem

TIGHT_BLOCK: Final = 16_384
"""Candidates per tight-bound evaluation: large enough for arrays to pay, small enough to stop early."""
TIGHT_PART: Final = 4096
"""Candidates on several accelerator types that get it between two looks at the clock, a second."""
PROMISING: Final = 2048
"""Candidates of a block that get the tight bound at once, so that the best of them is placed."""
BASE_BLOCK: Final = 1024
"""Bases that are expanded together."""
BASE_PART: Final = 16_384
"""Bases that are bounded together, half a second where nothing is known to beat."""
PROBED: Final = 8192
"""Bases in the sample that gives the first incumbent."""
PROBED_DEEPLY: Final = 128
"""Bases of the sample that are expanded."""
FIRST_OF_GOAL: Final = 32
"""Candidates tried for a first plan under a goal other than step time: its limits may refuse all of them."""
PLACED_FIRST: Final = 48
"""Survivors on several accelerator types that are placed before all get their tight bounds: a choice, about 0.2 s each."""
MOST_WITH_UNEVEN: Final = 10_000
"""Candidates up to which ``stages: auto`` tries uneven ones: beyond, their weaker bounds take longer than the search itself."""


def search(
    problem: Problem,
    *,
    time_limit_s: float,
    seed: int = 0,
    gap_tolerance: float = 0.0,
    report: Callable[[Progress], None] = lambda progress: None,
    placer_on: Callable[[Fleet], Placer] | None = None,
    incumbents: Sequence[Decision] = (),
    clock: Callable[[], float] = time.perf_counter,
    stopped: Callable[[], bool] = never,
    share: float = 1.0,
    below_s: float = np.inf,
    probed: Callable[[Search], None] = lambda state: None,
) -> Search:
    """Search the whole space. ``best`` is None when nothing fits; where the limit came before any plan, ``first_plan`` made one.

    Args:
        placer_on: makes the placer of a fleet; one with another goal (``objectives``) makes every ``_s`` of the outcome a score.
        incumbents: placed, legal decisions that fit in memory; the result is never slower than any of them.
        clock: what the time limit is measured with.
        stopped: asked as the clock is; once true, the search ends as if its time were over.
        share: of a limit in seconds that the search may take, where something is to come after it within the limit.
        below_s: nothing at or above this is looked for.
        probed: called once all fleets were sampled; it may remember incumbents from elsewhere.
    """
    state = Search(problem, time_limit_s, seed, gap_tolerance, report, clock, stopped, share, below_s)
    placers = [(placer_on or partial(_step_placer, state))(fleet) for fleet in reversed(fleets(problem.topology))]
    for placer in placers:
        _start_from(state, incumbents, placer)
    turns = zip_longest(*(_price_fleet(state, placer) for placer in placers))
    next(turns)  # samples
    probed(state)
    survivors: list[tuple[Priced, Placer]] = [one for turn in turns for one in turn if one is not None]
    others = None if placer_on else _uneven_placers(state)
    uneven: list[tuple[Priced, Placer]] = [
        one for placer in others or () for one in _price_fleet(state, placer) if one is not None
    ]
    _place_first(state, survivors)
    survived = _tighten(state, survivors), _tighten(state, uneven)
    if others is not None:
        state.any_layers_s = _any_layers_s(*survived)
    for blocks in survived:
        later = [block for block in blocks if block[0].candidates.policy_open.any()]
        place_survivors(state, [block for block in blocks if not block[0].candidates.policy_open.any()])
        for part in in_parts(state, later):
            place_survivors(state, _tighten(state, part))
    survivors += uneven
    below = ((priced.take(priced.bound_s < state.bound_s), placer.pricing) for priced, placer in survivors)
    state.unbounded = [(priced, pricing) for priced, pricing in below if len(priced.bound_s)]
    if not np.isfinite(state.incumbent_s) and state.out_of_time:
        first_plan(state, placers, None if placer_on is None else FIRST_OF_GOAL)
    state.ended = state.out_of_time
    return state


def _step_placer(state: Search, fleet: Fleet) -> Placer:
    """The placer for step time."""
    problem = state.problem
    return step_placer_on(fleet, problem.job, problem.profile, lambda: state.incumbent_s)


def _any_layers_s(survivors: Sequence[tuple[Priced, Placer]], uneven: Sequence[tuple[Priced, Placer]]) -> float:
    """The least bound, before anything is placed, of candidates whose bounds hold however layers are split."""
    mixed = [block for block in survivors if len(block[1].fleet.accelerators) > 1]
    return min((float(priced.bound_s.min()) for priced, _ in (*mixed, *uneven)), default=np.inf)


def _uneven_placers(state: Search) -> list[UnevenLayers] | None:
    """The placers of step 6; None where the job asks for equal stages, or there are too many candidates to try others."""
    problem = state.problem
    stages = problem.job.stages
    if stages == "auto" and state.num_candidates > MOST_WITH_UNEVEN:
        state.left_out.append(
            f"stages with unequal numbers of layers were not searched, as there are {state.num_candidates:,} candidates with "
            "equal ones: the bound is one on those; stages: any searches all"
            + (", recompute per_stage too" if BY_STAGE in problem.job.recompute else "")
        )
    if stages == "equal" or state.left_out:
        return None
    return uneven_placers(fleets(problem.topology), problem.job, problem.profile, lambda: state.incumbent_s)


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
            priced = placer.pricing.coarse(candidate_of(decision, problem.job.global_batch_sequences))
            network = searched_network(problem.job, fleet.accelerators)
            cost = plan_cost(problem.job, problem.profile, problem.topology, decision, network=network)
            step_s = cost.cost.step_s
            fill = tuple((share.building, share.num_accelerators) for share in placement.fill)
            exposed_s = step_s - float(priced.free_s[0])
            state.free_bound_s = min(state.free_bound_s, float(priced.free_s[0]))
            balance = balance_of(problem, decision, placement, priced.candidates)
            at = PlacementDecision(placement.axis_order, fill, exposed_s, complete=True, balance=balance)
            state.remember(Placed(step_s, priced.candidates, priced, at, placer, brought=True))


def _price_fleet(state: Search, placer: Placer) -> Iterator[tuple[Priced, Placer] | None]:
    """Steps 1 to 3 on one fleet: candidates whose coarse bound is below the incumbent, a block a turn; the first turn probes."""
    job = state.problem.job
    fleet = placer.fleet
    space = SearchSpace(job, state.problem.profile, fleet.num_accelerators, fleet.unit, by_stage=placer.by_stage)
    space = narrowed(space)
    again = placer.least_stages > 1  # what a rule refuses, or memory, was counted with equal stages
    refusals = Refusals() if again else state.refusals
    enumerated = _enumerate(state, space, refusals, placer.least_stages)
    if not again:
        _probe(state, space, placer, enumerated)
    yield None
    bases, bounds, counts = _bases(state, placer.pricing, enumerated)
    total = len(bases)
    while len(bases) and not state.out_of_time:
        rows = np.flatnonzero(state.keep(bounds, counts))
        bases, bounds, counts = bases.take(rows), bounds[rows], counts[rows]
        block, rows = bases.take(np.arange(min(BASE_BLOCK, len(bases)))), np.arange(BASE_BLOCK, len(bases))
        bases, bounds, counts = bases.take(rows), bounds[rows], counts[rows]
        fitting = _that_fit(state, placer.pricing, space.expand(block, refusals))
        if not len(fitting):
            continue
        priced = placer.pricing.coarse(fitting)
        state.free_bound_s = min(state.free_bound_s, float(priced.free_s.min()))
        _place_most_promising(state, priced, placer)
        state.tell("pricing", total - len(bases), total)
        yield priced.take(state.keep(priced.bound_s, stands_for(job, priced.candidates))), placer
    state.drop(bounds, counts)


def _enumerate(
    state: Search, space: SearchSpace, refusals: Refusals, least_stages: int
) -> list[tuple[Candidates, Ints]]:
    """All bases of so many stages or more in batches, with the number of candidates that each stands for."""
    batches = []
    for bases in space.bases(refusals):
        if not len(bases) or int(bases.pp[0]) < least_stages:
            continue
        batches.append((bases, space.num_candidates(bases) * stands_for(space.job, bases)))
        state.num_candidates += int(batches[-1][1].sum())
        state.tell("enumerating", state.num_candidates)
        if state.out_of_time:
            state.drop(np.zeros(1))  # of what comes next nothing is known
            break
    return batches


def _probe(state: Search, space: SearchSpace, placer: Placer, enumerated: list[tuple[Candidates, Ints]]) -> None:
    """Place the most promising candidate of a sample of bases: a first incumbent, which prunes bases unseen."""
    total = sum(len(bases) for bases, _ in enumerated)
    if total < 2 * PROBED or state.out_of_time:
        return
    every, pricing = total // PROBED, placer.pricing
    sample = concatenate([bases.take(np.arange(0, len(bases), every)) for bases, _ in enumerated])
    sample = sample.take(pricing.base_needed_bytes(sample) <= pricing.capacity_bytes)
    expected = pricing.base_estimate_s(sample, pricing.base_bound_s(sample))
    best = sample.take(np.argsort(expected, kind="stable")[:PROBED_DEEPLY])
    rows = space.expand(best, Refusals())
    rows = rows.take(pricing.needed_bytes(rows) <= pricing.capacity_bytes)
    if len(rows):
        _place_most_promising(state, pricing.coarse(rows), placer)


def _bases(
    state: Search, pricing: Pricing, enumerated: list[tuple[Candidates, Ints]]
) -> tuple[Candidates, Floats, Ints]:
    """Step 1: the bases that may fit and win, with their bounds and the candidates that they stand for, least estimate first.

    The layers alone prune first, then computation rank by rank, then memory, then the bound with communication.
    """
    parts, bounds, counts, estimates, fast = [], [], [], [], list[tuple[Candidates, Ints, Floats]]()
    for batch, count in _in_parts(enumerated):
        floor = np.zeros(len(batch)) if state.out_of_time else pricing.base_floor_s(batch)
        keep = state.keep(floor, count)
        fast.append((batch.take(keep), count[keep], floor[keep]))
    for bases, count, floor in fast:
        if state.out_of_time:
            state.drop(floor, count)
            continue
        keep = state.keep(pricing.base_free_s(bases), count)
        bases, count = bases.take(keep), count[keep]
        fits = state.fit(
            pricing, pricing.base_needed_bytes(bases), partial(_of_rows, pricing.base_bound_s, bases), count
        )
        bases, count = bases.take(fits), count[fits]
        bound = pricing.base_bound_s(bases)
        keep = state.keep(bound, count)
        bases, bound = bases.take(keep), bound[keep]
        parts.append(bases)
        bounds.append(bound)
        counts.append(count[keep])
        estimates.append(pricing.base_estimate_s(bases, bound))
        state.tell("bounding", sum(map(len, parts)))
    if not parts:
        return NOTHING, np.zeros(0), np.zeros(0, dtype=np.int64)
    order = np.argsort(np.concatenate(estimates), kind="stable")
    return concatenate(parts).take(order), np.concatenate(bounds)[order], np.concatenate(counts)[order]


def _in_parts(enumerated: list[tuple[Candidates, Ints]]) -> Iterator[tuple[Candidates, Ints]]:
    """The same bases, so many at a time that the clock is looked at in between."""
    for bases, count in enumerated:
        for start in range(0, len(bases), BASE_PART):
            rows = np.arange(start, min(start + BASE_PART, len(bases)))
            yield bases.take(rows), count[rows]


def _place_most_promising(state: Search, priced: Priced, placer: Placer) -> None:
    """Place the candidate with the least estimate, if that is below the incumbent; it is placed again in its turn."""
    block = priced.take(np.argsort(priced.estimate_s, kind="stable")[:PROMISING])
    block = block.take(block.estimate_s < state.target_s)
    if len(block.bound_s) and not state.out_of_time:
        block = placer.pricing.tight(block)
        if block.estimate_s.min() < state.target_s:
            _place_best(state, block, placer)


def _place_best(state: Search, block: Priced, placer: Placer) -> None:
    """Place the candidate with the least estimate, if that may be below the target."""
    block = promising(state, block, placer, PROMISING)
    if len(block.bound_s) and block.estimate_s.min() < state.target_s:
        best = int(block.estimate_s.argmin())
        state.place(block, best, placer, below_s=state.incumbent_s, in_time=True, left=forget)


def _place_first(state: Search, survivors: Sequence[tuple[Priced, Placer]]) -> None:
    """Place those of several accelerator types that have the least estimates."""
    several = [
        (priced, placer)
        for priced, placer in survivors
        if len(placer.fleet.accelerators) > 1 and len(priced.bound_s) and not priced.candidates.policy_open.any()
    ]
    least = np.concatenate([np.zeros(0), *(priced.estimate_s for priced, _ in several)])
    worst_s = np.partition(least, PROMISING)[PROMISING] if len(least) > PROMISING else np.inf
    few = [(priced.take(priced.estimate_s <= worst_s), placer) for priced, placer in several]
    tight = [(placer.pricing.tight(priced), placer) for priced, placer in few if len(priced.bound_s)]
    place_survivors(state, tight, PLACED_FIRST)


def _that_fit(state: Search, pricing: Pricing, candidates: Candidates) -> Candidates:
    counts = stands_for(state.problem.job, candidates)
    bound_s = partial(_of_rows, lambda some: pricing.coarse(some).bound_s, candidates)
    return candidates.take(state.fit(pricing, pricing.needed_bytes(candidates), bound_s, counts))


def _of_rows(law: Callable[[Candidates], Floats], candidates: Candidates, rows: Ints) -> Floats:
    return law(candidates.take(rows))


def _tighten(state: Search, survivors: list[tuple[Priced, Placer]]) -> list[tuple[Priced, Placer]]:
    """Step 4, block by block, the one with the least coarse estimate first; the best so far is placed at once."""
    blocks, out, least_s = [], [], np.inf
    for priced, placer in survivors:
        ordered = priced.take(np.argsort(priced.estimate_s, kind="stable"))
        ordered = ordered.take(state.keep(ordered.bound_s, stands_for(state.problem.job, ordered.candidates)))
        for start in range(0, len(ordered.bound_s), TIGHT_BLOCK):
            rows = np.arange(start, min(start + TIGHT_BLOCK, len(ordered.bound_s)))
            blocks.append((ordered.take(rows), placer))
    done, total = 0, sum(len(block.bound_s) for block, _ in blocks)
    for block, placer in sorted(blocks, key=lambda one: float(one[0].estimate_s[0])):
        done += len(block.bound_s)
        tight = _tight_in_time(state, block, placer)
        best = int(tight.estimate_s.argmin())
        if tight.estimate_s[best] < min(least_s, state.target_s) and not state.out_of_time:
            least_s = float(tight.estimate_s[best])
            _place_best(state, tight, placer)
        out.append((tight.take(state.keep(tight.bound_s, stands_for(state.problem.job, tight.candidates))), placer))
        state.tell("pricing", done, total)
    return [(block, placer) for block, placer in out if len(block.bound_s)]


def _tight_in_time(state: Search, block: Priced, placer: Placer) -> Priced:
    """The tight bound of the rows that there is time for, first rows first; the others keep the coarse one.

    Bounds on several accelerator types are worked out row by row and take seconds for a block: part by part.
    """
    size = len(block.bound_s)
    step = size if len(placer.fleet.accelerators) == 1 else TIGHT_PART
    bound, estimate = block.bound_s.copy(), block.estimate_s.copy()
    for start in range(0, size, max(1, step)):
        if state.out_of_time:
            break
        rows = np.arange(start, min(start + step, size))
        tight = placer.pricing.tight(block.take(rows))
        bound[rows], estimate[rows] = tight.bound_s, tight.estimate_s
    return replace(block, bound_s=bound, estimate_s=estimate)
