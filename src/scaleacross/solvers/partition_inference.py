"""Choose cards for the embedding tables of an inference model on one host, and the cores that look rows up.

``cost_models.embedding.cards`` has the formulas. Glow's published rule is the baseline; its plans and those of an even
spread start the search. CP-SAT then solves one model for every split of the cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from ortools.sat.python import cp_model

from scaleacross.cost_models.embedding.cards import CardHost, InferenceTable, latency_s, seconds_per_request
from scaleacross.errors import InfeasibleError, InputError, TimeLimitError
from scaleacross.solvers.backends.cpsat import Solver
from scaleacross.solvers.place_parallelism import never
from scaleacross.solvers.until import Until

BIG_TABLE_BYTES: Final = 104_857_600
"""Larger tables are spread by size first (Glow, BigTableThresholdBytes)."""
LATENCY_TOLERANCE: Final = 1e-6
_STEPS: Final = 1_000_000_000
"""Integer steps per incumbent. Costs are rounded down to them, so that the bound of the model stays a bound."""


@dataclass(frozen=True)
class CardPlan:
    """A plan for one host.

    Attributes:
        cards: card of every table.
        lookup_cores: cores of each card that look rows up.
        seconds: busy seconds per request of the slowest part.
        bound_s: lower bound on ``seconds`` of any plan; 0 if unknown.
    """

    cards: tuple[int, ...]
    lookup_cores: int
    seconds: float
    bound_s: float


def glow_partitions(tables: Sequence[InferenceTable], host: CardHost) -> list[CardPlan]:
    """Plans by Glow's SparseNN rule with the same cards for every split of the cores; none where the rule fails.

    Big tables go by size to the emptiest card, the others by look-up time to the card with room and the least of it.
    Where that fails, all tables go by size to the card with the least look-up time.

    Source: ``pytorch/glow``, its SparseNN partitioner.
    """
    room = host.room_bytes
    big = sorted(
        (i for i, t in enumerate(tables) if t.memory_bytes > BIG_TABLE_BYTES), key=lambda i: -tables[i].memory_bytes
    )
    small = sorted(
        (i for i, t in enumerate(tables) if t.memory_bytes <= BIG_TABLE_BYTES), key=lambda i: -tables[i].lookup_core_s
    )
    by_size = sorted(range(len(tables)), key=lambda i: -tables[i].memory_bytes)
    for order, emptiest in ((big + small, frozenset(big)), (by_size, frozenset[int]())):
        cards = _one_by_one(tables, host.num_cards, room, order, emptiest)
        if cards is not None:
            return [
                CardPlan(cards, cores, seconds_per_request(tables, host, cards, cores), 0.0)
                for cores in range(1, host.cores)
            ]
    return []


def _one_by_one(
    tables: Sequence[InferenceTable], num_cards: int, room: int, order: Sequence[int], emptiest: frozenset[int]
) -> tuple[int, ...] | None:
    held, cost, cards = [0] * num_cards, [0.0] * num_cards, [-1] * len(tables)
    for index in order:
        table = tables[index]
        fitting = [card for card in range(num_cards) if held[card] + table.memory_bytes <= room]
        if not fitting:
            return None
        fill: Sequence[float] = held if index in emptiest else cost
        card = min(fitting, key=lambda card, fill=fill: fill[card])  # type: ignore[misc]
        held[card] += table.memory_bytes
        cost[card] += table.lookup_core_s
        cards[index] = card
    return tuple(cards)


def even_partition(tables: Sequence[InferenceTable], host: CardHost, cores: int) -> CardPlan | None:
    """A plan by longest processing time first (Graham 1969); None where a table finds no room.

    Each table goes to the card with room that stays least busy. A card is busy with look-ups or with vectors that leave
    it, whichever takes longer.
    """
    leaving, room = host.leaving, host.room_bytes
    busy = [(t.lookup_core_s / cores, t.output_bytes / host.pcie_bytes_per_s) for t in tables]
    held, looks, sends = ([0.0] * host.num_cards for _ in range(3))
    cards = [-1] * len(tables)
    for index in sorted(range(len(tables)), key=lambda i: (-max(busy[i]), -tables[i].memory_bytes)):
        size, (look, send) = tables[index].memory_bytes, busy[index]
        after = [
            (max(looks[card] + look, (sends[card] + send) * float(leaving[card])), held[card], card)
            for card in range(host.num_cards)
            if held[card] + size <= room
        ]
        if not after:
            return None
        card = min(after)[2]
        held[card] += size
        looks[card] += look
        sends[card] += send
        cards[index] = card
    return CardPlan(tuple(cards), cores, seconds_per_request(tables, host, cards, cores), 0.0)


def partition_inference(
    tables: Sequence[InferenceTable],
    host: CardHost,
    *,
    time_limit_s: float = 10.0,
    seed: int = 0,
    gap_tolerance: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    stopped: Callable[[], bool] = never,
) -> CardPlan:
    """The plan with the most queries per second within the latency bound: cores and cards together.

    It is never slower than Glow's rule with the same cores, where that keeps the latency bound.

    Args:
        time_limit_s: seconds of search by ``clock``, for all splits of the cores together.
        gap_tolerance: relative gap at which the search stops.
        stopped: polled as often as the clock; once true, the search ends as if its time were over.

    Raises:
        InputError: no table, card or core to split.
        InfeasibleError: the tables do not fit the cards, or no plan keeps the latency bound; the message says by how
            much.
        TimeLimitError: the limit ended without a plan and without a proof that there is none.
    """
    if not tables or host.num_cards < 1 or host.cores < 2:
        raise InputError(
            "partition_inference needs a table, a card, and two cores per card: look-ups and dense work share them"
        )
    until, splits = Until.within(time_limit_s, clock, stopped), range(1, host.cores)
    if (short := _too_little(tables, host)) is not None:
        raise short
    starts = [*glow_partitions(tables, host), *(even_partition(tables, host, cores) for cores in splits)]
    kept = [plan for plan in starts if plan is not None and _in_time(tables, host, plan)]
    best = min(kept, key=lambda plan: plan.seconds, default=None)
    bound = inf
    order = sorted(splits, key=lambda cores: least_seconds(tables, host, cores))
    for number, cores in enumerate(order):
        least = least_seconds(tables, host, cores)
        if best is not None and least >= best.seconds * (1 - gap_tolerance):
            bound = min(bound, least)
            break
        left = until.left()
        if left <= 0 and (best is not None or number):  # splits are sorted by bound, so the rest have no smaller one
            bound = min(bound, least)
            break
        part = until.part(max(0.0, left) / (len(order) - number))
        best, own = _solve(tables, host, cores, best, part, seed, gap_tolerance)
        bound = min(bound, own)
    if best is None and bound == inf:
        raise InfeasibleError(
            "no plan fits and keeps the latency bound, with any split of the cores: loosen one of them"
        )
    if best is None:
        raise TimeLimitError(
            "no plan was found that fits and keeps the latency bound: give more time, or loosen one of them"
        )
    return CardPlan(best.cards, best.lookup_cores, best.seconds, min(bound, best.seconds))


def _in_time(tables: Sequence[InferenceTable], host: CardHost, plan: CardPlan) -> bool:
    limit_s = host.latency_bound_s * (1 + LATENCY_TOLERANCE)
    return latency_s(tables, host, plan.cards, plan.lookup_cores) <= limit_s


def _too_little(tables: Sequence[InferenceTable], host: CardHost) -> InfeasibleError | None:
    """The error that says why no search can find a plan; None where one may."""
    room, whole = host.room_bytes, sum(table.memory_bytes for table in tables)
    largest = max(tables, key=lambda table: table.memory_bytes)
    if whole > room * host.num_cards or largest.memory_bytes > room:
        return InfeasibleError(
            f"{whole:,} bytes of tables on {host.num_cards} cards with {room:,} bytes each next to the dense network: "
            f"{max(0, whole - room * host.num_cards, largest.memory_bytes - room):,} are missing (largest table: "
            f"'{largest.name}', {largest.memory_bytes:,}); quantise tables or add cards"
        )
    least = min(_least_latency(tables, host, cores) for cores in range(1, host.cores))
    if least > host.latency_bound_s:
        return InfeasibleError(
            f"no plan answers a request within {host.latency_bound_s * 1e3:.3g} ms: look-ups, vectors on their way and the dense "
            f"network take {least * 1e3:.3g} ms at least; make requests smaller, quantise tables or add cards"
        )
    return None


def least_seconds(tables: Sequence[InferenceTable], host: CardHost, cores: int) -> float:
    """Lower bound on seconds per request with so many look-up cores: means over cards, and the slowest table."""
    lookups = [table.lookup_core_s for table in tables]
    sent = [table.output_bytes for table in tables]
    total, rate = sum(sent), host.pcie_bytes_per_s
    if host.split:
        # a vector enters card 0 or is looked up there, and its cores make at most so many bytes of vectors a second
        most = max((table.output_bytes / table.lookup_core_s for table in tables if table.lookup_core_s), default=inf)
        ports = total / (rate + most * cores) * rate if host.num_cards > 1 else 0.0
    else:
        ports = max(max(sent), total / host.num_cards) * (1 - 1 / host.num_cards)
    return max(
        host.dense_s(cores),
        max(max(lookups), sum(lookups) / host.num_cards) / cores,
        ports / rate,
    )


def _least_latency(tables: Sequence[InferenceTable], host: CardHost, cores: int) -> float:
    lookups = [table.lookup_core_s for table in tables]
    slowest = max(max(lookups), sum(lookups) / host.num_cards) / cores
    total = sum(table.output_bytes for table in tables)
    # some card holds at most the mean, and it receives all other vectors when its turn comes
    comes = 0.0 if host.split else total * (1 - 1 / host.num_cards) / host.pcie_bytes_per_s
    return slowest + comes + host.fixed_latency_s(cores, total)


def _solve(
    tables: Sequence[InferenceTable],
    host: CardHost,
    cores: int,
    best: CardPlan | None,
    until: Until,
    seed: int,
    gap: float,
) -> tuple[CardPlan | None, float]:
    """The better of ``best`` and the best plan with these cores, and a lower bound in seconds for these cores."""
    least, total = least_seconds(tables, host, cores), sum(table.output_bytes for table in tables)
    whole = sum(table.lookup_core_s for table in tables) / cores
    widest = 2 * (total + host.activation_bytes) / host.pcie_bytes_per_s + total / (host.uplink_bytes_per_s or inf)
    upper = best.seconds if best is not None else max(whole, widest, least)
    step, model = upper / _STEPS, cp_model.CpModel()
    top = model.new_int_var(int(least / step), _STEPS, "T")
    put = [[model.new_bool_var("") for _ in range(host.num_cards)] for _ in tables]
    for row in put:
        model.add_exactly_one(row)
    _add_cards(model, top, put, tables, host, cores, step)
    # all cards but card 0 of a split are equal, so the i-th table is on one of the first i + 1 of them
    first = 1 if host.split else 0
    for index, row in enumerate(put[: host.num_cards]):
        for card in range(index + 1 + first, host.num_cards):
            model.add(row[card] == 0)
    model.minimize(top)
    solver = Solver()
    solver.parameters.num_workers, solver.parameters.random_seed = 1, seed
    solver.parameters.relative_gap_limit = gap
    status = solver.solve_within(model, until.left(), **until.limits)
    if status == cp_model.INFEASIBLE:
        return best, upper if best is not None else inf
    bound = max(least, solver.best_objective_bound * step)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = tuple(next(card for card, one in enumerate(row) if solver.value(one)) for row in put)
        plan = CardPlan(found, cores, seconds_per_request(tables, host, found, cores), 0.0)
        if (best is None or plan.seconds < best.seconds) and _in_time(tables, host, plan):
            best = plan
    return best, bound


def _add_cards(
    model: cp_model.CpModel,
    top: cp_model.IntVar,
    put: Sequence[Sequence[cp_model.IntVar]],
    tables: Sequence[InferenceTable],
    host: CardHost,
    cores: int,
    step: float,
) -> None:
    """Add load, memory and latency of every card. Costs are rounded down, so that the bound of the model holds."""
    weighted, rate = cp_model.LinearExpr.weighted_sum, host.pcie_bytes_per_s
    lookups = [int(table.lookup_core_s / cores / step) for table in tables]
    total, leaving = sum(table.output_bytes for table in tables), host.leaving
    passed = int(host.activation_bytes / rate / step) if host.split and host.num_cards > 1 else 0
    sent = [int(table.output_bytes / rate / step) for table in tables]
    slowest = model.new_int_var(0, _STEPS, "look-ups")
    model.add(slowest <= top)
    limit = host.latency_bound_s - host.fixed_latency_s(cores, total)
    uplink: list[cp_model.LinearExpr] = []
    for card, share in enumerate(map(float, leaving)):
        own = [row[card] for row in put]
        came = sum(sent) - weighted(own, sent)  # from the other cards
        model.add(weighted(own, lookups) <= slowest)
        model.add(weighted(own, [int(table.output_bytes * share / rate / step) for table in tables]) + passed <= top)
        model.add(weighted(own, [table.memory_bytes for table in tables]) <= host.room_bytes)
        if host.uplink_bytes_per_s is not None:
            costs = [int(table.output_bytes * share / host.uplink_bytes_per_s / step) for table in tables]
            uplink.append(weighted(own, costs))
        takes_all = not host.split or card == 0
        if host.split and card == 0:
            model.add(came + passed <= top)
        if takes_all and limit < inf:
            # rounded up, so that no plan within the latency bound is excluded
            model.add(slowest + came <= int(limit / step) + 1)
    if uplink:
        model.add(sum(uplink) <= top)
