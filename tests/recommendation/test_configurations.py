"""Many tables of few kinds on equal ranks that are nearly full."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import pytest

from embedding_tables import fleet_of, random_tables, torchrec_problem
from scaleacross.cost_models.embedding.options import Option, ShardingProblem, busiest, fits
from scaleacross.solvers.embeddings import search
from scaleacross.solvers.embeddings.bound import Relaxation
from scaleacross.solvers.embeddings.choices import alike_tables
from scaleacross.solvers.embeddings.configurations import Configurations
from scaleacross.solvers.embeddings.construct import pack, rounded
from scaleacross.solvers.embeddings.exact import solve_part, whole_part
from scaleacross.solvers.embeddings.knapsacks import GRID, Knapsacks
from scaleacross.solvers.embeddings.search import shard_embeddings
from scaleacross.workloads.recommendation import EmbeddingTable


def option(kernel: str, seconds: float, hbm: float, host: float, shards: int = 1) -> Option:
    sharding = "table_wise" if shards == 1 else "column_wise"
    memory = 1e9 * np.array([hbm, host, 0.0])
    return Option(sharding, kernel, np.array([[seconds, 0.0, 0.0]]), memory, shards, 8 // shards)  # type: ignore[arg-type]


def full_problem() -> ShardingProblem:
    """A problem in which all memories are at least 90 % full.

    Some tables need host memory, cached or not. Others are halves and small ones.
    """
    kinds = {
        6: (option("fused", 0.3, 19, 0, 2), option("fused", 0.2, 10, 0, 4)),
        28: (option("fused_uvm_caching", 0.2, 8, 38), option("fused_uvm", 1.5, 0.1, 38)),
        32: (option("fused", 0.03, 0.5, 0), option("fused_uvm_caching", 0.1, 0.1, 0.5)),
    }
    options = [own for many, own in kinds.items() for _ in range(many)]
    tables = tuple(EmbeddingTable(name=f"t{number}", rows=10, dimension=8) for number in range(len(options)))
    return ShardingProblem(tables, tuple(options), fleet_of(8, 4, 34e9, 175e9))


@pytest.mark.heavy
def test_plans_where_rounding_finds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = full_problem()
    groups = alike_tables(problem)
    relaxation = Relaxation(groups, problem.fleet)
    bound_s = relaxation.bound_s()
    assert bound_s is not None
    relaxed = relaxation.solve(bound_s * (1 + 1e-5))
    assert relaxed is not None
    rounding = [pack(problem, rounded(groups, relaxed[1], len(problem.tables)), weight) for weight in (0.0, 0.5, 2.0)]
    plan = Configurations(problem, groups, lambda: 5.0).plan(1.3 * bound_s, {})
    assert rounding == [None] * 3 and plan is not None and fits(problem, plan)
    assert busiest(problem, plan) <= 1.3 * bound_s
    assert shard_embeddings(problem, time_limit_s=60, gap_tolerance=0.05, clock=time.process_time).gap <= 0.05
    monkeypatch.setattr(search, "level_plan", lambda *_: None)  # which is as close before
    found = shard_embeddings(problem, time_limit_s=60, gap_tolerance=0.05, clock=time.process_time)
    assert "configurations of ranks" in found.methods and found.gap <= 0.05


@pytest.mark.parametrize("seed", range(4))
def test_knapsacks_fit_and_stay_below_what_none_is_worth_more_than(seed: int) -> None:
    dice = np.random.default_rng(seed)
    sizes, most = dice.integers(GRID // 5, GRID, (4, 2)), np.array([2, 1, 3, 1])
    knapsacks = Knapsacks(sizes, most, dice)
    worth = sizes.mean(axis=1) / GRID * dice.uniform(1.0, 2.0, 4)
    all_of_them = [np.array(counts) for counts in product(*(range(many + 1) for many in most))]
    best = max(float(counts @ worth) for counts in all_of_them if (counts @ sizes <= GRID).all())
    for found, above in (knapsacks.worth_more(worth, 5), knapsacks.best(worth)):
        assert above >= best * (1 - 1e-9)
        assert all((np.array(counts) @ sizes <= GRID).all() and (counts <= most).all() for counts in found)
        assert max((float(counts @ worth) for counts in found), default=1.0) == pytest.approx(max(best, 1.0))


def test_a_part_ends_by_the_clock_it_is_given() -> None:
    """A part ends by the clock that it gets.

    This may be CPU seconds, which a busy machine provides slowly.
    """
    problem = torchrec_problem(random_tables(60, 1), 32, 8)
    looks = iter(range(10**9))
    begin = time.process_time()
    solved = solve_part(problem, whole_part(problem), 1.0, 3.0, 0, work=20.0, clock=lambda: float(next(looks)))
    assert not solved.proved and next(looks) >= 4
    assert time.process_time() - begin < 10
