"""Plans by random keys: a genetic algorithm that evaluates hundreds of plans at a time.

A plan is written as an option and a key for every table. Shards are placed in falling order of seconds × e^key, each on
the rank (or host) that is least busy after it and has room. ``construct.pack`` follows the same rule for one plan. So
options are judged by their packed result, not by sums, and keys make up for the loss of a fixed order. Biased
random-key genetic algorithm: Gonçalves and Resende, Journal of Heuristics 17, 2011.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.embedding.options import Assignment, ShardingProblem
from scaleacross.solvers.embeddings.choices import Alike

MOST_PLACES: Final = 30_000
"""Shards times ranks beyond which a generation takes a quarter of a second and more."""
_AT_ONCE: Final = 256
_KEPT: Final = 48
_PATIENCE: Final = 200
"""Generations without a faster plan before the search ends."""
_MIXED, _FROM_OTHER = 0.5, 0.3
"""Share of new plans with two parents, and share of their tables that come from the second parent."""
_CHANGES: Final = (1, 2, 3)
"""Average number of tables that change in a new plan: one of these."""
_OTHER_OPTION, _NO_KEY, _KEY_STEP = 0.6, 0.3, 0.2
"""Shares of changing tables with another option and of changing keys set to 0; deviation of the other keys' steps."""


