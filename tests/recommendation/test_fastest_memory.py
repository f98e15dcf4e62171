"""Tables that do not affect the busiest rank go to the fastest memory with room, and nothing gets slower for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from embedding_tables import random_tables, torchrec_problem
from scaleacross.api import plan_recommendation
from scaleacross.cost_models.embedding.options import Assignment, busiest, fits, loads_of
from scaleacross.solvers.embeddings.construct import fill
from scaleacross.solvers.embeddings.fastest_memory import in_fastest_memory

HISTORIES = Path(__file__).parents[2] / "examples" / "recommendation" / "histories.yaml"


def test_small_table_is_not_left_in_host_memory_beside_empty_hbm() -> None:
    plan = plan_recommendation(HISTORIES, time_limit_s=5)
    assert plan.report.gap < 1e-3
    assert {one.kernel for one in plan.decision.tables} <= {"fused", "dense"}
    assert all(load.memory_bytes["host_memory"] == 0 for load in plan.ranks)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hbm_bytes", [2e9, 4e8])
def test_no_rank_gets_slower_and_no_table_could_still_move(seed: int, hbm_bytes: float) -> None:
    problem = torchrec_problem(random_tables(12, seed), 4, 2, hbm_bytes=hbm_bytes)
    start = fill(problem, 1.0)
    assert start is not None
    slowed = replace(start, option=_slowest_memories(start, problem.options))
    before = slowed if fits(problem, slowed) else start
    after = in_fastest_memory(problem, before)
    assert fits(problem, after) and busiest(problem, after) <= busiest(problem, before)
    was, now = (loads_of(problem, one)[0].sum(axis=1) for one in (before, after))
    assert (now <= was * (1 + 1e-12)).all() and now.sum() <= was.sum()
    for table, (options, index) in enumerate(zip(problem.options, after.option, strict=True)):
        for other, option in enumerate(options):
            if option.sharding == options[index].sharding and option.column_width == options[index].column_width:
                moved = replace(after, option=(*after.option[:table], other, *after.option[table + 1 :]))
                saved = float(options[index].seconds[0] - option.seconds[0])
                assert saved <= 1e-9 * float(options[index].seconds[0]) or not fits(problem, moved)


def _slowest_memories(start: Assignment, options: tuple[tuple, ...]) -> tuple[int, ...]:  # type: ignore[type-arg]
    """The slowest option of every table, with the same division as in ``start``."""
    return tuple(
        max(
            (
                at
                for at, one in enumerate(own)
                if one.kind[0] == own[index].kind[0] and one.kind[2] == own[index].kind[2]
            ),
            key=lambda at, own=own: float(own[at].seconds[0]),  # type: ignore[misc]
        )
        for own, index in zip(options, start.option, strict=True)
    )
