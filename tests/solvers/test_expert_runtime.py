"""Job fields set how experts run: permutation, overlapped shared experts, and groups of experts.

The search equals brute force, is bounded and simulated. Targets that cannot run a setting refuse it by name.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import ValidationError

import scaleacross as sa
from cases import each
from instances import mixed_job, moe, plain_job, random_job
from oracles.brute_force import equals_brute_force
from planned import planned as searched
from scaleacross.errors import InfeasibleError
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.targets import refused_by
from scaleacross.verification import verify
from scaleacross.workloads.problem import problem_of

GROUPED = {"num_groups": 4, "group_top_k": 1}
SHARED = moe(num_shared_experts=1, shared_intermediate_size=512, router=GROUPED)
PINNED: dict[str, Any] = {
    "workload": SHARED,
    "degrees": {"tp": 1, "cp": 1, "pp": 1, "dp_replicate": 1, "dp_shard": 8, "ep": 8},
    "schedules": ["1F1B"],
    "micro_batch_sequences": 1,
    "recompute": "none",
    "shard": "optimizer",
}
WAYS: tuple[dict[str, Any], ...] = (
    {"shared_overlap": True},
    {"fused_permutation": False},
    {"dispatch": "deduplicated"},
    {"dispatch": "deduplicated", "shared_overlap": True, "fused_permutation": False},
)


def with_experts(job: Job, seed: int) -> Job:
    """The job with shared experts, groups of experts, and one way to run them."""
    rng = random.Random(f"experts {seed}")
    workload = SHARED | {"num_layers": 4, "num_dense_layers": rng.choice([0, 1])}
    workload |= {"dense_intermediate_size": 256} if workload["num_dense_layers"] else {}
    changes: dict[str, Any] = {"workload": workload, "sequence_length": 4096, "num_accelerators": None}
    changes |= {"degrees": job.degrees.model_copy(update={"tp": (1, 2), "cp": (1,), "pp": (1, 2), "ep": None})}
    schedules = ("1F1B", rng.choice(["1F1B", "ZBH1", "GPipe"]))
    changes |= {"schedules": schedules, "num_chunks": (1,), "micro_batch_sequences": (1,)}
    changes |= {"recompute": ("none", "full"), "shard": ("optimizer", "parameters")}
    changes |= {"experts": job.experts.model_copy(update=WAYS[seed % len(WAYS)])}
    return Job.model_validate(job.model_copy(update=changes).model_dump(mode="json", exclude_unset=True))


@each("seed", (), (3, 4, 7, 10, 12, 15, 18), size=1)
def test_the_search_equals_brute_force(seed: int) -> None:
    equals_brute_force(problem_of(with_experts(random_job(seed), seed)))


@each("seed", (6,), (2, 9, 11), size=1)
def test_so_does_that_of_two_types(seed: int) -> None:
    equals_brute_force(problem_of(with_experts(mixed_job(seed), seed)))


def planned(hosts: int = 4, **changes: Any) -> Plan:
    return searched(plain_job(hosts, **PINNED | changes), gap_tolerance=0.0, simulated=False)


PLACES: tuple[dict[str, Any], ...] = (
    {},
    {"recompute": "full"},
    {"shard": "parameters"},
    {"degrees": {"tp": 2, "pp": 2, "dp_shard": 2, "ep": 2, "cp": 1, "dp_replicate": 1}},
    {"degrees": {"pp": 2, "dp_shard": 4, "ep": 4, "tp": 1, "cp": 1, "dp_replicate": 1}, "schedules": ["ZBH1"]},
)


@pytest.mark.parametrize(
    ("changes", "experts"),
    [
        pytest.param(place, way, id=f"{place}-{way}", marks=pytest.mark.heavy if (number + at) % 4 else ())
        for number, place in enumerate(PLACES)
        for at, way in enumerate(WAYS)
    ],
)
def test_the_simulation_agrees(changes: dict[str, Any], experts: dict[str, Any]) -> None:
    plan = planned(**changes, experts=experts)
    assert plan.report.bound_s <= plan.report.objective_s * (1 + 1e-9)
    assert sa.simulate(plan).step_s == pytest.approx(plan.estimated.step_s, rel=0.05)
    verify(plan)


def test_shared_experts_hide_what_they_last_for() -> None:
    """Overlap with all-to-alls saves exactly the time of the shared experts.

    There are 8 layers and 8 micro-batches. Without shared experts the setting changes no step time.
    """
    apart, beside = planned(), planned(experts={"shared_overlap": True})
    assert beside.work is not None
    (chunk,) = next(iter(beside.work.values())).kinds
    shared = chunk.shared_s + chunk.shared_backward_s
    assert chunk.shared_s > 0 and chunk.shared_backward_s > chunk.shared_s
    saved = apart.cost.step_s - beside.cost.step_s
    assert saved == pytest.approx(apart.num_micro_batches * shared, rel=1e-6)
    assert apart.cost.exposed_s["ep"] - beside.cost.exposed_s["ep"] == pytest.approx(saved, rel=1e-6)
    assert sa.simulate(apart).step_s - sa.simulate(beside).step_s == pytest.approx(saved, rel=0.02)
    nothing = planned(workload=moe(router=GROUPED), experts={"shared_overlap": True})
    assert nothing.cost.step_s == planned(workload=moe(router=GROUPED)).cost.step_s


def test_groups_of_experts_shorten_all_to_alls_of_tokens_that_are_sent_once() -> None:
    """Groups of experts reduce the tokens that cross hosts.

    Both experts of a token are in one of four groups, and each group is on one of two hosts. Half of all tokens stay.
    """
    free = SHARED | {"router": {}}
    for dispatch, shorter in (("copies", False), ("deduplicated", True)):
        limited, wide = (planned(2, workload=one, experts={"dispatch": dispatch}) for one in (SHARED, free))
        assert (limited.cost.exposed_s["ep"] < wide.cost.exposed_s["ep"]) is shorter
        assert limited.cost.exposed_s["ep"] <= wide.cost.exposed_s["ep"]


def test_an_unfused_permutation_moves_more_in_either_pass() -> None:
    fused, unfused = planned(), planned(experts={"fused_permutation": False})
    topology = problem_of(fused.job).topology
    accelerator = topology.buildings[0].accelerator
    rate = accelerator.memory_bandwidth_bytes_per_s * accelerator.memory_efficiency_fraction
    tokens = fused.job.sequence_length * fused.num_micro_batches * 8  # in all layers
    each_s = tokens * 256 * (2 * (2 - 1) + 4 * 2) / rate  # two copies of 256 features
    assert unfused.cost.step_s - fused.cost.step_s == pytest.approx(2 * each_s, rel=2e-3)  # products lose less speed


def test_overlap_with_another_micro_batch_holds_one_more_chunk() -> None:
    pipeline = {"degrees": {"pp": 2, "dp_shard": 4, "ep": 4, "tp": 1, "cp": 1, "dp_replicate": 1}}
    alone, beside = (planned(**pipeline, experts={"overlap_fraction": share}) for share in (0.0, 0.5))
    verify(beside)
    assert beside.memory[1].activations_bytes == pytest.approx(
        2 * alone.memory[1].activations_bytes, rel=0.1
    )  # and the head's
    assert beside.memory[0].activations_bytes == pytest.approx(1.5 * alone.memory[0].activations_bytes)


def test_what_excludes_each_other_is_refused() -> None:
    with pytest.raises(ValidationError, match="shared_overlap with overlap_fraction"):
        planned(experts={"shared_overlap": True, "overlap_fraction": 0.5})
    with pytest.raises(InfeasibleError, match="target megatron: shared overlap"):
        planned(target="megatron", recompute="shared_experts", experts={"shared_overlap": True})
    plan = planned(recompute="shared_experts", experts={"shared_overlap": True})
    profile = problem_of(plan.job).profile
    for target, why in (
        ("megatron", "does not rerun shared_experts"),
        ("torchtitan", "after the routed ones have returned"),
    ):
        assert any(why in one for one in refused_by(target, plan.job, profile, plan.decision))
