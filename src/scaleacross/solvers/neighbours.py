"""Neighbours of the best candidate: those that differ in one choice, placed as long as one of them is faster.

Blocks of candidates come in the order of estimates, which on several accelerator types are wrong by pipelines and links: a
pipeline of three chunks instead of four may be thousands of candidates away from the best known. It is one step away here, and
each step makes the incumbent that prunes everything else. Neighbours are placed again in their turn, so that the proof knows
nothing of this. On one type the bound serves as estimate, and the next block is as good a guess: of DeepSeek-V3 in five
buildings a climb took 20 s of CPU when it was tried, and the plan stayed the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Candidates, concatenate
from scaleacross.solvers.open_policies import promising
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Placed, Search, forget

DEGREES: Final = ("tp", "cp", "pp", "dp")
CHOICES: Final = (("micro_batch",), ("schedule", "num_chunks"), ("ep", "expert_lanes"))
POLICY: Final = ("recompute", "activation_offload", "optimizer_offload")
SPLIT: Final = (("shard", "dp_replicate"), ("context", "cp_inner"))
"""Columns that are chosen together; those of SPLIT are open in a base."""
PLACED: Final = 16
"""Neighbours that are placed around one candidate at most: a choice."""


def climb(state: Search, space: SearchSpace, placer: Placer, bases: Sequence[Candidates]) -> None:
    """Place the neighbours of the best candidate with the least estimates, then those of the best of them, until none is faster.

    Args:
        bases: of the placer's fleet (``SearchSpace.bases``), in any order.
    """
    if len(placer.fleet.accelerators) == 1:
        return
    while (best := state.best) is not None and best.placer is placer and not state.out_of_time:
        _place_neighbours(state, space, best, bases)
        if state.best is best:
            return


def _place_neighbours(state: Search, space: SearchSpace, best: Placed, bases: Sequence[Candidates]) -> None:
    """Those that fit and may be faster, the least estimates first."""
    one, placer = best.candidates, best.placer
    pricing = placer.pricing
    closed = CHOICES if space.policies_open else (*CHOICES, POLICY)
    near = concatenate([some.take(_near(some, one, closed)) for some in bases])
    rows = space.expand(near, Refusals())
    rows = rows.take(_near(rows, one, (*closed, *SPLIT)))
    rows = rows.take(pricing.needed_bytes(rows) <= pricing.capacity_bytes)
    if not len(rows):
        return
    priced = pricing.coarse(rows)
    priced = priced.take(priced.estimate_s < state.target_s)
    if not len(priced.bound_s):
        return
    block = promising(state, pricing.tight(priced), placer, PLACED)
    for row in np.argsort(block.estimate_s, kind="stable")[:PLACED]:
        if block.estimate_s[row] >= state.target_s or state.out_of_time:
            return
        state.place(block, int(row), placer, below_s=state.incumbent_s, in_time=True, left=forget)


def _near(rows: Candidates, one: Candidates, choices: Sequence[Sequence[str]]) -> Bools:
    """Which rows differ from a candidate in one of ``choices``, or in one or two degrees."""
    degrees = np.sum([_differs(rows, one, (name,)) for name in DEGREES], axis=0)
    others = np.sum([_differs(rows, one, names) for names in choices], axis=0)
    near: Bools = (degrees <= 2) & (others + (degrees > 0) <= 1)
    return near


def _differs(rows: Candidates, one: Candidates, names: Sequence[str]) -> Bools:
    return np.logical_or.reduce([getattr(rows, name) != getattr(one, name)[0] for name in names])
