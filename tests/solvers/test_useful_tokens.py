"""Useful tokens per second.

The search equals brute force with failures, and the bound on the useful share holds for every placement.
"""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import scaleacross as sa
from cases import each
from instances import mixed_job, plain_job, plain_topology, random_job
from oracles.exhaustive import exhaustive
from scaleacross.catalogue import load_job
from scaleacross.cost_models.goodput import goodput_of, useful_parts
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.useful import UsefulShare
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES
from scaleacross.workloads.problem import Problem, problem_of

SEEDS = (10, 54)
MIXED_SEEDS = (24,)


def failing(job: Job, seed: int) -> Problem:
    """The job with random failures and recovery.

    Toy steps take milliseconds, so failures come minutes apart.
    """
    rng = random.Random(f"failing {seed}")
    data: dict[str, Any] = job.model_dump(mode="json", exclude_none=True)
    failures: dict[str, Any] = {"host_mtbf_hours": rng.choice([0.5, 2, 20]), "repair_hours": rng.choice([0.1, 1])}
    if rng.random() < 0.5:
        failures |= {"zone_mtbf_hours": rng.choice([1, 10]), "rack_mtbf_hours": 5.0}
    if rng.random() < 0.5:
        failures |= {"failures_per_1000_node_days": 5000.0, "inter_building_link_mtbf_hours": 3.0}
    recovery: dict[str, Any] = {
        "recover_s": rng.choice([60, 300]),
        "stall_s": rng.choice([0, 30, 90]),
        "batch_policy": rng.choice(["shrink", "keep"]),
        "policy": rng.choice(["shrink", "shrink", "restart"]),
        "checkpoint_interval_s": rng.choice(["auto", 300]),
        "checkpoint_blocking_s": 10,
        "spares": rng.choice(["auto", 0, 1]),
    }
    recovery["stall_s"] = min(recovery["stall_s"], recovery["recover_s"])  # larger problems are refused
    data["topology"] |= {"reliability": failures}
    return problem_of(Job.model_validate(data | {"reliability": recovery, "objective": "useful_tokens_per_s"}))


@each("seed", (SEEDS[0],), SEEDS[1:], heavy=[-seed for seed in MIXED_SEEDS], size=1)
def test_search_finds_the_best_of_brute_force(seed: int) -> None:
    equals_brute_force(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [-1, 0, 4, 6, 18, 24, 27, 30, 36, 41])
def test_search_finds_the_best_of_brute_force_on_more(seed: int) -> None:
    equals_brute_force(seed)


@each("seed", (1,), heavy=(0, 2, 3), size=1)
def test_failures_decide_small_problems_as_brute_force_says(seed: int) -> None:
    equals_brute_force(seed, small_job(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 40))
def test_failures_decide_more_small_problems_as_brute_force_says(seed: int) -> None:
    equals_brute_force(seed, small_job(seed))


def small_job(seed: int) -> Job:
    """A job of 4 to 16 accelerators that chooses number, shape and place of its fault units.

    In most seeds failures change the best plan.
    """
    rng = random.Random(f"small {seed}")
    hosts, schedule = rng.choice([(2, 1), (1, 2), (2, 2), (1, 1)]), rng.choice(["1F1B", "GPipe"])
    few: dict[str, Any] = {"recompute": ["none"], "shard": ["none", "optimizer"], "micro_batch_sequences": [1]}
    return plain_job(*hosts, degrees={"tp": 1, "cp": 1}, schedules=schedule, **few)


def equals_brute_force(seed: int, job: Job | None = None) -> None:
    """Compare the plan of a seed with brute force. Negative seeds have several accelerator types."""
    problem = failing(job or (random_job(seed) if seed >= 0 else mixed_job(-seed)), seed)
    oracle = exhaustive(problem, lambda decision, cost: sum(useful_parts(problem, decision, cost.cost.step_s).values()))
    if oracle.decision is None:
        with pytest.raises(sa.InfeasibleError):
            sa.plan(problem.job, alternatives=False)
        return
    plan = sa.plan(problem.job, alternatives=False, simulated=False)  # ``plan`` verifies it; no layers are moved
    value = plan.report.objective
    assert value is not None
    assert plan.report.status == "optimal"
    assert value.spent_per_step == pytest.approx(oracle.step_s, rel=1e-9)
    assert value.spent_bound_per_step <= oracle.step_s * (1 + 1e-9)
    assert plan.goodput is not None
    estimated = goodput_of(problem, plan.decision, plan.estimated.step_s)
    assert value.value == pytest.approx(estimated.useful_tokens_per_s)


@pytest.mark.parametrize("seed", [0, 2, 4, -1])
def test_no_placement_has_a_higher_share_than_the_bound(seed: int) -> None:
    problem = failing(random_job(seed) if seed >= 0 else mixed_job(-seed), seed)
    share, checked = UsefulShare(problem), 0
    for pool in pools(problem.topology):
        space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
        for partials in space.partials(Refusals()):
            settings = space.expand(partials, Refusals())
            if not len(settings):
                continue
            assert share.partial_bound(partials).max() >= share.bound(settings).max() * (1 - 1e-12)
            for row in np.random.default_rng(abs(seed)).choice(len(settings), 3):
                one = settings.take(np.array([row]))
                degrees, micro_batches = one.decision(0).degrees, int(one.num_micro_batches[0])
                for allocation in pool.allocations_of(degrees):
                    for order in list(permutations(GRID_AXES))[::17]:
                        exact = share.exact(degrees, micro_batches, allocation, order)
                        assert exact <= share.bound(one)[0] * (1 + 1e-12)
                        checked += 1
    assert checked > 20


@pytest.mark.heavy
def test_failures_decide_how_many_replicas() -> None:
    """On the same machine, failures every few minutes lead to more fault units."""
    chosen = {}
    for hours in (1e6, 0.2):
        topology = plain_topology(3, 2) | {"reliability": {"host_mtbf_hours": hours}}
        recovery = {"recover_s": 120, "stall_s": 5}
        job = plain_job(topology=topology, reliability=recovery, objective="useful_tokens_per_s")
        plan = sa.plan(job, time_limit_s=20, gap_tolerance=0.01, alternatives=False)
        chosen[hours] = plan.degrees.dp_replicate
        assert plan.goodput is not None
        assert goodput_of(problem_of(plan.job), plan.decision, plan.cost.step_s) == plan.goodput
    assert chosen[0.2] > chosen[1e6]


def test_large_jobs_with_reliability_want_useful_tokens() -> None:
    rate = ["topology.reliability.published=rsc-1"]
    assert load_job("llama3_405b_region").objective == "step_time"
    assert load_job("llama3_405b_region", rate).objective == "useful_tokens_per_s"
    assert load_job("llama3_405b_region", ["reliability.spares=4"]).objective == "useful_tokens_per_s"
    assert load_job("llama3_405b_region", [*rate, "objective=step_time"]).objective == "step_time"
    assert load_job("llama3_405b_region", [*rate, "num_accelerators=1024"]).objective == "step_time"
