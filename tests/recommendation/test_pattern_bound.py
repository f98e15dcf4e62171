"""The bound by patterns of whole shards: below every optimum of small problems, above fractions where shards do not divide."""

from __future__ import annotations

import numpy as np
import pytest

from embedding_tables import fleet_of, random_tables, torchrec_problem
from scaleacross.cost_models.embedding.options import Option, ShardingProblem
from scaleacross.solvers.embeddings.bound import Relaxation
from scaleacross.solvers.embeddings.choices import alike_tables
from scaleacross.solvers.embeddings.patterns import PatternBound
from scaleacross.solvers.embeddings.search import shard_embeddings
from scaleacross.workloads.recommendation import EmbeddingTable


def raised(problem: ShardingProblem, low_s: float, high_s: float) -> float:
    return PatternBound(alike_tables(problem), problem.fleet).raised(low_s, high_s, lambda: 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_never_above_the_optimum(seed: int) -> None:
    problem = torchrec_problem(random_tables(7, seed), 4, 2)
    best = shard_embeddings(problem, time_limit_s=20, seed=seed)
    assert best.gap < 1e-3
    relaxed = Relaxation(alike_tables(problem), problem.fleet).bound()
    assert relaxed is not None
    bound = raised(problem, relaxed.bound_s, best.objective_s * 1.5)
    assert relaxed.bound_s <= bound <= best.objective_s * (1 + 1e-6)


def test_shards_that_do_not_divide() -> None:
    """Five tables of one second on four ranks take two seconds; fractions say 1.25."""
    tables = tuple(EmbeddingTable(name=f"t{i}", rows=10, dimension=4) for i in range(5))
    option = Option("table_wise", "fused", np.array([[1.0, 0.0, 0.0]]), np.zeros(3), 1, 4)
    problem = ShardingProblem(tables, ((option,),) * 5, fleet_of(4, 1))
    relaxed = Relaxation(alike_tables(problem), problem.fleet).bound()
    assert relaxed is not None and relaxed.bound_s == pytest.approx(1.25, rel=1e-3)
    assert 1.98 < raised(problem, relaxed.bound_s, 2.0) <= 2.0


def test_search_uses_it() -> None:
    tables = tuple(EmbeddingTable(name=f"t{i}", rows=10, dimension=4) for i in range(5))
    option = Option("table_wise", "fused", np.array([[1.0, 0.0, 0.0]]), np.zeros(3), 1, 4)
    found = shard_embeddings(
        ShardingProblem(tables, ((option,),) * 5, fleet_of(4, 1)), time_limit_s=5, gap_tolerance=0.02
    )
    assert found.gap <= 0.02 and "bound by patterns of whole shards" in found.methods