class RandomKeys:
    """The search for one problem; draws repeat with the seed."""

    def __init__(self, problem: ShardingProblem, groups: Sequence[Alike], seed: int) -> None:
        fleet, self.problem, self.dice = problem.fleet, problem, np.random.default_rng(seed)
        own = {table: group.options for group in groups for table in group.tables}
        self.kept = [tuple(index for index, _ in own[table]) for table in range(len(problem.tables))]
        options = [option for table in range(len(problem.tables)) for _, option in own[table]]
        self.many: Ints = np.array([len(kept) for kept in self.kept])
        self.first: Ints = np.cumsum(self.many) - self.many
        tiers = np.flatnonzero(fleet.capacity.any(axis=0))
        self.capacity: Floats = fleet.capacity[:, tiers]
        # the last row is no shard: plans with fewer shards than others place it instead
        self.seconds: Floats = np.array([o.seconds[fleet.rank_class] for o in options] + [np.zeros(fleet.num_ranks)])
        self.memory: Floats = np.array([o.memory[tiers] for o in options] + [np.zeros(len(tiers))])
        self.shards: Ints = np.array([0 if o.spread == "all" else o.num_shards for o in options] + [0])
        self.everywhere: Bools = np.array([o.spread == "all" for o in options] + [False])
        self.on_unit: Bools = np.array([o.spread == "unit" for o in options] + [False])
        slots = np.maximum.reduceat(self.shards[:-1], self.first)
        self.slot_table: Ints = np.repeat(np.arange(len(slots)), slots)
        self.slot_number: Ints = np.concatenate([np.arange(many) for many in slots])
        self.units: Ints = np.stack(fleet.units) if fleet.units else np.zeros((0, 1), dtype=np.int64)
        self.all_ranks: Ints = np.arange(fleet.num_ranks)
        self.unit_of: Ints = np.zeros(fleet.num_ranks, dtype=np.int64)
        for number, unit in enumerate(fleet.units):
            self.unit_of[unit] = number

    @property
    def places(self) -> int:
        """Most shards times ranks: the work of placing one plan."""
        return len(self.slot_table) * self.problem.fleet.num_ranks

    def plans(self, starts: Sequence[Sequence[int]], best_s: float, left: Callable[[], float]) -> Iterator[Assignment]:
        """Yield ever faster plans, below ``best_s``, until time ends or nothing improves for a while.

        Args:
            starts: option of every table in each starting plan, as indices into the problem's options.
        """
        begin: Ints = np.array(
            [[own.index(i) if i in own else 0 for own, i in zip(self.kept, one, strict=True)] for one in starts]
        )
        # an option longer than the best plan on every rank cannot be part of a faster one
        allowed = self.seconds[:-1].min(axis=1) <= best_s
        ways = [np.flatnonzero(allowed[at : at + many]) for at, many in zip(self.first, self.many, strict=True)]
        count = np.array([len(own) for own in ways])
        if not count.all():
            return
        # rows are padded by repetition to one length; draws use the first ``count`` entries only
        choices = np.stack([np.resize(own, count.max()) for own in ways])
        picks, keys, top, quiet = begin, np.zeros(begin.shape), np.zeros(0), 0
        while quiet < _PATIENCE and left() > 0:
            if len(top):
                new = self._changed(picks, keys, choices, count)
                picks, keys = np.vstack([picks, new[0]]), np.vstack([keys, new[1]])
            top = np.concatenate([top, self._placed(picks[len(top) :], keys[len(top) :])[0]])
            # plans of equal time are taken as one, which keeps the population varied
            kept = np.unique(np.round(top / top.min(), 7) if 0 < top.min() < np.inf else top, return_index=True)[1][
                :_KEPT
            ]
            picks, keys, top = picks[kept], keys[kept], top[kept]
            quiet += 1
            if top[0] < best_s * (1 - 1e-9):
                best_s, quiet = float(top[0]), 0
                yield self._assignment(picks[0], keys[0])

    def _changed(self, picks: Ints, keys: Floats, choices: Ints, count: Ints) -> tuple[Ints, Floats]:
        """New options and keys, (_AT_ONCE, tables) each, from the best plans."""
        dice, shape = self.dice, (_AT_ONCE, len(self.many))
        # the lesser of two draws prefers the faster parents, which come first
        one = dice.integers(len(picks), size=(2, _AT_ONCE)).min(axis=0)
        other = dice.integers(len(picks), size=_AT_ONCE)
        share = np.where(dice.random((_AT_ONCE, 1)) < _MIXED, _FROM_OTHER, 0.0)
        crossed = dice.random(shape) < share
        picks, keys = np.where(crossed, picks[other], picks[one]), np.where(crossed, keys[other], keys[one])
        rate = dice.choice(_CHANGES, size=(_AT_ONCE, 1)) / len(self.many)
        drawn = choices[np.arange(len(self.many)), (dice.random(shape) * count).astype(np.int64)]
        moved = (dice.random(shape) < rate) & (dice.random(shape) < _OTHER_OPTION)
        stepped = np.where(dice.random(shape) < _NO_KEY, 0.0, keys + dice.normal(0, _KEY_STEP, shape))
        return np.where(moved, drawn, picks), np.where(dice.random(shape) < rate, stepped, keys)

    def _placed(self, picks: Ints, keys: Floats) -> tuple[Floats, Ints, Ints]:
        """Place plans of options and keys, (plans, tables) each.

        Returns:
            Seconds of the busiest rank, inf where a shard has no room; the order of slots; the rank of each.
        """
        options, row = self.first + picks, np.arange(len(picks))
        share = self.everywhere[options].astype(np.float64)
        load = np.einsum("pt,ptr->pr", share, self.seconds[options])
        memory = np.repeat(np.einsum("pt,ptm->pm", share, self.memory[options])[:, None], load.shape[1], axis=1)
        full = (memory > self.capacity).any(axis=(1, 2))
        placed = options[:, self.slot_table]
        placed = np.where(self.slot_number < self.shards[placed], placed, len(self.seconds) - 1)
        order = np.argsort(-self.seconds.max(axis=1)[placed] * np.exp(keys[:, self.slot_table]), axis=1, kind="stable")
        placed = np.take_along_axis(placed, order, axis=1)
        ranks: Ints = np.zeros(placed.shape, dtype=np.int64)
        # one shard of every plan per pass: as many passes as the plan with most shards has shards
        for step in range(int((placed < len(self.seconds) - 1).sum(axis=1).max())):
            option = placed[:, step]
            seconds, held, whole = self.seconds[option], self.memory[option], self.on_unit[option]
            score = load + seconds
            score[(memory + held[:, None] > self.capacity).any(axis=2)] = np.inf
            if whole.any():
                # a table on a whole host is scored by the busiest rank there
                score = np.where(whole[:, None], score[:, self.units].max(axis=2)[:, self.unit_of], score)
            rank = ranks[:, step] = score.argmin(axis=1)
            full |= np.isinf(score[row, rank])
            hit = self.all_ranks == rank[:, None]
            if whole.any():
                hit |= whole[:, None] & (self.unit_of == self.unit_of[rank][:, None])
            load += seconds * hit
            memory += held[:, None] * hit[..., None]
        return np.where(full, np.inf, load.max(axis=1)), order, ranks

    def _assignment(self, picks: Ints, keys: Floats) -> Assignment:
        _, order, ranks = self._placed(picks[None], keys[None])
        of_slot: Ints = np.zeros(len(self.slot_table), dtype=np.int64)
        of_slot[order[0]] = ranks[0]
        out, options = list[Ints](), self.first + picks
        for table, option in enumerate(options.tolist()):
            own = (
                self.all_ranks if self.everywhere[option] else of_slot[self.slot_table == table][: self.shards[option]]
            )
            if self.on_unit[option]:
                own = self.units[self.unit_of[own[0]]]
            out.append(np.sort(own))
        return Assignment(tuple(kept[pick] for kept, pick in zip(self.kept, picks.tolist(), strict=True)), tuple(out))
