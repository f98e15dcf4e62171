"""Many tables of few kinds on equal ranks that are nearly full."""

from __future__ import annotations

import time

import numpy as np

from embedding_tables import fleet_of
from scaleacross.cost_models.embedding.options import Option, ShardingProblem, busiest, fits
from scaleacross.solvers.embeddings.bound import Relaxation
from scaleacross.solvers.embeddings.choices import alike_tables
from scaleacross.solvers.embeddings.configurations import Configurations
from scaleacross.solvers.embeddings.construct import pack, rounded
from scaleacross.solvers.embeddings.search import shard_embeddings
from scaleacross.workloads.recommendation import EmbeddingTable


def option(kernel: str, seconds: float, hbm: float, host: float, shards: int = 1) -> Option:
    sharding = "table_wise" if shards == 1 else "column_wise"
    memory = 1e9 * np.array([hbm, host, 0.0])
    return Option(sharding, kernel, np.array([[seconds, 0.0, 0.0]]), memory, shards, 8 // shards)  # type: ignore[arg-type]


def full_problem() -> ShardingProblem:
    """Tables that fill host memory, cached or not, beside halves of others and small ones: all memories 90 % and more full."""
    kinds = {
        12: (option("fused", 0.3, 19, 0, 2), option("fused", 0.2, 10, 0, 4)),
        56: (option("fused_uvm_caching", 0.2, 8, 38), option("fused_uvm", 1.5, 0.1, 38)),
        64: (option("fused", 0.03, 0.5, 0), option("fused_uvm_caching", 0.1, 0.1, 0.5)),
    }
    options = [own for many, own in kinds.items() for _ in range(many)]
    tables = tuple(EmbeddingTable(name=f"t{number}", rows=10, dimension=8) for number in range(len(options)))
    return ShardingProblem(tables, tuple(options), fleet_of(16, 4, 34e9, 175e9))


def test_plans_where_rounding_finds_no_room() -> None:
    problem = full_problem()
    groups = alike_tables(problem)
    relaxation = Relaxation(groups, problem.fleet)
    relaxed = relaxation.bound()
    assert relaxed is not None
    rounding = [
        pack(problem, rounded(groups, relaxed.counts, len(problem.tables)), weight) for weight in (0.0, 0.5, 2.0)
    ]
    plan = Configurations(problem, groups, lambda: 5.0).plan(1.3 * relaxed.bound_s, {})
    assert rounding == [None] * 3 and plan is not None and fits(problem, plan)
    assert busiest(problem, plan) <= 1.3 * relaxed.bound_s
    found = shard_embeddings(problem, time_limit_s=6, gap_tolerance=0.05, clock=time.process_time)
    assert "configurations of ranks" in found.methods and found.gap <= 0.05
