"""A share of the layers of every chunk recomputes: equal to brute force, counted, verified, simulated, emitted, read
back."""

from __future__ import annotations

import random
from typing import Any

import pytest

import scaleacross as sa
from cases import each
from instances import plain_job, random_job
from oracles.brute_force import equals_brute_force
from scaleacross.api.evaluation import evaluated
from scaleacross.errors import InputError, VerificationError
from scaleacross.solvers.joint import search
from scaleacross.spec.plan import Decision, Plan
from scaleacross.spec.recomputation import PARTS
from scaleacross.verification import verify
from scaleacross.workloads.problem import Problem, problem_of


def with_memory(seed: int, memory_bytes: float) -> Problem:
    """The problem of a seed with shares of the layers besides none and full, on accelerators with ``memory_bytes``."""
    rng, job = random.Random(f"some layers {seed}"), random_job(seed)
    data = job.model_dump(mode="json", exclude_unset=True)
    data["recompute"] = ["none", *rng.sample(["full:1/2", "full:1/3", "full:2/3", "full:1/4"], 2), "full"]
    data["workload"]["num_layers"] = rng.choice([4, 6, 8])
    for dense in ("num_dense_layers", "dense_intermediate_size"):  # layers of one kind
        data["workload"].pop(dense, None)
    data |= {"micro_batch_sequences": [1, 2], "schedules": ["1F1B"], "num_chunks": [1], "shard": ["none", "optimizer"]}
    for region in data["topology"]["regions"]:
        for building in region["buildings"]:
            building["accelerator"]["memory_bytes"] = memory_bytes
    data["degrees"] = data.get("degrees", {}) | {"tp": 1, "cp": 1}
    return problem_of(type(job).model_validate(data))


def opened(seed: int) -> Problem:
    """The same problem with less memory than its unrestricted plan needs."""
    best = search(with_memory(seed, 1e12), time_limit_s=600, gap_tolerance=0.0).best
    if best is None:
        return with_memory(seed, 1e12)
    bounder, share = best.placer.bounder, random.Random(seed).choice([0.6, 0.75, 0.9])
    needed = float(bounder.needed_bytes(best.candidates)[0]) * share
    return with_memory(seed, needed + bounder.accelerators[0].reserved_memory_bytes)


@each("seed", (19,), range(40))
def test_the_search_equals_brute_force(seed: int) -> None:
    equals_brute_force(opened(seed))


FIXED: dict[str, Any] = {
    "degrees": {"tp": 1, "cp": 1, "pp": 2, "dp_shard": 2, "dp_replicate": 1},
    "micro_batch_sequences": 1,
    "schedules": "1F1B",
    "num_chunks": 1,
    "shard": "optimizer",
    "memory_headroom_fraction": 0.0,
    "stages": "equal",
}


def fixed(recompute: str, **changes: Any) -> Plan:
    return sa.plan(plain_job(1, **FIXED | {"recompute": recompute} | changes), gap_tolerance=0.0, alternatives=False)


def test_half_of_the_layers_keeps_and_repeats_half() -> None:
    """Half of the layers keeps half of the activations and repeats half of the computation.

    The layer in work needs as much memory as with full recomputation.
    """
    none, half, full = (fixed(one) for one in ("none", "full:1/2", "full"))
    for at in range(2):
        kept = [plan.memory[at].activations_bytes for plan in (none, half, full)]
        assert kept[1] == pytest.approx((kept[0] + kept[2]) / 2) and kept[0] > kept[2]
        assert half.memory[at].buffers_bytes == pytest.approx(full.memory[at].buffers_bytes)
    assert half.cost.compute_s == pytest.approx((none.cost.compute_s + full.cost.compute_s) / 2)


def test_it_verifies_simulates_and_an_unequal_chunk_is_refused() -> None:
    plan = fixed("full:1/2")
    verify(plan)
    assert sa.simulate(plan).step_s == pytest.approx(plan.estimated.step_s, rel=0.05)
    layers = sum(map(sum, plan.layers_per_stage))
    unequal = plan.decision.model_copy(update={"layers_per_stage": ((layers // 2 - 1,), (layers // 2 + 1,))})
    with pytest.raises((VerificationError, InputError), match="full:1/2 with"):
        verify(evaluated(problem_of(plan.job), unequal))


def test_shares_are_spelled_once() -> None:
    assert len(set(PARTS.values())) == len(PARTS)
    for wrong in ("full:2/4", "full:3/2", "full:1/99", "full:x"):
        with pytest.raises(ValueError, match="no share of a chunk's layers"):
            Decision.model_validate(fixed("none").decision.model_dump() | {"recompute": wrong})
