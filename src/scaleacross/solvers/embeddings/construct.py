"""A plan from chosen options: shards in falling order onto the rank where the score is least."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.embedding.options import Assignment, Option, ShardingProblem, holders, loads_of
from scaleacross.solvers.embeddings.choices import Alike


def rounded(groups: Sequence[Alike], counts: dict[tuple[int, int], float], num_tables: int) -> list[int]:
    """A whole option for every table: fractions rounded down, the rest by largest remainder."""
    chosen = [0] * num_tables
    for number, group in enumerate(groups):
        shares = {index: counts.get((number, index), 0.0) for index, _ in group.options}
        whole = {index: int(share + 1e-9) for index, share in shares.items()}
        left = len(group.tables) - sum(whole.values())
        for index in sorted(shares, key=lambda index: whole[index] - shares[index])[:left]:
            whole[index] += 1
        picks = [index for index, count in whole.items() for _ in range(count)]
        for table, index in zip(group.tables, picks, strict=True):
            chosen[table] = index
    return chosen


def pack(
    problem: ShardingProblem, chosen: Sequence[int], weight: float, units_first: bool = False
) -> Assignment | None:
    """A plan that places the longest shard first where its score is least; None where one finds no room.

    Args:
        weight: weight of bytes relative to seconds, in the order and in the score; 0: seconds alone.
        units_first: place tables that load a whole host before single shards.
    """
    fleet = problem.fleet
    options = [problem.options[table][index] for table, index in enumerate(chosen)]
    load, memory = np.zeros(fleet.num_ranks), np.zeros_like(fleet.capacity)
    for option in options:
        if option.spread == "all":
            load += option.seconds[fleet.rank_class]
            memory += option.memory
    if (memory > fleet.capacity).any():
        return None
    scale_s, scale_bytes = _scales(problem, options)
    seconds_of = {id(option): option.seconds[fleet.rank_class] for option in options}
    ranks: list[Ints] = [np.arange(fleet.num_ranks)] * len(options)
    single: list[list[int]] = [[] for _ in options]
    units = np.stack(fleet.units) if fleet.units else np.zeros((0, 1), dtype=np.int64)
    for table in _order(options, scale_s, scale_bytes, weight, units_first):
        option = options[table]
        seconds, after = seconds_of[id(option)], memory + option.memory
        full = (after > fleet.capacity).any(axis=1)
        score = (load + seconds) / scale_s + weight * (after / scale_bytes).max(axis=1)
        score[full] = np.inf
        if option.spread == "unit":
            if not len(units):
                return None
            of_unit = score[units].max(axis=1)
            best = int(of_unit.argmin())
            if not np.isfinite(of_unit[best]):
                return None
            ranks[table] = units[best]
            load[units[best]] += seconds[units[best]]
            memory[units[best]] += option.memory
        else:
            rank = int(score.argmin())
            if not np.isfinite(score[rank]):
                return None
            single[table].append(rank)
            load[rank] += seconds[rank]
            memory[rank] += option.memory
    whole = [np.array(sorted(own)) if own else ranks[table] for table, own in enumerate(single)]
    return Assignment(tuple(chosen), tuple(whole))


def fill(problem: ShardingProblem, weight: float) -> Assignment | None:
    """A plan for scarce memory: the largest table first, by its option and ranks of least score; None without room.

    Args:
        weight: weight of the memory shares that an option takes on all its ranks. Its other term is the seconds of the
            busiest of them over the mean work.
    """
    fleet = problem.fleet
    least = [min(float(o.memory.sum()) * o.num_shards for o in options) for options in problem.options]
    scale_s, room = _scales(problem, [min(own, key=lambda o: float(o.seconds.max())) for own in problem.options])
    load, memory = np.zeros(fleet.num_ranks), np.zeros_like(fleet.capacity)
    chosen, ranks = [0] * len(least), [np.zeros(0, dtype=np.int64)] * len(least)
    for table in sorted(range(len(least)), key=lambda table: -least[table]):
        best: tuple[float, int, Ints] | None = None
        for index, option in enumerate(problem.options[table]):
            after = memory + option.memory
            score = (load + option.seconds[fleet.rank_class]) / scale_s + weight * (after / room).sum(axis=1)
            score[(after > fleet.capacity).any(axis=1)] = np.inf
            where = _where(option, score, fleet.units)
            if where is None:
                continue
            taken = float((option.memory / room[where]).sum())
            key = float((load[where] + option.seconds[fleet.rank_class[where]]).max()) / scale_s + weight * taken
            if best is None or key < best[0]:
                best = key, index, where
        if best is None:
            return None
        _, chosen[table], ranks[table] = best
        option = problem.options[table][chosen[table]]
        load[ranks[table]] += option.seconds[fleet.rank_class[ranks[table]]]
        memory[ranks[table]] += option.memory
    return Assignment(tuple(chosen), tuple(ranks))


def _where(option: Option, score: Floats, units: tuple[Ints, ...]) -> Ints | None:
    """The ranks of least score for an option, column shards on different ranks; None where no ranks have room."""
    if option.spread == "unit":
        best = min(units, key=lambda unit: float(score[unit].max()), default=None)
        return best if best is not None and np.isfinite(score[best]).all() else None
    ranks = np.arange(len(score)) if option.spread == "all" else np.sort(np.argsort(score)[: option.num_shards])
    enough = len(ranks) >= option.num_shards or option.spread == "all"
    return ranks if enough and np.isfinite(score[ranks]).all() else None


def _scales(problem: ShardingProblem, options: Sequence[Option]) -> tuple[float, Floats]:
    fleet = problem.fleet
    work = sum(float(option.seconds.mean()) * holders(option, fleet) for option in options)
    return max(work / fleet.num_ranks, 1e-12), np.maximum(fleet.capacity, 1.0)


def _order(
    options: Sequence[Option], scale_s: float, scale_bytes: Floats, weight: float, units_first: bool
) -> list[int]:
    room = scale_bytes.max(axis=0)
    keys = []
    for table, option in enumerate(options):
        if option.spread != "all":
            size = float(option.seconds.max()) / scale_s + weight * float((option.memory / room).max())
            keys += [(units_first and option.spread == "unit", size, table)] * option.num_shards
    return [table for _, _, table in sorted(keys, reverse=True)]


def relabelled(problem: ShardingProblem, assignment: Assignment) -> Assignment:
    """The same plan with equal ranks of a host, and equal hosts, renumbered in falling order of load.

    This is the order that the exact search requires (``break_symmetry``).
    """
    fleet = problem.fleet
    load = loads_of(problem, assignment)[0].sum(axis=1)
    new = np.arange(fleet.num_ranks)
    for own in interchangeable(problem):
        new[np.array(own)[np.argsort(-load[own], kind="stable")]] = own
    return Assignment(
        assignment.option,
        tuple(
            ranks
            if len(ranks) == fleet.num_ranks and problem.options[table][index].spread == "all"
            else np.sort(new[ranks])
            for table, (index, ranks) in enumerate(zip(assignment.option, assignment.ranks, strict=True))
        ),
    )


def interchangeable(problem: ShardingProblem) -> list[list[int]]:
    """Groups of ranks that may swap numbers: equal in class and room, and of one host if any option needs that."""
    fleet = problem.fleet
    by_host = any(option.in_one_host for options in problem.options for option in options)
    pools = fleet.units or (fleet.hosts if by_host else (np.arange(fleet.num_ranks),))
    out: dict[tuple[int, int, bytes], list[int]] = {}
    for number, pool in enumerate(pools):
        for rank in pool:
            out.setdefault((number, int(fleet.rank_class[rank]), fleet.capacity[rank].tobytes()), []).append(int(rank))
    return list(out.values())
