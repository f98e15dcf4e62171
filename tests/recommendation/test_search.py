"""The search compared with all plans and with other rules, its bound, and unequal ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embedding_tables import best_by_trying, random_tables, torchrec_problem
from scaleacross.catalogue import load_recommendation
from scaleacross.cost_models.embedding.options import ShardingProblem, busiest, fits, loads_of
from scaleacross.solvers.embeddings.baselines import RULES
from scaleacross.solvers.embeddings.search import shard_embeddings


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hbm_bytes", [2e9, 1.5e8])
def test_finds_the_best_of_all_plans_and_bounds_it(seed: int, hbm_bytes: float) -> None:
    problem = torchrec_problem(random_tables(2, seed), 4, 2, hbm_bytes=hbm_bytes)
    best = best_by_trying(problem)
    found = shard_embeddings(problem, time_limit_s=20, gap_tolerance=1e-4)
    assert found.assignment is not None and fits(problem, found.assignment)
    assert found.objective_s == pytest.approx(best, rel=2e-4)
    assert found.bound_s <= best * (1 + 1e-9)
    assert found.gap <= 2e-4


def test_bound_holds_with_unequal_ranks() -> None:
    problem = unequal(torchrec_problem(random_tables(3, 7)[:2], 4, 2))
    best = best_by_trying(problem)
    found = shard_embeddings(problem, time_limit_s=20, gap_tolerance=1e-4)
    assert found.objective_s == pytest.approx(best, rel=2e-4)
    assert found.bound_s <= best * (1 + 1e-9)


def unequal(problem: ShardingProblem) -> ShardingProblem:
    """A problem whose last two ranks are twice as slow."""
    slow = tuple(
        tuple(replace(o, parts=np.concatenate([o.parts, 2 * o.parts])) for o in own) for own in problem.options
    )
    return replace(problem, options=slow, fleet=replace(problem.fleet, rank_class=np.array([0, 0, 1, 1])))


def test_memory_sends_rows_to_the_host() -> None:
    tables = random_tables(6, 3)
    wide, tight = (torchrec_problem(tables, 4, 2, hbm_bytes=size) for size in (4e9, 2e8))
    fast, slow = (shard_embeddings(p, time_limit_s=5, gap_tolerance=0.01) for p in (wide, tight))
    assert fast.assignment is not None and slow.assignment is not None
    assert slow.objective_s > fast.objective_s
    assert loads_of(tight, slow.assignment)[1][:, 1].sum() > 0


def test_nothing_fits() -> None:
    problem = torchrec_problem(random_tables(6, 3), 4, 2, hbm_bytes=1e6)
    problem = replace(problem, fleet=replace(problem.fleet, capacity=problem.fleet.capacity * [1, 0, 0]))
    found = shard_embeddings(problem, time_limit_s=2)
    assert found.assignment is None and not found.relaxation_fits


def mlperf(num_ranks: int) -> ShardingProblem:
    tables = tuple(load_recommendation("mlperf-dlrm-dcnv2").expanded())
    return torchrec_problem(tables, num_ranks, 8, 65536 // num_ranks, 0.85 * 80 * 2**30)


@pytest.mark.heavy
def test_mlperf_on_eight_ranks_is_the_known_optimum() -> None:
    # 3.0052 ms, proved optimal by an exact search on TorchRec's own option costs; its default planner: 3.218 ms
    found = shard_embeddings(mlperf(8), time_limit_s=30, gap_tolerance=0.005)
    assert found.objective_s * 1e3 == pytest.approx(3.0052, rel=0.006)
    assert found.bound_s * 1e3 <= 3.0053


@pytest.mark.parametrize("name", list(RULES))
def test_rules_make_legal_plans_that_ours_is_not_slower_than(name: str) -> None:
    problem = torchrec_problem(random_tables(12, 11), 4, 2, hbm_bytes=4e9)
    outcome = RULES[name].decide(problem, problem, 10.0)
    assert outcome.assignment is not None, outcome.reason
    assert fits(problem, outcome.assignment)
    ours = shard_embeddings(problem, time_limit_s=3, gap_tolerance=0.03, incumbents=(outcome.assignment,))
    assert ours.objective_s <= busiest(problem, outcome.assignment) * (1 + 1e-9)


def test_rules_keep_to_their_key() -> None:
    tables = random_tables(24, 11)
    problem = torchrec_problem(tables, 8, 4, hbm_bytes=4e9)
    size = RULES["greedy_size"].decide(problem, problem, 1.0).assignment
    even = RULES["greedy_dimension"].decide(problem, problem, 1.0).assignment
    assert size is not None and even is not None

    def spread(ranks: tuple[np.ndarray, ...], weights: list[int]) -> float:
        held = np.zeros(8)
        for own, weight in zip(ranks, weights, strict=True):
            held[own] += weight / len(own)
        return float(held.max() / held.mean())

    assert spread(size.ranks, [t.num_elements for t in tables]) <= spread(even.ranks, [t.num_elements for t in tables])
    assert spread(even.ranks, [t.dimension for t in tables]) <= spread(size.ranks, [t.dimension for t in tables])


def test_many_alike_tables_are_one_group() -> None:
    tables = tuple(load_recommendation("synthetic-medium").expanded())
    problem = torchrec_problem(tables, 8, 8, 8192, 0.85 * 80 * 2**30)
    found = shard_embeddings(problem, time_limit_s=12, gap_tolerance=0.02)
    assert found.gap <= 0.02
