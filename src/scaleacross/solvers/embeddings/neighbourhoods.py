"""Choose parts of a plan that a search frees and places again, and merge the result into the plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.embedding.options import Assignment, ShardingProblem, loads_of
from scaleacross.solvers.embeddings.exact import Part

_PART_SIZE: Final = 4_000
"""Approximate number of integer variables of a part."""


def next_part(problem: ShardingProblem, assignment: Assignment, dice: random.Random, rounds: int) -> Part:
    """Tables of the busiest rank and some others: free on all ranks, or all tables that lie inside a few ranks."""
    loads = loads_of(problem, assignment)
    load = loads[0].sum(axis=1)
    if dice.random() < 0.5:
        return _tables_part(problem, assignment, load, dice, loads)
    return _ranks_part(problem, assignment, _freed(problem, load, dice, 2 + rounds % 5), loads)


def _freed(problem: ShardingProblem, load: Floats, dice: random.Random, others: int) -> list[int]:
    """The busiest rank with the least busy ones and some others; now and then all ranks of such hosts."""
    order = np.argsort(-load)
    units = problem.fleet.units
    if units and len(units) > 1 and dice.random() < 0.4:
        tops = np.array([load[unit].max() for unit in units])
        picks = {int(tops.argmax()), int(tops.argmin()), dice.randrange(len(units))}
        return sorted(int(rank) for unit in picks for rank in units[unit])
    ties = [int(rank) for rank in order if load[rank] >= load[order[0]] * (1 - 1e-6)]
    chosen = {dice.choice(ties)} | {int(rank) for rank in order[-others // 2 :]}
    chosen |= {dice.randrange(len(load)) for _ in range(others)}
    return sorted(chosen)


def _ranks_part(
    problem: ShardingProblem, assignment: Assignment, ranks: Sequence[int], loads: tuple[Floats, Floats]
) -> Part:
    """The part of all tables that lie inside ``ranks``, free to move there."""
    inside = set(ranks)
    free = [
        table
        for table, held in enumerate(assignment.ranks)
        if inside.issuperset(map(int, held))
        and (problem.options[table][assignment.option[table]].spread != "all" or len(ranks) == problem.fleet.num_ranks)
    ]
    return _without(problem, assignment, free, np.array(ranks), loads)


def _tables_part(
    problem: ShardingProblem, assignment: Assignment, load: Floats, dice: random.Random, loads: tuple[Floats, Floats]
) -> Part:
    """The part of some tables, mostly of the busiest rank, free to move anywhere and to change their option."""
    fleet, busiest_rank = problem.fleet, int(load.argmax())
    size = {"one": fleet.num_ranks, "unit": len(fleet.units), "all": 1}
    here = [table for table, held in enumerate(assignment.ranks) if busiest_rank in held]
    rest = list(range(len(problem.tables)))
    dice.shuffle(here)
    dice.shuffle(rest)
    weights = [float(problem.options[t][assignment.option[t]].seconds.max()) for t in rest]
    rest = [table for _, table in sorted((-weight * dice.random(), t) for weight, t in zip(weights, rest, strict=True))]
    free: list[int] = []
    budget = _PART_SIZE
    for table in dict.fromkeys((*here[:4], *rest)):
        budget -= sum(size[option.spread] for option in problem.options[table])
        if free and budget < 0:
            break
        free.append(table)
    return _without(problem, assignment, free, np.arange(fleet.num_ranks), loads)


def _without(
    problem: ShardingProblem, assignment: Assignment, free: Sequence[int], own: Ints, loads: tuple[Floats, Floats]
) -> Part:
    """The part of the tables in ``free`` on the ranks ``own``, with the load of all other tables there."""
    load, stored = loads[0].sum(axis=1)[own], loads[1][own]
    at = {int(rank): index for index, rank in enumerate(own)}
    for table in free:
        option = problem.options[table][assignment.option[table]]
        for rank in assignment.ranks[table]:
            load[at[int(rank)]] -= option.seconds[problem.fleet.rank_class[rank]]
            stored[at[int(rank)]] -= option.memory
    return Part(tuple(free), own, np.maximum(load, 0.0), stored)


def merged(assignment: Assignment, found: dict[int, tuple[int, Ints]]) -> Assignment:
    """The plan with the new options and ranks of some tables."""
    option, ranks = list(assignment.option), list(assignment.ranks)
    for table, (index, own) in found.items():
        option[table], ranks[table] = index, own
    return Assignment(tuple(option), tuple(ranks))
