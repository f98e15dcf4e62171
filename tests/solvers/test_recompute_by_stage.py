"""Every stage has its own recompute policy, as its memory demands: equal to brute force, counted, verified and
simulated."""

from __future__ import annotations

import random
from typing import Any

import pytest

import scaleacross as sa
from cases import each
from instances import plain_job, plain_topology
from oracles.brute_force import equals_brute_force
from scaleacross.api.assemble import cost_of
from scaleacross.api.evaluation import evaluated
from scaleacross.emitters.launch import launch_config
from scaleacross.errors import InputError
from scaleacross.solvers.joint import search
from scaleacross.solvers.search_state import decision_of
from scaleacross.spec.plan import Plan
from scaleacross.verification import target_fits, verify
from scaleacross.workloads.problem import Problem, problem_of

DEGREES = ((1, 1, 2), (2, 1, 2), (1, 2, 2), (1, 1, 4), (2, 1, 4), (1, 2, 4))
"""Degrees tp, cp and pp on two hosts of four."""


def with_memory(seed: int, memory_bytes: float) -> Problem:
    """The problem of a seed: a short pipeline on accelerators with ``memory_bytes``.

    In every third seed the buildings have heterogeneous types.
    """
    rng = random.Random(f"by stage {seed}")
    topology, chunks = plain_topology(1, 1), rng.choice([1, 1, 2])
    for building in topology["regions"][0]["buildings"]:
        building["accelerator"] |= {"memory_bytes": memory_bytes}
        if seed % 3 == 2 and building["name"] == "b1":
            building["accelerator"] |= {"name": "other", "peak_tflop_per_s": {"bf16": rng.choice([40.0, 250.0])}}
    job = plain_job(topology=topology)
    workload = job.model_dump(mode="json")["workload"] | {"num_layers": rng.choice([4, 5, 6]) * chunks}
    schedule = "Interleaved1F1B" if chunks > 1 else rng.choice(["1F1B", "1F1B", "ZBH1"])
    changes = {
        "workload": workload | {"vocabulary_size": rng.choice([1000, 8000]), "hidden_size": 256},
        "recompute": rng.sample(["none", "full", "per_stage"], rng.choice([2, 3])),
        "degrees": {
            "tp": rng.choice([1, 2]),
            "cp": rng.choice([1, 1, 2]),
            "pp": rng.choice([2, 2, 4]),
            "dp_replicate": 1,
        },
        "schedules": schedule,
        "num_chunks": chunks,
        "micro_batch_sequences": 1,
        "shard": ["none", "optimizer"],
        "context_exchange": "ring",
        "global_batch_sequences": rng.choice([6, 8]),
        "memory_headroom_fraction": 0.0,
        "stages": "any",
    }
    if "per_stage" not in changes["recompute"]:
        changes["recompute"] = ["per_stage"]
    return problem_of(plain_job(topology=topology, **changes))


def opened(seed: int) -> Problem:
    """The same problem with less memory.

    It is between the needs of the fastest plan with no and with full recomputation.
    """
    roomy = with_memory(seed, 1e12)
    best = search(roomy, time_limit_s=600, gap_tolerance=0.0).best
    if best is None:
        return roomy
    needed = []
    for policy in ("none", "full"):
        decision = decision_of(best).model_copy(update={"recompute": policy, "stage_recompute": None})
        memory = cost_of(roomy, decision).memory
        needed.append(max(stage.total_bytes for stage in memory))
    return with_memory(seed, needed[1] + (needed[0] - needed[1]) * random.Random(seed).choice([0.1, 0.3, 0.5, 0.8]))


@each("seed", (11,), range(40))
def test_the_search_equals_brute_force(seed: int) -> None:
    equals_brute_force(opened(seed))


FIXED: dict[str, Any] = {
    "degrees": {"tp": 1, "cp": 1, "pp": 4, "dp_shard": 1, "dp_replicate": 1},
    "micro_batch_sequences": 1,
    "schedules": "1F1B",
    "num_chunks": 1,
    "shard": "none",
    "memory_headroom_fraction": 0.0,
}


def fixed(recompute: list[str], **changes: Any) -> Plan:
    """A pipeline of four stages of two layers on 240 MiB.

    The stages hold activations of four to one micro-batches.
    """
    topology = plain_topology(1)
    topology["regions"][0]["buildings"][0]["accelerator"]["memory_bytes"] = 240 * 2.0**20
    job = plain_job(topology=topology, **FIXED | {"recompute": recompute} | changes)
    return sa.plan(job, gap_tolerance=0.0, alternatives=False)


def test_the_first_stages_rerun_more() -> None:
    """The first stages recompute more, because they hold more micro-batches.

    One policy for all stages is slower, by the estimate and by the simulation.
    """
    alike, own = fixed(["none", "full", "full:1/2"]), fixed(["none", "full", "full:1/2", "per_stage"])
    assert (alike.decision.recompute, own.decision.recompute) == ("full:1/2", "per_stage")
    assert own.decision.stage_recompute == ("full:1/2", "full:1/2", "none", "none")
    assert own.cost.step_s < 0.95 * alike.cost.step_s
    assert own.cost.step_s == pytest.approx(own.estimated.step_s, rel=0.01)
    assert own.report.status == "optimal" and all(stage.fits for stage in own.memory)
    assert launch_config(own).stage_recompute == own.decision.stage_recompute


def test_it_verifies_and_what_is_wrong_is_named() -> None:
    plan = fixed(["per_stage"])
    verify(plan)
    problem = problem_of(plan.job)
    for policies, says in (
        (None, "per_stage alone has stage_recompute"),
        (("none", "none", "none", "selective"), "per_stage alone has stage_recompute"),
        (("none", "none", "none"), "per_stage alone has stage_recompute"),
        (("full:1/3", "none", "none", "none"), "full:1/3 with 2 layers a chunk"),
    ):
        with pytest.raises(InputError, match=says):
            evaluated(problem, plan.decision.model_copy(update={"stage_recompute": policies}))
    more = plan.decision.model_copy(update={"stage_recompute": ("none",) * 4})
    assert [stage.fits for stage in cost_of(problem, more).memory] == [False, False, True, True]


def test_other_targets_refuse_it_by_name() -> None:
    plan = fixed(["per_stage"])
    refused = {one.target: one.refused for one in target_fits(problem_of(plan.job), plan.decision)}
    assert not refused["scaleacross"]
    for target in ("megatron", "torchtitan"):
        assert any(line.startswith("recompute per_stage: ") for line in refused[target])


def test_a_job_that_it_cannot_help_is_refused() -> None:
    for changes in ({"stages": "equal"}, {"objective": "tokens_per_s_per_megawatt"}):
        with pytest.raises(InputError, match="recompute per_stage chooses"):
            fixed(["per_stage"], **changes)
