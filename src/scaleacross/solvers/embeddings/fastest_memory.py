"""Move tables to faster memory where the busiest rank does not decide: the fastest with room, on the same ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Ints
from scaleacross.cost_models.embedding.options import Assignment, ShardingProblem, loads_of

_LEAST: Final = 1e-9
"""Share of a shard's seconds below which nothing counts as saved."""


def in_fastest_memory(problem: ShardingProblem, assignment: Assignment) -> Assignment:
    """The plan with every table in the fastest memory that has room for it, with the same sharding and ranks.

    The table that saves most seconds over its ranks moves first. No rank gets slower, and exchanges stay as they are.
    """
    stored, chosen, moved = loads_of(problem, assignment)[1], list(assignment.option), True
    while moved:
        moved = False
        for _, table, index in sorted(_moves(problem, chosen, assignment.ranks), reverse=True):
            own, ranks = problem.options[table], assignment.ranks[table]
            held, shards = np.unique(ranks, return_counts=True)
            after = stored[held] + shards[:, None] * (own[index].memory - own[chosen[table]].memory)
            fits = (after <= problem.fleet.capacity[held]).all()
            if fits and own[index].seconds.sum() < own[chosen[table]].seconds.sum():
                stored[held], chosen[table], moved = after, index, True
    return replace(assignment, option=tuple(chosen))


def _moves(problem: ShardingProblem, chosen: Sequence[int], where: Sequence[Ints]) -> Iterator[tuple[float, int, int]]:
    """Yield (seconds saved over all ranks, table, option) of moves that make no rank slower."""
    for table, (options, now, ranks) in enumerate(zip(problem.options, chosen, where, strict=True)):
        own, counts = options[now], np.bincount(problem.fleet.rank_class[ranks], minlength=problem.fleet.num_classes)
        for index, option in enumerate(options):
            saved = own.seconds - option.seconds
            alike = (option.sharding, option.column_width) == (own.sharding, own.column_width)
            if alike and saved.min() >= 0 and saved.max() > own.seconds.max() * _LEAST:
                yield float(saved @ counts), table, index
