"""Neighbours of a candidate on several accelerator types: those that differ in one choice, as long as one of them is faster.

Blocks of candidates come in the order of estimates, which on several accelerator types are wrong by pipelines and links: a
pipeline of three chunks instead of four may be thousands of candidates away from the best known. It is one step away here.
Every block gives a start, however slow that is: with a few steps it may be the best of all, and what is faster may lead
nowhere. Neighbours are placed again in their turn, so that the proof knows nothing of this. On one type estimates are closer,
and the next block is as good a guess: of DeepSeek-V3 in five buildings a climb took 20 s of CPU when it was tried, and the plan
stayed the same.

After a search, of any types, neighbours of its best may tie with it: the referee simulates them (``Climber.place_ties``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Candidates, concatenate
from scaleacross.cost_models.columns import columns_of
from scaleacross.solvers.open_policies import promising
from scaleacross.solvers.priced import Priced
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Placed, Search, forget

DEGREES: Final = ("tp", "cp", "pp", "dp")
CHOICES: Final = (("micro_batch",), ("schedule", "num_chunks"), ("ep", "expert_lanes"))
POLICY: Final = ("recompute", "activation_offload", "optimizer_offload")
SPLIT: Final = (("shard", "dp_replicate"), ("context", "cp_inner"))
"""Columns that are chosen together; those of SPLIT are open in a base."""
PLACED: Final = 16
"""Neighbours that are placed around one candidate at most: a choice."""
KIND: Final = ("tp", "cp", "pp", "ep", "schedule", "num_chunks", "micro_batch")
"""What two candidates of a kind share: what their estimates leave out is about the same."""
LOOKED_AT: Final = 1024
"""Neighbours among which kinds are told apart: a choice."""
KINDS_TIED: Final = 8
"""Kinds of which one candidate is placed that may tie with the best: a choice, up to 0.4 s of CPU each."""


@dataclass
class Climber:
    """Climbs from candidate to candidate on one fleet, none of which it places twice.

    Attributes:
        bases: of the fleet (``SearchSpace.bases``), in any order.
    """

    state: Search
    space: SearchSpace
    bases: Sequence[Candidates]
    _tried: set[bytes] = field(default_factory=set)

    def climb(self, start: Placed | None) -> None:
        """Place the neighbours of a candidate, the least estimates first, then those of the fastest, until none is faster."""
        best = start
        while best is not None and not self.state.out_of_time:
            best = self._fastest_neighbour(best)

    def _fastest_neighbour(self, best: Placed) -> Placed | None:
        """The fastest of those that fit and may be faster, the least estimates first; None: none of them is."""
        found, below_s = None, best.step_s
        for priced in self._neighbours(best, below_s, PLACED):
            if priced.estimate_s[0] >= below_s or self.state.out_of_time:
                break
            key = b"".join(column.tobytes() for column in columns_of(priced.candidates))
            if key not in self._tried:
                self._tried.add(key)
                placed = self.state.place(priced, 0, best.placer, below_s=below_s, in_time=True, left=forget)
                found, below_s = (found, below_s) if placed is None else (placed, placed.step_s)
        return found

    def place_ties(self, best: Placed, below_s: float, late: Callable[[], bool]) -> None:
        """Place the neighbours with the least estimates of other kinds than ``best``, one of each, that stay below ``below_s``.

        None is begun once it is ``late``.
        A search drops what is slower than the best known by estimate, however little: so these were not placed.
        """
        kinds = {_kind(best.candidates)}
        for priced in self._neighbours(best, below_s, LOOKED_AT):
            kind = _kind(priced.candidates)
            if kind not in kinds and len(kinds) <= KINDS_TIED and not late():
                self.state.tell("ties: placing", len(kinds), KINDS_TIED)
                kinds.add(kind)
                self.state.place(priced, 0, best.placer.unlimited(), below_s=below_s, left=forget)

    def _neighbours(self, best: Placed, below_s: float, most: int) -> Iterator[Priced]:
        """Those that fit and whose estimates are below ``below_s``, ``most`` of them, the least estimates first."""
        one, space, pricing = best.candidates, self.space, best.placer.pricing
        closed = CHOICES if space.policies_open else (*CHOICES, POLICY)
        near = concatenate([some.take(_near(some, one, closed)) for some in self.bases])
        rows = space.expand(near, Refusals())
        rows = rows.take(_near(rows, one, (*closed, *SPLIT)))
        rows = rows.take(pricing.needed_bytes(rows) <= pricing.capacity_bytes)
        if not len(rows):
            return
        priced = pricing.coarse(rows)
        priced = priced.take(priced.estimate_s < below_s)
        if not len(priced.bound_s):
            return
        block = promising(self.state, pricing.tight(priced), best.placer, most)
        yield from (block.take(np.array([row])) for row in np.argsort(block.estimate_s, kind="stable")[:most])


def _kind(one: Candidates) -> tuple[int, ...]:
    return tuple(int(getattr(one, name)[0]) for name in KIND)


def _near(rows: Candidates, one: Candidates, choices: Sequence[Sequence[str]]) -> Bools:
    """Which rows differ from a candidate in one of ``choices``, or in one or two degrees."""
    degrees = np.sum([_differs(rows, one, (name,)) for name in DEGREES], axis=0)
    others = np.sum([_differs(rows, one, names) for names in choices], axis=0)
    near: Bools = (degrees <= 2) & (others + (degrees > 0) <= 1)
    return near


def _differs(rows: Candidates, one: Candidates, names: Sequence[str]) -> Bools:
    return np.logical_or.reduce([getattr(rows, name) != getattr(one, name)[0] for name in names])
