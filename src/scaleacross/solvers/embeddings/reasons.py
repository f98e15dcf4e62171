"""Why the busiest rank is busy, and what other sizes of memory would change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from scaleacross.cost_models.embedding.options import Assignment, Option, ShardingProblem, busiest, fits, loads_of
from scaleacross.solvers.embeddings.search import shard_embeddings
from scaleacross.spec.recommendation import TIERS, BusyTable, TierValue

CHANGES: Final = (("half of it", 0.5), ("a quarter more", 1.25), ("twice as much", 2.0))


def busy_tables(problem: ShardingProblem, assignment: Assignment) -> tuple[int, tuple[BusyTable, ...]]:
    """The busiest rank and its tables, most seconds first."""
    rank = int(loads_of(problem, assignment)[0].sum(axis=1).argmax())
    kind, out = int(problem.fleet.rank_class[rank]), []
    for table, options, index, ranks in zip(
        problem.tables, problem.options, assignment.option, assignment.ranks, strict=True
    ):
        held = int(np.count_nonzero(ranks == rank))
        if not held:
            continue
        option = options[index]
        other = min((o for o in options if o is not option), key=lambda o: float(o.seconds[kind]), default=None)
        out.append(_busy_table(table.name, option, held, other, kind))
    return rank, tuple(sorted(out, key=lambda one: -one.seconds))


def _busy_table(name: str, option: Option, held: int, other: Option | None, kind: int) -> BusyTable:
    return BusyTable(
        table=name,
        sharding=option.sharding,
        kernel=option.kernel,
        cache_fraction=option.cache_fraction,
        seconds=float(option.seconds[kind]) * held,
        memory_bytes={tier: float(size) * held for tier, size in zip(TIERS, option.memory, strict=True)},
        other=_said(other) if other else "",
        other_s=float(other.seconds[kind]) if other else None,
    )


def _said(option: Option) -> str:
    cached = "" if option.cache_fraction is None else f", {option.cache_fraction:.3g} cached"
    return f"{option.sharding} {option.kernel}{cached}"


def memory_values(
    problem: ShardingProblem, assignment: Assignment, limit_s: float
) -> tuple[tuple[TierValue, ...], float]:
    """Plans under other sizes of each memory present, and the seconds of the busiest rank under the present sizes.

    Every size gets the best of all plans found that fit it, so less memory is never faster. ``limit_s`` covers all
    searches.
    """
    memory, capacity = loads_of(problem, assignment)[1], problem.fleet.capacity
    present = [tier for tier in range(len(TIERS)) if capacity[:, tier].any()]
    sizes = {(tier, change): _resized(problem, tier, factor) for tier in present for change, factor in CHANGES}
    plans = [assignment]
    for changed in sizes.values():
        found = shard_embeddings(changed, time_limit_s=limit_s / len(sizes), gap_tolerance=0.001, incumbents=plans)
        plans += [found.assignment] if found.assignment is not None else []
    full = memory / np.maximum(capacity, 1.0)
    values = tuple(
        TierValue(
            tier=TIERS[tier],
            used_fraction=float(memory[:, tier].sum() / capacity[:, tier].sum()),
            fullest_fraction=float(full[:, tier].max()),
            change=change,
            busiest_rank_s=_best_s(changed, plans),
        )
        for (tier, change), changed in sizes.items()
    )
    return values, _best_s(problem, plans) or busiest(problem, assignment)


def _resized(problem: ShardingProblem, tier: int, factor: float) -> ShardingProblem:
    capacity = problem.fleet.capacity.copy()
    capacity[:, tier] = np.floor(capacity[:, tier] * factor)
    return replace(problem, fleet=replace(problem.fleet, capacity=capacity))


def _best_s(problem: ShardingProblem, plans: Sequence[Assignment]) -> float | None:
    """Seconds of the busiest rank in the best of the plans that fit; None if none fits."""
    return min((busiest(problem, plan) for plan in plans if fits(problem, plan)), default=None)
