"""Embedding tables of an inference model over the accelerator cards of one host, and the cores that look rows up.

Every card holds some tables and a copy of the dense network. A card is busy per request for the largest of three: look-ups over
the cores kept for them; the dense network over the other cores and the number of cards; vectors that leave over its PCIe rate.
The slowest card sets the rate of queries. Derived from arXiv 2107.04140 and Glow's partitioner; no measurement stands behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ortools.sat.python import cp_model

from scaleacross.errors import InfeasibleError, InputError

BIG_TABLE_BYTES: Final = 104_857_600
"""Tables above it are spread by size first (Glow, BigTableThresholdBytes)."""
_STEPS: Final = 1_000_000_000
"""Whole numbers per incumbent; costs are rounded down to them, so that the bound stays one."""


@dataclass(frozen=True)
class InferenceTable:
    """A table as an inference card sees it: bytes held, seconds of look-up on one core and bytes sent on, per request."""

    name: str
    memory_bytes: int
    lookup_core_s: float
    output_bytes: float


@dataclass(frozen=True)
class CardHost:
    """Equal cards behind one PCIe switch; ``dense_*`` is the dense network, a copy of which every card holds and runs in turn."""

    num_cards: int
    memory_bytes: int
    cores: int
    pcie_bytes_per_s: float
    dense_bytes: int
    dense_core_s: float


@dataclass(frozen=True)
class CardPlan:
    """Card of every table, cores of a card that look rows up, seconds per request of the slowest card, and a bound on it."""

    cards: tuple[int, ...]
    lookup_cores: int
    seconds: float
    bound_s: float

    @property
    def is_optimal(self) -> bool:
        """Whether no plan is faster (within a millionth of the time)."""
        return self.bound_s >= self.seconds * (1 - 1e-6)


def seconds_per_request(tables: Sequence[InferenceTable], host: CardHost, cards: Sequence[int], cores: int) -> float:
    """Busy time of the slowest card per request, all cards taking requests in turn."""
    worst = host.dense_core_s / (host.num_cards * (host.cores - cores))
    for card in range(host.num_cards):
        own = [table for table, at in zip(tables, cards, strict=True) if at == card]
        leaves = sum(table.output_bytes for table in own) * (host.num_cards - 1) / host.num_cards
        worst = max(worst, sum(table.lookup_core_s for table in own) / cores, leaves / host.pcie_bytes_per_s)
    return worst


def glow_partition(tables: Sequence[InferenceTable], host: CardHost, cores: int) -> CardPlan | None:
    """Glow's SparseNN rule: big tables by size to the emptiest card, the rest by cost to the cheapest card with room; where that
    fails, all by size to the cheapest. None where neither fits.

    Source: ``pytorch/glow``, its SparseNN partitioner.
    """
    room = host.memory_bytes - host.dense_bytes
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
            return CardPlan(cards, cores, seconds_per_request(tables, host, cards, cores), 0.0)
    return None


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


def partition_inference(
    tables: Sequence[InferenceTable], host: CardHost, *, time_limit_s: float = 10.0, seed: int = 0
) -> CardPlan:
    """The plan with the most queries per second: cores and cards together, never slower than Glow's rule with the same cores.

    Args:
        time_limit_s: seconds of search for all splits of the cores together.

    Raises:
        InputError: no table, card or core to split.
        InfeasibleError: the tables do not fit the cards; the message says by how much.
    """
    if not tables or host.num_cards < 1 or host.cores < 2:
        raise InputError(
            "partition_inference needs a table, a card, and two cores per card: look-ups and dense work share them"
        )
    starts = {cores: glow_partition(tables, host, cores) for cores in range(1, host.cores)}
    best = min((plan for plan in starts.values() if plan is not None), key=lambda plan: plan.seconds, default=None)
    bound = float("inf")
    order = sorted(starts, key=lambda cores: _least(tables, host, cores))
    for number, cores in enumerate(order):
        if best is not None and _least(tables, host, cores) >= best.seconds:
            break
        best, own = _solve(tables, host, cores, best, time_limit_s / (len(order) - number) / 2, seed)
        bound = min(bound, own)
    if best is None:
        room, whole = host.memory_bytes - host.dense_bytes, sum(table.memory_bytes for table in tables)
        raise InfeasibleError(
            f"{whole:,} bytes of tables on {host.num_cards} cards with {room:,} bytes each beside the dense network: "
            f"{max(0, whole - room * host.num_cards):,} are missing; quantise tables or add cards"
        )
    return CardPlan(best.cards, best.lookup_cores, best.seconds, min(bound, best.seconds))


def _least(tables: Sequence[InferenceTable], host: CardHost, cores: int) -> float:
    """No plan with these cores is faster: means over the cards, and the dearest table."""
    lookups = [table.lookup_core_s for table in tables]
    sent = [table.output_bytes * (host.num_cards - 1) / host.num_cards for table in tables]
    return max(
        host.dense_core_s / (host.num_cards * (host.cores - cores)),
        max(max(lookups), sum(lookups) / host.num_cards) / cores,
        max(max(sent), sum(sent) / host.num_cards) / host.pcie_bytes_per_s,
    )


def _solve(
    tables: Sequence[InferenceTable], host: CardHost, cores: int, best: CardPlan | None, limit_s: float, seed: int
) -> tuple[CardPlan | None, float]:
    """The better of ``best`` and the best with these cores, and a bound for these cores."""
    whole = sum(table.lookup_core_s for table in tables) / cores
    sent = sum(table.output_bytes for table in tables) / host.pcie_bytes_per_s
    upper = best.seconds if best is not None else max(whole, sent, _least(tables, host, cores))
    step, model, cards = upper / _STEPS, cp_model.CpModel(), range(host.num_cards)
    top = model.new_int_var(int(_least(tables, host, cores) / step), _STEPS, "T")
    put = [[model.new_bool_var("") for _ in cards] for _ in tables]
    share = (host.num_cards - 1) / host.num_cards / host.pcie_bytes_per_s
    for row in put:
        model.add_exactly_one(row)
    for card in cards:
        own = [row[card] for row in put]
        for cost in ([t.lookup_core_s / cores for t in tables], [t.output_bytes * share for t in tables]):
            model.add(cp_model.LinearExpr.weighted_sum(own, [int(one / step) for one in cost]) <= top)
        sizes = [table.memory_bytes for table in tables]
        model.add(cp_model.LinearExpr.weighted_sum(own, sizes) <= host.memory_bytes - host.dense_bytes)
    for index, row in enumerate(put[: host.num_cards]):  # equal cards: the i-th table is on one of the first i + 1
        for card in range(index + 1, host.num_cards):
            model.add(row[card] == 0)
    model.minimize(top)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = max(limit_s, 0.01), 1
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return best, upper if best is not None else float("inf")
    bound = max(_least(tables, host, cores), solver.best_objective_bound * step)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = tuple(next(card for card in cards if solver.value(row[card])) for row in put)
        seconds = seconds_per_request(tables, host, found, cores)
        if best is None or seconds < best.seconds:
            best = CardPlan(found, cores, seconds, 0.0)
    return best, bound
