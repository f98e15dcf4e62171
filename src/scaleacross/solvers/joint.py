"""The joint search: degrees, micro-batch, schedule, recompute, shard level and placement together, with a bound.

Sets          B buildings with their zones, racks and hosts as *classes* (counts and link figures, never devices);
              T  accelerator types; F pools, the non-empty subsets of T (``pools``); L layers; G sequences per step
Variables     f ∈ F                                       pool
              tp, cp, pp, dp_shard, dp_replicate, ep ∈ ℕ    degrees
              b ∈ ℕ sequences per micro-batch, m = G / (dp·b) micro-batches per replica
              σ ∈ SCHEDULE_NAMES with v ∈ ℕ chunks, ρ ∈ RECOMPUTES, ζ ∈ SHARD_LEVELS
              π   order of the axes of degree > 1, fastest first
              n_β ∈ ℕ accelerators of building β, in the sequence of an allocation (S1–S3, ``pools``)
              layers per stage (B1, ``balance``, ``unequal_layers``), and micro-batches per replica class where f has
              several types (B2)
Constraints   C1 heads        tp divides heads, key/value heads and MLP widths                          (R1)
              C2 sequence     2·cp and tp divide the sequence, enough tokens per rank                   (R2)
              C3 layers       pp·v ≤ L, no stage count that another serves as well                      (R3)
              C4 batch        dp·b divides G                                                            (R4)
              C5 experts      ep divides the experts and dp_shard                                       (R5)
              C6 accelerators tp·cp·pp·dp = Σ n_β ≤ all of the pool, whole hosts or a divisor of one,
                              n_β ≤ size of β                                                     (R6, S2)
              C7 schedule     σ exists for (pp, m, v)                                                   (R7)
              C8 sharding     ζ = none needs dp_shard = 1, every other level dp_shard·cp > 1            (R8)
              C9 user         pins of the job                                                           (R9)
              C10 memory      every pipeline rank fits in the smallest accelerator on it, reserve and headroom taken off
              C11 types       every type of f is used
              C12 failures    no unit holds more replicas than the job allows to lose (``every_placement``)
Objective     min step time of the cost model (``cost_models.step``)

R1–R9 are those of ``search_space``; π and n are decided by ``place_parallelism``. Steps 1 to 4 of one pool are in
``pool_blocks``.

1. Enumerate *partial candidates*: all choices but dp's split, ζ, π and n. Where these are too many, ρ and offloads stay open, too
   (``open_policies``). A sample of them gives the first incumbent. One building alone (``one_building``) or the quick
   space of a full one (``quick_space``) may improve it. The other partial candidates are dropped by computation alone, then by
   memory, then by the bound with communication. The rest is sorted.
2. Expand the partial candidates block by block, least estimate first (on one accelerator type the bound serves as estimate). Drop
   what does not fit, and compute the coarse bound of every candidate.
3. Place the most promising candidates after every block. On one type a candidate may have hundreds of placements, so
   few of them get exact step times, and step 5 places the candidate again. On several types one candidate is placed,
   then those that differ from it in one choice, as long as one of them is faster (``neighbours``). The incumbent prunes
   every candidate, and every partial one still to be expanded, whose bound is not below it. The ratio of step time to estimate
   is expected of all candidates with the same pipeline (``beyond``). Where nothing in the next block is expected to be
   below the incumbent, others come first. Pools take turns, smallest sets of types first. All are sampled before
   any is expanded, then each expands a block in turn, so that no clock ends the search with a pool unseen.
4. Place the survivors on several types that have the least estimates (``PLACED_FIRST``). Then all survivors get the
   tight bound in the order of their coarse estimate. Again the best are placed and the incumbent prunes.
5. Place the rest exactly (``place_survivors``), lowest estimate first, on the allocations and axis orders whose own
   estimate is below the incumbent. Then place, lowest bound first, whatever has a bound below it: this is the proof.
6. On pools of one type, bound every candidate with a pipeline once more, whatever its layers per stage, and place it
   with the layers of ``unequal_layers``. This comes last, because these bounds are further from the step times. Where
   there are too many candidates, only the most promising are tried, one of every pipeline. With several types that
   happens before step 4, which may take all the rest of a limit. The proof then covers equal stages only.

Estimates (``Bounded.estimate_s``) are bounds of a step in which gradients that cross buildings share the links with
those of all other pipeline ranks. They are closer to the step time than bounds, but the step time may be below them.

User-supplied decisions are incumbents from the start, whether they lie in the space or not.

Proof: every candidate is refused by a rule, too large, dropped with a bound that holds under any placement, or placed
exactly. The reported bound is the least of the dropped ones, or the incumbent. It is valid for the whole space and for
the user-supplied decisions. With a ``gap_tolerance`` everything within that share of the incumbent is dropped, too,
which the reported bound then shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice, zip_longest
from typing import Final

import numpy as np

from scaleacross.cost_models.axes import searched_network
from scaleacross.cost_models.candidates import candidate_of
from scaleacross.cost_models.distinct import distinct
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.solvers.balance import balance_of
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.every_placement import placer_on as step_placer_on
from scaleacross.solvers.first_plan import first_plan
from scaleacross.solvers.open_policies import in_parts
from scaleacross.solvers.place_parallelism import PlacementDecision, Placer, never
from scaleacross.solvers.place_survivors import place_survivors
from scaleacross.solvers.pool_blocks import bound_pool, place_first, tighten
from scaleacross.solvers.pools import AcceleratorPool, allocation_of, pools
from scaleacross.solvers.search_state import Placed, Search
from scaleacross.solvers.unequal_layers import UnequalLayers, unequal_placers
from scaleacross.spec.plan import Decision
from scaleacross.spec.progress import Progress
from scaleacross.spec.recomputation import BY_STAGE
from scaleacross.workloads.problem import Problem
from scaleacross.workloads.space import EQUAL_STAGES

FIRST_OF_GOAL: Final = 32
"""Most candidates tried for a first plan under a goal other than step time, whose limits may refuse all of them."""
PLACED_FIRST: Final = 48
"""Survivors on several accelerator types that are placed before all get their tight bounds: a choice, about 0.2 s each."""
MOST_WITH_UNEQUAL: Final = 10_000
"""Most candidates with which ``stages: auto`` searches unequal stages: beyond, their weak bounds take too long."""
MOST_TRYING_UNEQUAL: Final = 2_000_000
"""Most candidates with which it tries the most promising unequal ones: beyond, bounding takes several seconds."""
UNEQUAL_BLOCKS: Final = 2
"""Blocks of partial candidates whose candidates are then tried: a choice."""
UNEQUAL_SHARE: Final = 0.25
"""Share of the remaining limit for them where pools of several types come after them: a choice."""
UNEQUAL_PLACED: Final = 16
"""Candidates of a block placed then for their pipelines, and as many for their bounds, 0.1 s each: a choice."""


def search(
    problem: Problem,
    *,
    time_limit_s: float,
    seed: int = 0,
    gap_tolerance: float = 0.0,
    report: Callable[[Progress], None] = lambda progress: None,
    placer_on: Callable[[AcceleratorPool], Placer] | None = None,
    incumbents: Sequence[Decision] = (),
    clock: Callable[[], float] = time.perf_counter,
    stopped: Callable[[], bool] = never,
    share: float = 1.0,
    below_s: float = np.inf,
    probed: Sequence[Callable[[Search], None]] = (),
) -> Search:
    """Search the whole space and return its state; ``best`` is None when nothing fits.

    ``first_plan`` makes a plan where the limit came before any.

    Args:
        placer_on: makes the placer of a pool; another goal (``objectives``) makes every ``_s`` of the outcome a score.
        incumbents: placed, legal decisions that fit in memory; the result is never slower than any of them.
        clock: what the time limit is measured with.
        stopped: called as often as the clock; once true, the search ends as if its time were over.
        share: share of a limit in seconds that the search may take, where something comes after it within the limit.
        below_s: nothing at or above this is looked for.
        probed: called once all pools were sampled, one by one; they may remember incumbents from elsewhere.
    """
    state = Search(problem, time_limit_s, seed, gap_tolerance, report, clock, stopped, share, below_s)
    placers = [(placer_on or partial(_step_placer, state))(pool) for pool in reversed(pools(problem.topology))]
    for placer in placers:
        _start_from(state, incumbents, placer)
    turns = zip_longest(*(bound_pool(state, placer) for placer in placers))
    next(turns)  # samples
    for probe in probed:
        probe(state)
    survivors: list[tuple[Bounded, Placer]] = [one for turn in turns for one in turn if one is not None]
    others = None if placer_on else _unequal_placers(state)
    if placer_on and state.several_stages and problem.job.stages != "equal":
        state.left_out.append(
            f"{EQUAL_STAGES} on one accelerator type: unequal ones are tried for the least step time alone"
        )
    unequal: list[tuple[Bounded, Placer]] = [
        one for placer in others or () for one in bound_pool(state, placer) if one is not None
    ]
    several = [block for block in survivors if len(block[1].pool.accelerators) > 1]
    if several and placer_on is None:
        _try_unequal(state, UNEQUAL_SHARE)  # pools of several types may take all the rest
    place_first(state, several, PLACED_FIRST)
    survived = tighten(state, survivors), tighten(state, unequal)
    if others is not None:
        state.any_layers_s = _any_layers_s(*survived)
    for blocks in survived:
        # candidates with chosen policies go first: their incumbents prune the rows that stand for many
        later = [block for block in blocks if block[0].candidates.policy_open.any()]
        place_survivors(state, [block for block in blocks if not block[0].candidates.policy_open.any()])
        for part in in_parts(state, later):
            place_survivors(state, tighten(state, part))
    survivors += unequal
    below = ((bounded.take(bounded.bound_s < state.bound_s), placer.bounder) for bounded, placer in survivors)
    state.unbounded = [(bounded, bounder) for bounded, bounder in below if len(bounded.bound_s)]
    if not np.isfinite(state.incumbent_s) and state.out_of_time:
        first_plan(state, placers, None if placer_on is None else FIRST_OF_GOAL)
    state.ended = state.out_of_time
    if not several and placer_on is None:
        _try_unequal(state, 1.0)
    return state


def _step_placer(state: Search, pool: AcceleratorPool) -> Placer:
    """Return the placer that minimises step time."""
    problem = state.problem
    return step_placer_on(pool, problem.job, problem.profile, lambda: state.incumbent_s)


def _any_layers_s(survivors: Sequence[tuple[Bounded, Placer]], unequal: Sequence[tuple[Bounded, Placer]]) -> float:
    """Return the least bound of survivors whose bounds hold for any split of the layers, s."""
    mixed = [block for block in survivors if len(block[1].pool.accelerators) > 1]
    return min((float(bounded.bound_s.min()) for bounded, _ in (*mixed, *unequal)), default=np.inf)


def _unequal_placers(state: Search) -> list[UnequalLayers] | None:
    """Return the placers of step 6; None for equal stages only, or with too many candidates to try others."""
    problem = state.problem
    stages = problem.job.stages
    if stages == "auto" and state.num_candidates > MOST_WITH_UNEQUAL:
        state.left_out.append(
            f"{EQUAL_STAGES}, of which there are {state.num_candidates:,} candidates; of stages with unequal numbers of layers "
            "no more than the most promising were tried; stages: any searches all"
            + (", recompute per_stage too" if BY_STAGE in problem.job.recompute else "")
        )
    if stages == "equal" or state.left_out:
        return None
    return unequal_placers(pools(problem.topology), problem.job, problem.profile, lambda: state.incumbent_s)


def _try_unequal(state: Search, share: float) -> None:
    """Place the most promising candidates with unequal stages where there are too many to search all of them.

    No bound covers these candidates. ``share``: of what is left of the limit.
    """
    problem = state.problem
    left = share * (state.time_limit_s * (1.0 if state.work_limit else state.share) - state.elapsed_s)
    if not state.left_out or state.out_of_time or state.num_candidates > MOST_TRYING_UNEQUAL:
        return
    tried = Search(
        problem,
        left,
        state.seed,
        state.gap_tolerance,
        lambda one: state.tell(f"unequal stages: {one.stage}", one.done, one.total),
        state.clock,
        state.stopped,
        below_s=state.incumbent_s,
    )
    for placer in unequal_placers(pools(problem.topology), problem.job, problem.profile, lambda: tried.incumbent_s):
        blocks = [one[0] for one in islice(bound_pool(tried, placer), 1 + UNEQUAL_BLOCKS) if one is not None]
        for bounded in blocks:
            tight = placer.bounder.tight(_promising_unequal(bounded))
            for row in range(len(tight.bound_s)):
                if tight.bound_s[row] < tried.target_s and not tried.out_of_time:
                    tried.place(tight, row, placer, below_s=tried.incumbent_s, in_time=True)
    for placed in tried.remembered:
        state.remember(placed)


def _promising_unequal(bounded: Bounded) -> Bounded:
    """Return the candidates with the least bounds overall and of every pipeline; open policies are left out.

    A pipeline is tp, cp, pp, schedule and chunks. Bounds decide, because estimates assume equal layers.
    """
    bounded = bounded.take(~bounded.candidates.policy_open)
    bounded = bounded.take(np.argsort(bounded.bound_s, kind="stable"))
    kinds = distinct(*(getattr(bounded.candidates, name) for name in ("tp", "cp", "pp", "schedule", "num_chunks")))
    first = np.sort(np.unique(kinds.code, return_index=True)[1])[:UNEQUAL_PLACED]
    least = np.arange(min(UNEQUAL_PLACED, len(bounded.bound_s)))
    return bounded.take(np.concatenate([first, np.setdiff1d(least, first)]))


def _start_from(state: Search, incumbents: Sequence[Decision], placer: Placer) -> None:
    """Remember the decisions on exactly this pool's accelerator types as incumbents with exact step times."""
    problem, pool = state.problem, placer.pool
    types = {accelerator.name for accelerator in pool.accelerators}
    for decision in incumbents:
        placement = decision.placement
        if placement is None:
            continue
        used = {problem.topology.building(share.building).accelerator.name for share in placement.fill}
        if used == types:
            named = decision.pipeline.model_copy(update={"order": None})  # candidates have the order of their schedule
            decision = decision.model_copy(update={"pipeline": named})
            bounded = placer.bounder.coarse(candidate_of(decision, problem.job.global_batch_sequences))
            network = searched_network(problem.job, pool.accelerators)
            cost = plan_cost(problem.job, problem.profile, problem.topology, decision, network=network)
            step_s = cost.cost.step_s
            allocation = allocation_of(placement.fill)
            exposed_s = step_s - float(bounded.free_s[0])
            state.free_bound_s = min(state.free_bound_s, float(bounded.free_s[0]))
            balance = balance_of(problem, decision, bounded.candidates)
            at = PlacementDecision(placement.axis_order, allocation, exposed_s, complete=True, balance=balance)
            state.remember(Placed(step_s, bounded.candidates, bounded, at, placer, user_supplied=True))
