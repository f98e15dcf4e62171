"""Baselines for embedding tables, each rule as a short program from its published description.

A rule gets the job's problem and TorchRec's view of the same tables. It returns an assignment of the job's options, or
a reason.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Ints
from scaleacross.cost_models.embedding.options import LOOKUP, Assignment, Option, ShardingProblem, fits, holders
from scaleacross.cost_models.embedding.torchrec import CACHE_RATIO, column_width
from scaleacross.solvers.backends.cpsat import WORKERS
from scaleacross.solvers.embeddings.exact import solve_part, whole_part
from scaleacross.solvers.until import Until
from scaleacross.spec.recommendation import Sharding
from scaleacross.workloads.recommendation import EmbeddingTable


@dataclass(frozen=True)
class Outcome:
    """An assignment of the job's options, or why there is none; ``complete``: the rule ended within the limit."""

    assignment: Assignment | None
    reason: str = ""
    complete: bool = True


@dataclass(frozen=True)
class Rule:
    """A baseline: summary, source, and program (our problem, TorchRec's view or None, seconds) -> Outcome."""

    summary: str
    source: str
    decide: Callable[[ShardingProblem, ShardingProblem | None, float], Outcome]


# --- TorchRec's planner ---------------------------------------------------------------------------------------------


def torchrec_planner(
    ours: ShardingProblem, theirs: ShardingProblem | None, limit_s: float, until: Until | None = None
) -> Outcome:
    """TorchRec's default proposers and partitioner, with its own estimator as judge.

    The proposers are greedy by slowest shard, greedy by sum of shards, and uniform. The grid search of at most 10,000
    combinations is left out, because TorchRec itself skips it for more than a handful of tables.

    Args:
        limit_s: seconds by the clock on the wall, or by that of ``until``.
        until: the search of which the rule is a part.
    """
    if theirs is None:
        return Outcome(None, "its estimator knows one kind of rank")
    best: tuple[float, Assignment] | None = None
    seen: set[tuple[int, ...]] = set()
    left, complete = (until.part(limit_s) if until else Until.within(limit_s)).left, True
    partition = _Partition(theirs)
    for proposal in _proposals(theirs):
        if left() < 0:
            complete = False
            break
        if proposal in seen:
            continue
        seen.add(proposal)
        found = partition.place(proposal)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return Outcome(None, "none of its proposals fits", complete)
    mapped = translated(ours, theirs, best[1])
    return Outcome(mapped, "" if mapped else "its plan does not fit by our count of memory", complete)


def _work(problem: ShardingProblem, option: Option) -> float:
    """Seconds of all shards of an option together."""
    return float(option.seconds[0]) * holders(option, problem.fleet)


def _hbm(problem: ShardingProblem, option: Option) -> float:
    """Bytes of all shards of an option in HBM."""
    return float(option.memory[0]) * holders(option, problem.fleet)


def _proposals(problem: ShardingProblem) -> Iterator[tuple[int, ...]]:
    keys: tuple[Callable[[Option], float], ...] = (lambda option: float(option.seconds[0]), partial(_work, problem))
    for key in keys:
        orders = [
            [i for _, i in sorted((key(option), i) for i, option in enumerate(own) if _listed(table, option, own))]
            for table, own in zip(problem.tables, problem.options, strict=True)
        ]
        if all(orders):
            yield from _advancing(problem, orders)
    for sharding in dict.fromkeys(option.sharding for own in problem.options for option in own):
        yield from _uniform(problem, sharding)


def _listed(table: EmbeddingTable, option: Option, own: Sequence[Option]) -> bool:
    """Whether TorchRec's enumerator lists an option of a table without constraints.

    It knows one width of column shards, and one cache share or the nearest that is allowed.
    """
    if "column" in option.sharding and option.column_width != column_width(table):
        return False
    shares = {one.cache_fraction for one in own if one.cache_fraction is not None}
    return option.cache_fraction in (None, min(shares, key=lambda share: abs(share - CACHE_RATIO), default=None))


