"""The bound from patterns of whole shards never exceeds the optimum of small problems.

It exceeds the bound from fractions if shards or choices do not divide.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from embedding_tables import best_by_trying, fleet_of, random_tables, torchrec_problem
from scaleacross.cost_models.embedding.options import Assignment, Option, ShardingProblem, busiest
from scaleacross.solvers.embeddings.bound import Relaxation
from scaleacross.solvers.embeddings.choices import alike_tables
from scaleacross.solvers.embeddings.patterns import Answer, PatternSearch
from scaleacross.solvers.embeddings.search import Found, _Patterns, shard_embeddings
from scaleacross.solvers.until import Until
from scaleacross.workloads.recommendation import EmbeddingTable


def raised(problem: ShardingProblem, low_s: float, high_s: float) -> float:
    """The bound without a search for plans, so that every choice of whole options stays open."""
    search = PatternSearch(alike_tables(problem), problem.fleet, lambda _counts, _limit: ("open", high_s))
    return search.narrowed(low_s, high_s, lambda: 1.0)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1))])
def test_never_above_the_optimum(seed: int) -> None:
    problem = torchrec_problem(random_tables(7, seed), 4, 2)
    best = shard_embeddings(problem, time_limit_s=20, seed=seed)
    assert best.gap < 1e-3
    relaxed_s = Relaxation(alike_tables(problem), problem.fleet).bound_s()
    assert relaxed_s is not None
    bound = raised(problem, relaxed_s, best.objective_s * 1.5)
    assert relaxed_s <= bound <= best.objective_s * (1 + 1e-6)


def test_shards_that_do_not_divide() -> None:
    """Five tables of one second on four ranks take two seconds; fractions say 1.25."""
    tables = tuple(EmbeddingTable(name=f"t{i}", rows=10, dimension=4) for i in range(5))
    option = Option("table_wise", "fused", np.array([[1.0, 0.0, 0.0]]), np.zeros(3), 1, 4)
    problem = ShardingProblem(tables, ((option,),) * 5, fleet_of(4, 1))
    relaxed_s = Relaxation(alike_tables(problem), problem.fleet).bound_s()
    assert relaxed_s is not None and relaxed_s == pytest.approx(1.25, rel=1e-3)
    assert 1.98 < raised(problem, relaxed_s, 2.0) <= 2.0


def test_search_uses_it() -> None:
    tables = tuple(EmbeddingTable(name=f"t{i}", rows=10, dimension=4) for i in range(5))
    option = Option("table_wise", "fused", np.array([[1.0, 0.0, 0.0]]), np.zeros(3), 1, 4)
    found = shard_embeddings(
        ShardingProblem(tables, ((option,),) * 5, fleet_of(4, 1)), time_limit_s=5, gap_tolerance=0.02
    )
    assert found.gap <= 0.02 and "bound by patterns of whole shards" in found.methods


@pytest.mark.parametrize("seed", range(4))
def test_branching_settles_choices_between_options(seed: int) -> None:
    """Branching decides between options.

    The search alone, without the constraint program of all tables, closes the gap on small problems.
    """
    problem = torchrec_problem(random_tables(3, seed)[:2], 4, 2)
    best = best_by_trying(problem)
    start = _worst_plan(problem)
    found = Found(start, busiest(problem, start), 0.0)
    patterns = _Patterns(problem, found, Until.within(20.0, time.process_time))
    patterns.narrow(20.0)
    assert found.objective_s == pytest.approx(best, rel=0.003)
    assert 0.99 * best <= found.bound_s <= best * (1 + 1e-6)


def _worst_plan(problem: ShardingProblem) -> Assignment:
    """Every table whole on the first rank."""
    whole = [next(i for i, o in enumerate(own) if o.sharding == "table_wise") for own in problem.options]
    return Assignment(tuple(whole), (np.zeros(1, dtype=np.int64),) * len(whole))


def test_a_choice_that_finds_no_room_leaves_the_others() -> None:
    """A choice without room does not refute the others.

    A step time is refuted only if no choice of whole options reaches it.
    """
    table = EmbeddingTable(name="t", rows=10, dimension=4)
    whole = Option("table_wise", "fused", np.array([[1.0, 0.0, 0.0]]), np.zeros(3), 1, 4)
    halves = Option("column_wise", "fused", np.array([[0.9, 0.0, 0.0]]), np.zeros(3), 2, 2)
    problem = ShardingProblem((table,), ((whole, halves),), fleet_of(2, 1))
    asked: list[object] = []

    def place(counts: Sequence[Sequence[int]], limit_s: float) -> tuple[Answer, float]:
        asked.append(counts)
        return ("placed", 1.1) if counts != asked[0] and limit_s >= 1.1 else ("refuted", 2.0)

    search = PatternSearch(alike_tables(problem), problem.fleet, place)
    bound = search.narrowed(0.5, 2.0, lambda: 1.0)
    assert len(asked) >= 2 and search.best_s == 1.1 and bound <= 1.1
