"""Recompute policies and offloads of spaces too large to enumerate: chosen last, for few candidates.

A block is one row with an open policy (``ANY_POLICY``). It stands for every (recompute, activation offload, optimizer
offload) that the job allows. The search bounds, sorts and prunes it like a candidate. Then the survivors are closed,
that is, expanded into candidates, least bound first, part by part. What nobody closed counts in the bound of the
search. Memory holds the rows, never what they stand for.

A block's bound holds for each of its candidates. Bounds add up the computation of one pipeline rank (m passes F + B,
warm-up and cool-down, the optimizer), the communication that it waits for, and the traffic that windows do not overlap.
Compared with its block, a candidate has longer passes (F + f, B + b), more collectives (those that it repeats), and its
own memory:

computation   m·(f + b) more or above; warm-up and cool-down no less. The optimizer: the least over the allowed shares
waits         no fewer calls; overlap with longer passes hides at most f + b more in each, and computation counts these
once a step   windows of gradients and parameters are w·b and w·f longer, w ≤ m: less than computation
every pass    m rounds hide m·(f + b) more: as much as computation. So a block counts m rounds and no warm-up or
              cool-down (``Work.fill_rounds``). Where every pass reduces, w > 1 of the reductions between replicas would
              be counted twice: they have an endless window (``overlap.windows``)
crossing      inter-building gradients sent before computation ends: K ≤ m·v chunks of b/v, no more than computation.
              One of several chunks may have more than its share of b: a block counts whole passes
              (``Work.chunk_backward_s``)
contention    traffic slows products, and element-wise work loses HBM: a block counts the largest element-wise share in
              the first and none in the second (``rank_seconds``)
memory        every part of what a layer keeps at its least, nothing rerun, the largest shares on the host (``memory``)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats, Ints
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Search
from scaleacross.spec.job import Job

MOST_AT_ONCE: Final = 4_000_000
"""Rows up to which policies are enumerated with all else: 0.6 GB as columns, and a few times that when sorted."""
CLOSED_TOGETHER: Final = 65_536
"""Candidates that blocks are closed into between two checks of the clock."""
TRIED: Final = 16
"""Blocks that are closed to find one promising candidate."""


def space_on(state: Search, placer: Placer) -> SearchSpace:
    """The space that is searched on the placer's pool, with every policy enumerated."""
    problem, pool = state.problem, placer.pool
    return SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit, by_stage=placer.by_stage)


def narrowed(space: SearchSpace) -> SearchSpace:
    """The space, with its policies left open where it is too large to enumerate."""
    later = replace(space, policies_open=True)
    if len(space.policies) == 1:
        return space
    return later if sum(map(len, later.partials(Refusals()))) * len(space.policies) > MOST_AT_ONCE else space


def stands_for(job: Job, candidates: Candidates) -> Ints:
    """Number of candidates that each row stands for, (n,)."""
    policies = len(job.recompute) * len(job.activation_offload) * len(job.optimizer_offload)
    return np.where(candidates.policy_open, policies, 1)


def closed(space: SearchSpace, candidates: Candidates, refusals: Refusals) -> Candidates:
    """Candidates with every policy that they may still choose (R9, R10, R11)."""
    if not candidates.policy_open.any():
        return candidates
    rows = candidates.take(np.repeat(np.arange(len(candidates)), len(space.policies)))
    recompute, activations, states = np.tile(space.policies, (len(candidates), 1)).T
    rows = replace(rows, recompute=recompute, activation_offload=activations, optimizer_offload=states)
    whole = space.whole_layers(recompute, rows.pp * rows.num_chunks, activations, refusals)
    return space.expressed(rows.take(whole), ("partial", "split"), refusals)


def promising(state: Search, bounded: Bounded, placer: Placer, most: int) -> Bounded:
    """At most ``most`` candidates with the tight bound to place first: the rows, or the best of a few blocks."""
    if not bounded.candidates.policy_open.any():
        return bounded
    few = bounded.candidates.take(np.argsort(bounded.estimate_s, kind="stable")[:TRIED])
    rows = closed(space_on(state, placer), few, Refusals())
    rows = rows.take(placer.bounder.needed_bytes(rows) <= placer.bounder.capacity_bytes)
    found = placer.bounder.coarse(rows)
    return placer.bounder.tight(found.take(np.argsort(found.estimate_s, kind="stable")[:most]))


def in_parts(state: Search, blocks: Sequence[tuple[Bounded, Placer]]) -> Iterator[list[tuple[Bounded, Placer]]]:
    """Yield the candidates of blocks that fit and may win, with their coarse bounds; least bound of a block first."""
    owner = np.repeat(np.arange(len(blocks)), [len(bounded.bound_s) for bounded, _ in blocks])
    row = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(len(bounded.bound_s)) for bounded, _ in blocks)])
    bounds: Floats = np.concatenate([np.zeros(0), *(bounded.bound_s for bounded, _ in blocks)])
    counts = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(stands_for(state.problem.job, p.candidates) for p, _ in blocks)]
    )
    order = np.argsort(bounds, kind="stable")
    together = max(1, CLOSED_TOGETHER // int(counts.max(initial=1)))
    for start in range(0, len(order), together):
        # blocks are sorted by bound, so once one cannot win, none of the rest can
        if bounds[order[start]] >= state.target_s or state.out_of_time:
            state.drop(bounds[order[start:]], counts[order[start:]])
            return
        part = order[start : start + together]
        yield [_closed_block(state, blocks[one], row[part[owner[part] == one]]) for one in np.unique(owner[part])]
        state.tell("closing", min(start + together, len(order)), len(order))


def _closed_block(state: Search, block: tuple[Bounded, Placer], rows: Ints) -> tuple[Bounded, Placer]:
    """The candidates that the ``rows`` of a block stand for, which fit and may win."""
    bounded, placer = block
    bounder = placer.bounder
    candidates = closed(space_on(state, placer), bounded.candidates.take(rows), state.refusals)
    one_each = np.ones(len(candidates), dtype=np.int64)
    fits = state.fit(
        bounder, bounder.needed_bytes(candidates), lambda some: bounder.coarse(candidates.take(some)).bound_s, one_each
    )
    found = bounder.coarse(candidates.take(fits))
    return found.take(state.keep(found.bound_s)), placer