def _advancing(problem: ShardingProblem, orders: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield every table at its best option, then proposals that move the table with most HBM to its next option."""
    at = [0] * len(orders)
    heap = [(-_hbm(problem, problem.options[t][order[0]]), t) for t, order in enumerate(orders)]
    heapq.heapify(heap)
    current = [order[0] for order in orders]
    yield tuple(current)
    while heap:
        _, table = heapq.heappop(heap)
        if at[table] + 1 >= len(orders[table]):
            continue
        at[table] += 1
        current[table] = orders[table][at[table]]
        heapq.heappush(heap, (-_hbm(problem, problem.options[table][current[table]]), table))
        yield tuple(current)


def _uniform(problem: ShardingProblem, sharding: Sharding) -> Iterator[tuple[int, ...]]:
    """Yield one proposal with a single sharding, where each table has its fastest kernel."""
    own = [
        [i for i, option in enumerate(options) if option.sharding == sharding and _listed(table, option, options)]
        for table, options in zip(problem.tables, problem.options, strict=True)
    ]
    if all(own):
        yield tuple(
            min((_work(problem, options[i]), i) for i in allowed)[1]
            for allowed, options in zip(own, problem.options, strict=True)
        )


class _Partition:
    """TorchRec's greedy partitioner: uniform options first, then by storage onto the least loaded place that fits.

    A place is a rank, or a host for options that load whole hosts.
    """

    def __init__(self, problem: ShardingProblem) -> None:
        self.problem, self.fleet = problem, problem.fleet
        self.units = [list(map(int, unit)) for unit in self.fleet.units]
        self.figures = [
            [(o.spread, float(o.seconds[0]), tuple(map(float, o.memory)), o.num_shards) for o in own]
            for own in problem.options
        ]
        self.hbm = [[_hbm(problem, option) for option in own] for own in problem.options]

    def place(self, proposal: Sequence[int]) -> tuple[float, Assignment] | None:
        """Score in seconds and assignment of a proposal; None where it does not fit."""
        load = [0.0] * self.fleet.num_ranks
        room = [list(map(float, row)) for row in self.fleet.capacity]
        everyone, ranks = np.arange(self.fleet.num_ranks), [np.zeros(0, dtype=np.int64)] * len(proposal)
        rest = []
        base, stored = 0.0, [0.0, 0.0, 0.0]
        for table, index in enumerate(proposal):
            spread, seconds, memory, _ = self.figures[table][index]
            if spread == "all":
                base += seconds
                stored = [held + more for held, more in zip(stored, memory, strict=True)]
                ranks[table] = everyone
            else:
                rest.append(table)
        load = [base] * len(load)
        room = [[have - held for have, held in zip(row, stored, strict=True)] for row in room]
        if any(have < 0 for row in room for have in row):
            return None
        heap = [(base, rank) for rank in range(len(load))]
        for table in sorted(rest, key=lambda table: -self.hbm[table][proposal[table]]):
            spread, seconds, memory, shards = self.figures[table][proposal[table]]
            if spread == "unit":
                chosen = self._host(load, room, seconds, memory)
                heap = [(load[rank], rank) for rank in range(len(load))] if chosen else heap
                heapq.heapify(heap)
            else:
                chosen = self._single(heap, load, room, seconds, memory, shards)
            if chosen is None:
                return None
            ranks[table] = np.array(sorted(chosen))
        return max(load), Assignment(tuple(proposal), tuple(ranks))

    def _single(
        self,
        heap: list[tuple[float, int]],
        load: list[float],
        room: list[list[float]],
        seconds: float,
        memory: Sequence[float],
        shards: int,
    ) -> list[int] | None:
        chosen = []
        for _ in range(shards):
            aside = []
            while heap and any(have < more for have, more in zip(room[heap[0][1]], memory, strict=True)):
                aside.append(heapq.heappop(heap))
            if not heap:
                return None
            _, rank = heapq.heappop(heap)
            self._put(rank, load, room, seconds, memory)
            chosen.append(rank)
            # ranks that were too full for this shard may still take a smaller one
            for entry in (*aside, (load[rank], rank)):
                heapq.heappush(heap, entry)
        return chosen

    def _host(
        self, load: list[float], room: list[list[float]], seconds: float, memory: Sequence[float]
    ) -> list[int] | None:
        for unit in sorted(self.units, key=lambda unit: sum(load[rank] for rank in unit)):
            if all(have >= more for rank in unit for have, more in zip(room[rank], memory, strict=True)):
                for rank in unit:
                    self._put(rank, load, room, seconds, memory)
                return unit
        return None

    @staticmethod
    def _put(rank: int, load: list[float], room: list[list[float]], seconds: float, memory: Sequence[float]) -> None:
        load[rank] += seconds
        room[rank] = [have - more for have, more in zip(room[rank], memory, strict=True)]


def translated(ours: ShardingProblem, theirs: ShardingProblem, assignment: Assignment) -> Assignment | None:
    """An assignment of ``theirs`` in the options of ``ours``, which have equal tables and ranks; None if one is
    missing."""
    chosen = []
    for own, options, index in zip(ours.options, theirs.options, assignment.option, strict=True):
        wanted = options[index]
        keys = [option.kind for option in own]
        whole = wanted.column_width == max(option.column_width for option in options)
        sharding: Sharding = "table_wise" if wanted.spread == "one" and whole else wanted.sharding
        sharding = "column_wise" if sharding == "table_column_wise" else sharding
        key = next((key for key in ((sharding, *wanted.kind[1:]), wanted.kind) if key in keys), None)
        if key is None:
            return None
        chosen.append(keys.index(key))
    mapped = Assignment(tuple(chosen), assignment.ranks)
    return mapped if fits(ours, mapped) else None


# --- whole tables by a key ------------------------------------------------------------------------------------------


def _lookups(table: EmbeddingTable) -> float:
    return table.dimension * table.reads_per_sample


def _size_lookups(table: EmbeddingTable) -> float:
    return _lookups(table) * math.log10(max(table.rows, 2))


def _greedy(key: Callable[[EmbeddingTable], float]) -> Callable[..., Outcome]:
    """A rule that places whole tables in falling order of ``key`` onto the rank with the least of it that fits.

    Tables that fit no rank are sharded row-wise.
    """

    def decide(ours: ShardingProblem, _theirs: ShardingProblem | None, _limit_s: float) -> Outcome:
        fleet = ours.fleet
        held, memory = np.zeros(fleet.num_ranks), np.zeros_like(fleet.capacity)
        chosen, ranks = [0] * len(ours.tables), [np.arange(fleet.num_ranks)] * len(ours.tables)
        for table in sorted(range(len(ours.tables)), key=lambda t: -key(ours.tables[t])):
            index = _index(ours.options[table], "table_wise")
            placed = False
            if index is not None:
                full = np.any(memory + ours.options[table][index].memory > fleet.capacity, axis=1)
                rank = int(np.where(full, np.inf, held).argmin())
                placed = not full[rank]
            if index is None or not placed:
                index = _index(ours.options[table], "row_wise")
                if index is None:
                    return Outcome(None, f"table '{ours.tables[table].name}' fits no rank, and row_wise is not allowed")
                memory += ours.options[table][index].memory
            else:
                held[rank] += key(ours.tables[table])
                memory[rank] += ours.options[table][index].memory
                ranks[table] = np.array([rank])
            chosen[table] = index
        found = Assignment(tuple(chosen), tuple(ranks))
        return (
            Outcome(found) if fits(ours, found) else Outcome(None, "its plan overflows HBM: it knows no other memory")
        )

    return decide


def _index(options: Sequence[Option], sharding: Sharding) -> int | None:
    return next((i for i, o in enumerate(options) if o.sharding == sharding and o.kernel == "fused"), None)


def karmarkar_karp(ours: ShardingProblem, _theirs: ShardingProblem | None, _limit_s: float) -> Outcome:
    """Largest differencing on look-ups: merges the two partial partitions of largest spread in opposite order."""
    ranks = ours.fleet.num_ranks
    indices = [_index(options, "table_wise") for options in ours.options]
    if None in indices:
        return Outcome(None, "table_wise is not allowed")
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for table, spec in enumerate(ours.tables):
        bins: list[tuple[float, list[int]]] = [(0.0, []) for _ in range(ranks - 1)] + [(_lookups(spec), [table])]
        heap.append((-_lookups(spec), table, bins))
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, number, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        merged = sorted(
            ((a + b, left + right) for (a, left), (b, right) in zip(one, reversed(other), strict=True)),
            key=lambda pair: pair[0],
        )
        heapq.heappush(heap, (merged[0][0] - merged[-1][0], number, merged))
    where: list[Ints] = [np.zeros(1, dtype=np.int64)] * len(ours.tables)
    for rank, (_, tables) in enumerate(heap[0][2]):
        for table in tables:
            where[table] = np.array([rank])
    found = Assignment(tuple(index for index in indices if index is not None), tuple(where))
    return Outcome(found) if fits(ours, found) else Outcome(None, "it knows no memory, and its plan overflows")


def recshard(ours: ShardingProblem, _theirs: ShardingProblem | None, limit_s: float) -> Outcome:
    """Whole tables over ranks and memories with the least look-up time of the busiest rank, without communication.

    A table has all of its rows in HBM, none, or one of the shares in the job's ``cache_fraction``.
    """
    kept = [[i for i, o in enumerate(own) if o.sharding == "table_wise"] for own in ours.options]
    if not all(kept):
        return Outcome(None, "table_wise is not allowed")
    only = ShardingProblem(
        ours.tables,
        tuple(
            tuple(replace(own[i], parts=own[i].parts * (np.arange(3) == LOOKUP)) for i in indices)
            for own, indices in zip(ours.options, kept, strict=True)
        ),
        ours.fleet,
    )
    upper = sum(max(float(o.seconds.max()) for o in own) for own in only.options)
    solved = solve_part(only, whole_part(only), upper, limit_s, 0, gap=1e-3, workers=WORKERS)
    if solved.found is None:
        reason = "a whole table fits no rank" if solved.proved else "no plan within its time"
        return Outcome(None, reason, solved.proved)
    pairs = [solved.found[table] for table in range(len(ours.tables))]
    chosen = tuple(kept[table][index] for table, (index, _) in enumerate(pairs))
    return Outcome(Assignment(chosen, tuple(ranks for _, ranks in pairs)), complete=solved.proved)


RULES: Final[Mapping[str, Rule]] = {
    "torchrec": Rule("TorchRec's default planner", "meta-pytorch/torchrec 376cac6, planner/", torchrec_planner),
    "recshard": Rule("look-ups over memories, whole tables", "RecShard, arXiv 2201.10095", recshard),
    "karmarkar_karp": Rule("largest differencing on look-ups", "Neo, arXiv 2104.05158", karmarkar_karp),
    "greedy_lookups": Rule("LPT by dimension × pooling", "DreamShard, NeuroShard (code)", _greedy(_lookups)),
    "greedy_size_lookups": Rule("LPT by look-ups × log rows", "DreamShard, NeuroShard (code)", _greedy(_size_lookups)),
    "greedy_size": Rule("LPT by elements", "DreamShard, NeuroShard (code)", _greedy(lambda table: table.num_elements)),
    "greedy_dimension": Rule(
        "LPT by dimension", "DreamShard, NeuroShard (code)", _greedy(lambda table: table.dimension)
    ),
}
