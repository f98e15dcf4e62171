"""Experts on the lanes of tensor and context parallelism are a choice of the search: equal to brute force, bounded, simulated."""

from __future__ import annotations

from typing import Any

import pytest

from cases import each
from instances import mixed_job, moe, random_job
from oracles.exhaustive import exhaustive
from scaleacross.solvers.joint import search
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import EXPERT_FOLDINGS
from scaleacross.workloads.problem import problem_of

PINNED: dict[str, Any] = {
    "workload": moe(),
    "degrees": {"tp": 4, "cp": 1, "pp": 1, "dp_replicate": 1, "dp_shard": 2, "ep": 2},
    "schedules": ["1F1B"],
    "micro_batch_sequences": 1,
    "recompute": "none",
    "shard": "optimizer",
    "expert_folding": list(EXPERT_FOLDINGS),
}


def with_folding(job: Job, seed: int) -> Job:
    """The job with eight experts, lanes of tp, cp or both, either folding, and one schedule and policy."""
    lanes = {"tp": (2,), "cp": (1,)} if seed % 2 else {"tp": (1, 2), "cp": (1, 2)}
    degrees = job.degrees.model_copy(update={**lanes, "ep": None, "dp_shard": (1, 2, 4), "pp": (1, 2)})
    changes: dict[str, Any] = {"degrees": degrees, "sequence_length": 4096, "num_accelerators": None}
    changes |= {"workload": moe(num_layers=4), "expert_folding": EXPERT_FOLDINGS, "micro_batch_sequences": (1,)}
    changes |= {
        "schedules": ("1F1B",),
        "num_chunks": (1,),
        "recompute": ("none",),
        "shard": ("optimizer", "parameters"),
    }
    return job.model_copy(update=changes)


def equals_brute_force(job: Job) -> None:
    problem = problem_of(job)
    oracle, found = exhaustive(problem), search(problem, time_limit_s=600, gap_tolerance=0.0)
    assert (found.best is None) == (oracle.decision is None)
    if found.best is not None:
        assert found.best.step_s == pytest.approx(oracle.step_s, rel=1e-9)
        assert found.bound_s <= oracle.step_s * (1 + 1e-12)


@each("seed", (3,), (4, 7, 10, 12, 15), size=1)
def test_the_search_equals_brute_force(seed: int) -> None:
    equals_brute_force(with_folding(random_job(seed), seed))


@each("seed", (6,), (2, 9), size=1)
def test_so_does_that_of_two_types(seed: int) -> None:
    equals_brute_force(with_folding(mixed_job(seed), seed))
