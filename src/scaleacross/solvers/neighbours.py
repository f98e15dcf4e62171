"""Climb from a candidate to neighbours that differ in one choice; for mixed pools, and for ties after a search.

Blocks of candidates come in the order of estimates. On mixed pools the errors of estimates depend on pipelines and
links. A pipeline of three chunks instead of four may then be thousands of candidates away from the best known, but it
is a neighbour here. Every block gives a start, however slow: the result of a few steps may be the best of all, and a
faster start may lead nowhere. Where a block has pipeline depths that no block before it had, it gives one start of each,
and the fastest of them is climbed from. Neighbours are placed again in their turn, so the proof does not depend on
this. On one accelerator type estimates are closer, and the next block is as good a guess. For DeepSeek-V3 in five
buildings a climb took 20 s of CPU, and the plan stayed the same.

After a search on any pool, neighbours of its best may tie with it; they are then simulated (``Climber.place_ties``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Candidates, concatenate
from scaleacross.cost_models.columns import columns_of
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.open_policies import promising
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Placed, Search, forget

DEGREES: Final = ("tp", "cp", "pp", "dp")
"""Degrees, of which a neighbour may change one or two."""
CHOICES: Final = (("micro_batch",), ("schedule", "num_chunks"), ("ep", "expert_lanes"))
POLICY: Final = ("recompute", "activation_offload", "optimizer_offload")
SPLIT: Final = (("shard", "dp_replicate"), ("context", "cp_inner"))
"""Columns that are chosen together. A partial candidate leaves those of SPLIT open."""
PLACED: Final = 16
"""Most neighbours that are placed around one candidate: a choice."""
KIND: Final = ("tp", "cp", "pp", "ep", "schedule", "num_chunks", "micro_batch")
"""Columns that two candidates of a kind share: their estimates have about the same error."""
LOOKED_AT: Final = 1024
"""Neighbours among which kinds are distinguished: a choice."""
KINDS_TIED: Final = 8
"""Kinds that may tie with the best, of which one candidate each is placed: a choice, up to 0.4 s of CPU each."""


@dataclass
class Climber:
    """Climbs from candidate to candidate on one accelerator pool, and places none twice.

    Attributes:
        partials: partial candidates of the pool (``SearchSpace.partials``), in any order.
        depths: numbers of pipeline ranks that a climb started from, or was to start from.
    """

    state: Search
    space: SearchSpace
    partials: Sequence[Candidates]
    depths: set[int] = field(default_factory=set)
    _tried: set[bytes] = field(default_factory=set)

    def climb(self, start: Placed | None) -> None:
        """Place neighbours of a candidate, least estimates first, then those of the fastest, while one is faster."""
        best = start
        while best is not None and not self.state.out_of_time:
            best = self._fastest_neighbour(best)

    def _fastest_neighbour(self, best: Placed) -> Placed | None:
        """The fastest neighbour that fits and is faster than ``best``, or None; least estimates are tried first."""
        found, below_s = None, best.step_s
        for bounded in self._neighbours(best, below_s, PLACED):
            if bounded.estimate_s[0] >= below_s or self.state.out_of_time:
                break
            key = b"".join(column.tobytes() for column in columns_of(bounded.candidates))
            if key not in self._tried:
                self._tried.add(key)
                placed = self.state.place(bounded, 0, best.placer, below_s=below_s, in_time=True, left=forget)
                found, below_s = (found, below_s) if placed is None else (placed, placed.step_s)
        return found

    def place_ties(self, best: Placed, below_s: float, late: Callable[[], bool]) -> None:
        """Place one neighbour of each kind other than that of ``best`` that stays below ``below_s`` seconds.

        The least estimates come first, and no placement begins once ``late`` returns true. These neighbours were not
        placed before, because a search drops whatever is slower than the incumbent by estimate, however little.
        """
        kinds = {_kind(best.candidates)}
        for bounded in self._neighbours(best, below_s, LOOKED_AT):
            kind = _kind(bounded.candidates)
            if kind not in kinds and len(kinds) <= KINDS_TIED and not late():
                self.state.tell("ties: placing", len(kinds), KINDS_TIED)
                kinds.add(kind)
                self.state.place(bounded, 0, best.placer.unlimited(), below_s=below_s, left=forget)

    def _neighbours(self, best: Placed, below_s: float, most: int) -> Iterator[Bounded]:
        """Yield at most ``most`` neighbours that fit and have estimates below ``below_s``, least estimates first."""
        one, space, bounder = best.candidates, self.space, best.placer.bounder
        closed = CHOICES if space.policies_open else (*CHOICES, POLICY)
        near = concatenate([some.take(_near(some, one, closed)) for some in self.partials])
        rows = space.expand(near, Refusals())
        rows = rows.take(_near(rows, one, (*closed, *SPLIT)))
        rows = rows.take(bounder.needed_bytes(rows) <= bounder.capacity_bytes)
        if not len(rows):
            return
        bounded = bounder.coarse(rows)
        bounded = bounded.take(bounded.estimate_s < below_s)
        if not len(bounded.bound_s):
            return
        block = promising(self.state, bounder.tight(bounded), best.placer, most)
        yield from (block.take(np.array([row])) for row in np.argsort(block.estimate_s, kind="stable")[:most])


def _kind(one: Candidates) -> tuple[int, ...]:
    return tuple(int(getattr(one, name)[0]) for name in KIND)


def _near(rows: Candidates, one: Candidates, choices: Sequence[Sequence[str]]) -> Bools:
    """Which rows differ from one candidate in one of ``choices``, or in one or two degrees, (n,)."""
    degrees = np.sum([_differs(rows, one, (name,)) for name in DEGREES], axis=0)
    others = np.sum([_differs(rows, one, names) for names in choices], axis=0)
    # two degrees may change together, because the number of accelerators is their product
    near: Bools = (degrees <= 2) & (others + (degrees > 0) <= 1)
    return near


def _differs(rows: Candidates, one: Candidates, names: Sequence[str]) -> Bools:
    return np.logical_or.reduce([getattr(rows, name) != getattr(one, name)[0] for name in names])
