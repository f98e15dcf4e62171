"""Bound and prune the candidates of one pool in blocks: steps 1 to 4 of the joint search (``joint``).

A *partial candidate* lacks its split of dp and its shard level, so it stands for several candidates.
``bound_pool`` is a generator, so that ``joint.search`` can let pools take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import NOTHING, Candidates, Floats, Ints, concatenate
from scaleacross.solvers.beyond import Beyond, pipelines_of
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.neighbours import Climber
from scaleacross.solvers.open_policies import narrowed, promising, space_on, stands_for
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.place_survivors import place_survivors
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Placed, Search, forget

TIES_SHARE: Final = 0.1
"""Share of a limit in seconds that ties may take beyond it: a choice."""
TIGHT_BLOCK: Final = 16_384
"""Candidates per tight-bound evaluation: many enough for arrays to pay, few enough to stop early."""
TIGHT_PART: Final = 4096
"""Candidates on several accelerator types that get it between two looks at the clock, about a second."""
PROMISING: Final = 2048
"""Candidates of a block that get the tight bound at once, so that the best of them is placed."""
TRIED: Final = 4
"""Most candidates of a block on one accelerator type that get exact step times at once: a choice. On several types the
neighbours of the best are tried instead."""
TRIED_TIGHT: Final = 16
"""The same number for a block with tight bounds, which take seconds on several types: a choice."""
PATIENCE: Final = 12
"""Exact step times in a row without an improvement after which the first trial of a candidate ends: a choice. The
candidate is placed in full in its turn."""
WORTH: Final = 0.05
"""Share of the incumbent that a second candidate is expected to save at least: a choice. A placement takes a second on
100,000 accelerators, and all candidates have their turn later."""
PARTIAL_BLOCK: Final = 1024
"""Partial candidates that are expanded together."""
PARTIAL_PART: Final = 16_384
"""Partial candidates that are bounded together: half a second while there is no incumbent."""
PROBED: Final = 8192
"""Partial candidates in the sample that gives the first incumbent."""
PROBED_DEEPLY: Final = 128
"""Partial candidates of the sample that are expanded."""


class Partials(NamedTuple):
    """Partial candidates with their bounds, the number of candidates that each stands for, and their estimates, (n,) each."""

    candidates: Candidates
    bound_s: Floats
    counts: Ints
    estimate_s: Floats

    def take(self, rows: Ints) -> Partials:
        """Return the partial candidates selected by an index array."""
        return Partials(self.candidates.take(rows), self.bound_s[rows], self.counts[rows], self.estimate_s[rows])

    def in_turn(self, beyond: Beyond, below_s: float) -> Ints:
        """Return the rows in ascending order of their estimates.

        Where nothing in the next block is expected to stay ``below_s`` but others are, expected step times order them.
        """
        order = np.argsort(self.estimate_s, kind="stable")
        expected_s = beyond.expected_s(self.candidates, self.estimate_s)
        hopeful = expected_s < below_s
        stays = hopeful[order[:PARTIAL_BLOCK]].any() or not hopeful.any()
        return order if stays else np.argsort(expected_s, kind="stable")


def bound_pool(state: Search, placer: Placer) -> Iterator[tuple[Bounded, Placer] | None]:
    """Run steps 1 to 3 on one pool and yield the candidates whose coarse bound is below the incumbent, a block a turn.

    The first turn places a sample and yields None.
    """
    job, space = state.problem.job, narrowed(space_on(state, placer))
    again = placer.least_stages > 1  # what a rule refuses, or memory, was counted with equal stages
    refusals = Refusals() if again else state.refusals
    enumerated = _enumerate(state, space, refusals, placer.least_stages)
    climber = Climber(state, space, [partials for partials, _ in enumerated])
    if not again:
        _place_most_promising(state, _sample(state, space, placer.bounder, enumerated), placer, climber)
    yield None
    left = _partials(state, placer.bounder, enumerated)
    total = len(left.bound_s)
    while len(left.bound_s) and not state.out_of_time:
        left = left.take(np.flatnonzero(state.keep(left.bound_s, left.counts)))
        order = left.in_turn(placer.beyond, state.target_s)
        block, left = left.take(order[:PARTIAL_BLOCK]).candidates, left.take(order[PARTIAL_BLOCK:])
        fitting = _that_fit(state, placer.bounder, space.expand(block, refusals))
        if not len(fitting):
            continue
        bounded = placer.bounder.coarse(fitting)
        state.free_bound_s = min(state.free_bound_s, float(bounded.free_s.min()))
        _place_most_promising(state, bounded, placer, climber)
        state.tell("bounding", total - len(left.bound_s), total)
        yield bounded.take(state.keep(bounded.bound_s, stands_for(job, bounded.candidates))), placer
    state.drop(left.bound_s, left.counts)


def end_of_ties(state: Search) -> Callable[[], bool]:
    """Return a function that tells whether work on ties must end.

    It ends where the caller stops it, or at the end of a limit in seconds; after ``TIES_SHARE`` of it from now where that
    is later.
    """
    ends_s = max(state.time_limit_s, state.elapsed_s + TIES_SHARE * state.time_limit_s)
    return lambda: state.stopped() or (state.work_limit is None and state.elapsed_s > ends_s)


def place_ties(state: Search, best: Placed, below_s: float) -> None:
    """Place candidates of other kinds than the best that stay below ``below_s``, after a search, to ``end_of_ties``."""
    placer = best.placer
    space, late = narrowed(space_on(state, placer)), end_of_ties(state)
    every: list[Candidates] = []
    for partials in space.partials(Refusals()):
        if late():
            break
        if len(partials) and int(partials.pp[0]) >= placer.least_stages:
            every.append(partials)
    if every:
        Climber(state, space, every).place_ties(best, below_s, late)


def _enumerate(
    state: Search, space: SearchSpace, refusals: Refusals, least_stages: int
) -> list[tuple[Candidates, Ints]]:
    """Return the partial candidates with at least ``least_stages`` stages in batches, and how many candidates each stands for."""
    batches = []
    for partials in space.partials(refusals):
        if not len(partials) or int(partials.pp[0]) < least_stages:
            continue
        batches.append((partials, space.num_candidates(partials) * stands_for(space.job, partials)))
        state.num_candidates += int(batches[-1][1].sum())
        state.several_stages |= bool((partials.pp > 1).any())
        state.several_chunks |= bool(((partials.num_chunks > 1) & (partials.pp > 1)).any())
        state.tell("enumerating", state.num_candidates)
        if state.out_of_time:
            state.drop(np.zeros(1))  # nothing is known of the partial candidates that follow
            break
    return batches


def _sample(
    state: Search, space: SearchSpace, bounder: Bounder, enumerated: list[tuple[Candidates, Ints]]
) -> Bounded | None:
    """Return candidates of a sample of partial candidates, for a first incumbent; None of few, or if none fits.

    Every pipeline depth has one at least.
    """
    total = sum(len(partials) for partials, _ in enumerated)
    if total < 2 * PROBED or state.out_of_time:
        return None
    every = total // PROBED
    sample = concatenate([partials.take(np.arange(0, len(partials), every)) for partials, _ in enumerated])
    sample = sample.take(bounder.partial_needed_bytes(sample) <= bounder.capacity_bytes)
    expected = bounder.partial_estimate_s(sample, bounder.partial_bound_s(sample))
    order = np.argsort(expected, kind="stable")
    first_of_depth = np.unique(sample.pp[order], return_index=True)[1]
    best = sample.take(np.unique(np.append(order[:PROBED_DEEPLY], order[first_of_depth])))
    rows = space.expand(best, Refusals())
    rows = rows.take(bounder.needed_bytes(rows) <= bounder.capacity_bytes)
    return bounder.coarse(rows) if len(rows) else None


def _partials(state: Search, bounder: Bounder, enumerated: list[tuple[Candidates, Ints]]) -> Partials:
    """Return the partial candidates that may fit and win (step 1).

    The layers alone prune first, then computation rank by rank, then memory, then the bound with communication.
    """
    parts, bounds, counts, estimates, fast = [], [], [], [], list[tuple[Candidates, Ints, Floats]]()
    for batch, count in _in_parts(enumerated):
        floor = np.zeros(len(batch)) if state.out_of_time else bounder.partial_floor_s(batch)
        keep = state.keep(floor, count)
        fast.append((batch.take(keep), count[keep], floor[keep]))
    for partials, count, floor in fast:
        if state.out_of_time:
            state.drop(floor, count)
            continue
        keep = state.keep(bounder.partial_free_s(partials), count)
        partials, count = partials.take(keep), count[keep]
        fits = state.fit(
            bounder, bounder.partial_needed_bytes(partials), partial(_of_rows, bounder.partial_bound_s, partials), count
        )
        partials, count = partials.take(fits), count[fits]
        bound = bounder.partial_bound_s(partials)
        keep = state.keep(bound, count)
        partials, bound = partials.take(keep), bound[keep]
        parts.append(partials)
        bounds.append(bound)
        counts.append(count[keep])
        estimates.append(bounder.partial_estimate_s(partials, bound))
        state.tell("bounding", sum(map(len, parts)))
    if not parts:
        return Partials(NOTHING, np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0))
    return Partials(concatenate(parts), np.concatenate(bounds), np.concatenate(counts), np.concatenate(estimates))


def _in_parts(enumerated: list[tuple[Candidates, Ints]]) -> Iterator[tuple[Candidates, Ints]]:
    """Yield the same partial candidates in parts of ``PARTIAL_PART``, so that the clock is looked at in between."""
    for partials, count in enumerated:
        for start in range(0, len(partials), PARTIAL_PART):
            rows = np.arange(start, min(start + PARTIAL_PART, len(partials)))
            yield partials.take(rows), count[rows]


def _place_most_promising(state: Search, bounded: Bounded | None, placer: Placer, climber: Climber) -> None:
    """Place candidates whose estimates are below the incumbent; they are placed again in their turn.

    On one accelerator type these are the most promising candidates. On several types these are the ones with the least
    estimates, overall and of every pipeline depth, and the neighbours of the fastest.
    """
    if bounded is None or state.out_of_time:
        return
    several, figures = len(placer.pool.accelerators) > 1, [bounded.estimate_s]
    if not several:
        figures.append(placer.beyond.expected_s(bounded.candidates, bounded.estimate_s))
    block = bounded.take(np.unique([np.argsort(figure, kind="stable")[:PROMISING] for figure in figures]))
    # the tight bound is slow, so hopeless rows are dropped before it
    block = block.take(block.estimate_s < state.target_s)
    if not len(block.bound_s):
        return
    block = placer.bounder.tight(block)
    if several:
        climber.climb(_fastest_start(state, block, placer.unlimited(), climber))
    else:
        _place_best(state, block, placer, TRIED, lambda: state.incumbent_s)


def _fastest_start(state: Search, block: Bounded, placer: Placer, climber: Climber) -> Placed | None:
    """Place the candidate with the least estimate and those of pipeline depths without a climb; return the fastest.

    Errors of estimates depend on the depth, so the least of all estimates may mislead.
    """
    depths = block.candidates.pp[np.argsort(block.estimate_s, kind="stable")]
    new = [depth for depth in dict.fromkeys(depths.tolist()) if depth not in climber.depths and depth != depths[0]]
    climber.depths.update(depths.tolist())
    parts = [block, *(block.take(block.candidates.pp == depth) for depth in new)]
    starts = [_place_best(state, part, placer, 1, lambda: np.inf) for part in parts]
    return min((one for one in starts if one is not None), key=lambda one: one.step_s, default=None)


def _place_best(
    state: Search, block: Bounded, placer: Placer, most: int, below_s: Callable[[], float]
) -> Placed | None:
    """Place the candidate with the least estimate, then those with the least expected step time.

    It ends once ``most`` candidates got exact step times: bounds on its allocations rule out a candidate in a tenth of
    the time. The first is placed if its estimate is below the incumbent, the others if they may save ``WORTH`` of it.
    Returns the last candidate whose step is below ``below_s``.
    """
    block = promising(state, block, placer, PROMISING)
    left_s = np.where(block.estimate_s < state.target_s, block.estimate_s, np.inf)
    found: Placed | None = None
    number = timed = 0
    while timed < most:
        expected_s = placer.beyond.expected_s(block.candidates, left_s) if number else left_s
        most_s = state.target_s * (1 - WORTH if number else 1)
        if expected_s.min(initial=np.inf) >= most_s or state.out_of_time:
            break
        row, known_s, before = int(expected_s.argmin()), below_s(), state.num_timed
        placed = state.place(block, row, placer, below_s=known_s, in_time=True, left=forget, patience=PATIENCE)
        # a candidate that could not be placed takes at least the limit that it was placed under
        took_s = known_s if placed is None else placed.step_s
        if np.isfinite(took_s):
            placer.beyond.learn(pipelines_of(block.candidates)[row], float(left_s[row]), took_s)
        left_s[row], found = np.inf, placed or found
        number, timed = number + 1, timed + (state.num_timed > before)
    return found


def place_first(state: Search, blocks: Sequence[tuple[Bounded, Placer]], most: int) -> None:
    """Place the ``most`` candidates with the least estimates, whose recompute policies are chosen."""
    known = [one for one in blocks if len(one[0].bound_s) and not one[0].candidates.policy_open.any()]
    least = np.concatenate([np.zeros(0), *(bounded.estimate_s for bounded, _ in known)])
    # a partition finds the limit of the best PROMISING without sorting all estimates
    worst_s = np.partition(least, PROMISING)[PROMISING] if len(least) > PROMISING else np.inf
    few = [(bounded.take(bounded.estimate_s <= worst_s), placer) for bounded, placer in known]
    tight = [(placer.bounder.tight(bounded), placer) for bounded, placer in few if len(bounded.bound_s)]
    place_survivors(state, tight, most)


def _that_fit(state: Search, bounder: Bounder, candidates: Candidates) -> Candidates:
    counts = stands_for(state.problem.job, candidates)
    bound_s = partial(_of_rows, lambda some: bounder.coarse(some).bound_s, candidates)
    return candidates.take(state.fit(bounder, bounder.needed_bytes(candidates), bound_s, counts))


def _of_rows(law: Callable[[Candidates], Floats], candidates: Candidates, rows: Ints) -> Floats:
    return law(candidates.take(rows))


def tighten(state: Search, survivors: list[tuple[Bounded, Placer]]) -> list[tuple[Bounded, Placer]]:
    """Give all survivors the tight bound (step 4), the block with the least coarse estimate first.

    The most promising candidates of each block are placed at once. Returns the rows that may still win.
    """
    blocks, out = [], []
    for bounded, placer in survivors:
        ordered = bounded.take(np.argsort(bounded.estimate_s, kind="stable"))
        ordered = ordered.take(state.keep(ordered.bound_s, stands_for(state.problem.job, ordered.candidates)))
        for start in range(0, len(ordered.bound_s), TIGHT_BLOCK):
            rows = np.arange(start, min(start + TIGHT_BLOCK, len(ordered.bound_s)))
            blocks.append((ordered.take(rows), placer))
    done, total = 0, sum(len(block.bound_s) for block, _ in blocks)
    for block, placer in sorted(blocks, key=lambda one: float(one[0].estimate_s[0])):
        done += len(block.bound_s)
        tight = _tight_in_time(state, block, placer)
        if len(tight.bound_s) and not state.out_of_time:
            _place_best(state, tight, placer, TRIED_TIGHT, lambda: state.incumbent_s)
        out.append((tight.take(state.keep(tight.bound_s, stands_for(state.problem.job, tight.candidates))), placer))
        state.tell("bounding", done, total)
    return [(block, placer) for block, placer in out if len(block.bound_s)]


def _tight_in_time(state: Search, block: Bounded, placer: Placer) -> Bounded:
    """Return the block with tight bounds for as many first rows as there is time; the others keep the coarse bound.

    On several accelerator types a block takes seconds, so the clock is looked at after every part.
    """
    size = len(block.bound_s)
    step = size if len(placer.pool.accelerators) == 1 else TIGHT_PART
    bound, estimate = block.bound_s.copy(), block.estimate_s.copy()
    for start in range(0, size, max(1, step)):
        if state.out_of_time:
            break
        rows = np.arange(start, min(start + step, size))
        tight = placer.bounder.tight(block.take(rows))
        bound[rows], estimate[rows] = tight.bound_s, tight.estimate_s
    return replace(block, bound_s=bound, estimate_s=estimate)
