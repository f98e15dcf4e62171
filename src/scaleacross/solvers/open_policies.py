"""Spaces too large to enumerate: recompute policies and offloads are chosen last, for the few candidates that still matter.

A block is one row whose policy is still to be chosen (``ANY_POLICY``); it stands for every (recompute, activation offload,
optimizer offload) that the job allows. It passes the search as a candidate does: bounded, sorted, pruned. What is left is closed
least bound first, part by part; what nobody closed counts in the bound of the search. Memory holds the rows, never what they
stand for.

A block's bound is one on each of its candidates. Bounds add up what one pipeline rank computes (m passes F + B, fill and drain,
the optimizer), what it waits for, and what windows do not hide. Against a block, a candidate has longer passes (F + f, B + b),
more collectives (those that it repeats), and holds what it holds:

computation   m·(f + b) more or above; fill and drain no less. The optimizer: the least over the allowed shares
waits         no fewer calls; what hides behind passes hides f + b more in each, which computation has already paid for
once a step   windows of gradients and parameters are w·b and w·f longer, w ≤ m: less than computation
every pass    m rounds hide m·(f + b) more: as much as computation. So a block counts m rounds, none of fill and drain
              (``Work.fill_rounds``), and where every pass reduces, w > 1 of the reductions between replicas would be paid twice:
              they have an endless window (``overlap.windows``)
far           gradients before computation ends: K ≤ m·v chunks of b/v, no more than computation. Of several chunks in a rank one
              may have more than its share of b: a block counts whole passes (``Work.chunk_backward_s``)
beside        products lose speed, element-wise work loses HBM: the largest and no element-wise share (``rank_seconds``)
memory        every part of what a layer keeps at its least, nothing rerun, the largest shares on the host (``memory``)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats, Ints
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.priced import Priced
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Search
from scaleacross.spec.job import Job

MOST_AT_ONCE: Final = 4_000_000
"""Bases up to which policies are enumerated with all else: 0.6 GB as columns, and a few times that while they are sorted."""
CLOSED_TOGETHER: Final = 65_536
"""Candidates that blocks are closed into between two looks at the clock."""
TRIED: Final = 16
"""Blocks that are closed to find one promising candidate."""


def space_on(state: Search, placer: Placer) -> SearchSpace:
    """What is searched on the placer's fleet, every policy chosen."""
    problem, fleet = state.problem, placer.fleet
    return SearchSpace(problem.job, problem.profile, fleet.num_accelerators, fleet.unit, by_stage=placer.by_stage)


def narrowed(space: SearchSpace) -> SearchSpace:
    """The space, with its policies open where it is too large to enumerate."""
    later = replace(space, policies_open=True)
    if len(space.policies) == 1:
        return space
    return later if sum(map(len, later.bases(Refusals()))) * len(space.policies) > MOST_AT_ONCE else space


def stands_for(job: Job, candidates: Candidates) -> Ints:
    """How many candidates each row stands for, (n,)."""
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
    return space.expressed(rows.take(whole), ("base", "split"), refusals)


def promising(state: Search, priced: Priced, placer: Placer, most: int) -> Priced:
    """Candidates to place first, ``most`` at most, with the tight bound: the rows themselves, or what is best of a few blocks."""
    if not priced.candidates.policy_open.any():
        return priced
    few = priced.candidates.take(np.argsort(priced.estimate_s, kind="stable")[:TRIED])
    rows = closed(space_on(state, placer), few, Refusals())
    rows = rows.take(placer.pricing.needed_bytes(rows) <= placer.pricing.capacity_bytes)
    found = placer.pricing.coarse(rows)
    return placer.pricing.tight(found.take(np.argsort(found.estimate_s, kind="stable")[:most]))


def in_parts(state: Search, blocks: Sequence[tuple[Priced, Placer]]) -> Iterator[list[tuple[Priced, Placer]]]:
    """The candidates of blocks that fit and may win, with the coarse bound, least bound of a block first."""
    owner = np.repeat(np.arange(len(blocks)), [len(priced.bound_s) for priced, _ in blocks])
    row = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(len(priced.bound_s)) for priced, _ in blocks)])
    bounds: Floats = np.concatenate([np.zeros(0), *(priced.bound_s for priced, _ in blocks)])
    counts = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(stands_for(state.problem.job, p.candidates) for p, _ in blocks)]
    )
    order = np.argsort(bounds, kind="stable")
    together = max(1, CLOSED_TOGETHER // int(counts.max(initial=1)))
    for start in range(0, len(order), together):
        if bounds[order[start]] >= state.target_s or state.out_of_time:
            state.drop(bounds[order[start:]], counts[order[start:]])
            return
        part = order[start : start + together]
        yield [_closed_block(state, blocks[one], row[part[owner[part] == one]]) for one in np.unique(owner[part])]
        state.tell("closing", min(start + together, len(order)), len(order))


def _closed_block(state: Search, block: tuple[Priced, Placer], rows: Ints) -> tuple[Priced, Placer]:
    """The candidates of some rows of a block."""
    priced, placer = block
    pricing = placer.pricing
    candidates = closed(space_on(state, placer), priced.candidates.take(rows), state.refusals)
    one_each = np.ones(len(candidates), dtype=np.int64)
    fits = state.fit(
        pricing, pricing.needed_bytes(candidates), lambda some: pricing.coarse(candidates.take(some)).bound_s, one_each
    )
    found = pricing.coarse(candidates.take(fits))
    return found.take(state.keep(found.bound_s)), placer
