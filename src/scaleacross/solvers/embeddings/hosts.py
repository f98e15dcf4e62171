"""Keep column shards inside one host: any plan is turned into one that does.

Bounds, and plans that are built shard by shard, let such shards go to any ranks, which is a relaxation. Every plan
passes through here before it counts.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.embedding.options import Assignment, Option, ShardingProblem, loads_of

_FULL: Final = 1e30
"""Seconds that stand for a rank without room: more than any load."""


def inside_hosts(problem: ShardingProblem, assignment: Assignment) -> Assignment:
    """The plan with every table that must stay inside a host moved into one; the heaviest tables choose first.

    Each goes where the ranks stay least busy. Memory may overflow where no host has room; ``fits`` then refuses the
    plan.
    """
    fleet = problem.fleet
    options = [own[index] for own, index in zip(problem.options, assignment.option, strict=True)]
    astray = [
        table
        for table, (option, ranks) in enumerate(zip(options, assignment.ranks, strict=True))
        if option.in_one_host and len(np.unique(fleet.host_of[ranks])) > 1
    ]
    if not astray:
        return assignment
    parts, memory = loads_of(problem, assignment)
    load = parts.sum(axis=1)
    for table in astray:
        _add(problem, options[table], assignment.ranks[table], load, memory, -1)
    out = list(assignment.ranks)
    for table in sorted(astray, key=lambda table: -float(options[table].seconds.max()) * options[table].num_shards):
        places = [_on(problem, options[table], own, load, memory) for own in fleet.hosts]
        out[table] = min(places, key=lambda place: place[0])[1]
        _add(problem, options[table], out[table], load, memory, 1)
    return Assignment(assignment.option, tuple(out))


def _on(problem: ShardingProblem, option: Option, own: Ints, load: Floats, memory: Floats) -> tuple[float, Ints]:
    """Place all shards of an option on the host ``own``: seconds of the busiest rank with a shard, and the ranks."""
    fleet, held, stored, taken = problem.fleet, load[own].copy(), memory[own].copy(), list[int]()
    seconds, worst = option.seconds[fleet.rank_class[own]], 0.0
    for _ in range(option.num_shards):
        full = (stored + option.memory > fleet.capacity[own]).any(axis=1)
        score = held + seconds + _FULL * full
        at = int(score.argmin())
        held[at] += seconds[at]
        stored[at] += option.memory
        worst = max(worst, float(score[at]))
        taken.append(int(own[at]))
    return worst, np.sort(np.array(taken))


def _add(problem: ShardingProblem, option: Option, ranks: Ints, load: Floats, memory: Floats, sign: int) -> None:
    np.add.at(load, ranks, sign * option.seconds[problem.fleet.rank_class[ranks]])
    np.add.at(memory, ranks, sign * option.memory)
