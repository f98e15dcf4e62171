"""Host offload and the shard level as decisions: equal to brute force, bounded, counted, simulated and emitted."""

from __future__ import annotations

import random
from typing import Any

import pytest

import scaleacross as sa
from cases import each
from instances import plain_job, random_job
from oracles.brute_force import equals_brute_force
from scaleacross.api.evaluation import evaluated
from scaleacross.errors import InfeasibleError, InputError, VerificationError
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import SHARD_LEVELS
from scaleacross.spec.plan import Decision, Plan
from scaleacross.verification import verify
from scaleacross.workloads.problem import Problem, problem_of

HOST = {"memory_gib": 4, "memory_bandwidth_gbyte_per_s": 160, "link_bandwidth_gbyte_per_s": 20}


def with_host(job: Job, **changes: Any) -> Job:
    """The job with a host in every building."""
    data = job.model_dump(mode="json", exclude_unset=True)
    for region in data["topology"]["regions"]:
        for building in region["buildings"]:
            building["host"] = changes.get("host", HOST)
    return Job.model_validate(data | {key: value for key, value in changes.items() if key != "host"})


def widened(seed: int) -> Problem:
    """The problem of a seed with every shard level, shares of activations and states offloaded, and host speeds."""
    rng = random.Random(f"host {seed}")
    host = HOST | {"link_bandwidth_gbyte_per_s": rng.choice([1, 5, 50]), "memory_gib": rng.choice([0.1, 1, 16])}
    shares = {
        "activation_offload": [0.0, rng.choice([0.25, 0.5, 1.0])],
        "optimizer_offload": [0.0, rng.choice([0.5, 1.0])],
    }
    job, levels = random_job(seed), [rng.choice(["gradients", "parameters_once"]), *rng.sample(SHARD_LEVELS[:3], 2)]
    pins = {
        "micro_batch_sequences": [1],
        "recompute": ["none"],
        "num_chunks": [1],
        "schedules": ["1F1B"],
        "shard": levels,
    }
    pins |= {"degrees": job.degrees.model_dump(mode="json", exclude_none=True) | {"tp": 1, "cp": 1}}
    return problem_of(with_host(job, host=host, **shares, **pins))


@pytest.mark.heavy
@each("seed", (5, 9, 26, 32), range(40))
def test_the_search_equals_brute_force(seed: int) -> None:
    equals_brute_force(widened(seed))


FIXED: dict[str, Any] = {
    "degrees": {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 4, "dp_replicate": 1},
    "micro_batch_sequences": 1,
    "recompute": "none",
    "shard": "optimizer",
    "memory_headroom_fraction": 0.0,
}


def fixed(**changes: Any) -> Plan:
    """The plan of one decision on one building of four accelerators with a host."""
    host = changes.pop("host", HOST)
    return sa.plan(with_host(plain_job(1, **FIXED | changes), host=host), gap_tolerance=0.0, alternatives=False)


def test_hidden_copies_cost_nothing_and_longer_ones_the_rest() -> None:
    """Overlapped copies cost nothing, and longer copies cost the remainder.

    A pass lasts at least as long as its copies. The host's update lasts as long as the slowest of its three parts.
    """
    fast = HOST | {"link_bandwidth_gbyte_per_s": 1e4, "memory_bandwidth_gbyte_per_s": 1e5}
    whole, hidden = fixed(), fixed(activation_offload=0.5, optimizer_offload=1.0, host=fast)
    assert hidden.cost.compute_s == whole.cost.compute_s
    slow = fixed(activation_offload=0.5, host=HOST | {"link_bandwidth_gbyte_per_s": 1e-2})
    profile, m = problem_of(whole.job).profile, whole.num_micro_batches
    copied = sum(
        layer.kept("none").sharded + layer.kept("none").replicated for layer, n in profile.blocks for _ in range(n)
    )
    passes_s = 2 * m * 0.5 * copied * whole.job.sequence_length / 1e7
    assert slow.cost.compute_s == pytest.approx(passes_s, rel=0.05)
    late = fixed(optimizer_offload=1.0, host=HOST | {"link_bandwidth_gbyte_per_s": 1e-2})
    updated = late.memory[0].host_bytes / (late.job.optimizer.state_bytes + 4)
    assert late.cost.optimizer_s == pytest.approx(updated * 4 / 1e7, rel=1e-6)
    assert whole.memory[0].optimizer_bytes == pytest.approx(updated * late.job.optimizer.state_bytes)
    assert (
        late.memory[0].optimizer_bytes == 0 and hidden.memory[0].activations_bytes < whole.memory[0].activations_bytes
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"shard": "gradients"}, marks=pytest.mark.heavy),
        {"shard": "parameters_once"},
        {"shard": "gradients", "degrees": {"tp": 1, "cp": 1, "pp": 2, "dp_shard": 2, "dp_replicate": 1}},
        {"activation_offload": 0.5},
        {"optimizer_offload": 0.5, "host": HOST | {"link_bandwidth_gbyte_per_s": 0.1}},
    ],
)
def test_the_simulation_agrees(changes: dict[str, Any]) -> None:
    plan = fixed(**changes)
    assert sa.simulate(plan).step_s == pytest.approx(plan.estimated.step_s, rel=0.05)
    verify(plan)


def test_levels_send_and_hold_what_they_say() -> None:
    """Calls and bytes of every shard level equal ZeRO's own table (arXiv 1910.02054, section 5)."""
    plans = {level: fixed(shard=level) for level in SHARD_LEVELS[1:]}
    m, layers = (
        plans["optimizer"].num_micro_batches,
        sum(count for _, count in problem_of(plans["optimizer"].job).profile.blocks),
    )

    def calls(level: str, op: str) -> float:
        return sum(one.per_step for one in plans[level].collectives if one.op == op)

    assert {
        level: calls(level, "reduce_scatter") for level in ("gradients", "parameters", "parameters_once")
    } == dict.fromkeys(("gradients", "parameters", "parameters_once"), m * layers)
    assert [calls(level, "all_gather") for level in ("gradients", "parameters_once", "parameters")] == [
        layers, m * layers, 2 * m * layers
    ]  # fmt: skip
    held = {level: plan.memory[0] for level, plan in plans.items()}
    assert held["gradients"].gradients_bytes * 4 == pytest.approx(held["optimizer"].gradients_bytes)
    assert held["gradients"].parameters_bytes == held["optimizer"].parameters_bytes
    assert held["parameters_once"].parameters_bytes == held["parameters"].parameters_bytes
    assert held["parameters_once"].buffers_bytes > held["parameters"].buffers_bytes


@pytest.mark.heavy
def test_what_fits_only_with_offload_or_sharded_gradients_gets_a_plan() -> None:
    """A decision that needs offload or sharded gradients to fit gets a plan.

    Memory is between the need of the plain decision and that of the wider space.
    """
    full = fixed()
    for changes in (
        {"optimizer_offload": [0.0, 1.0]},
        {"activation_offload": [0.0, 0.5]},
        {"shard": ["optimizer", "gradients"]},
    ):
        needed = fixed(**{name: values[1] for name, values in changes.items()}).memory[0].total_bytes
        assert needed < full.memory[0].total_bytes
        data = with_host(plain_job(1, **FIXED)).model_dump(mode="json", exclude_none=True)
        for region in data["topology"]["regions"]:
            for building in region["buildings"]:
                building["accelerator"]["memory_bytes"] = (needed + full.memory[0].total_bytes) / 2
        with pytest.raises(InfeasibleError):
            sa.plan(Job.model_validate(data), alternatives=False)
        plan = sa.plan(Job.model_validate(data | changes), alternatives=False)
        assert plan.memory[0].fits and {name: getattr(plan.decision, name) for name in changes} == {
            name: values[1] for name, values in changes.items()
        }


def test_offload_without_a_host_and_without_room_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"nothing says what its .* can offload to"):
        sa.plan(plain_job(1, **FIXED, optimizer_offload=0.5), alternatives=False)
    with pytest.raises(InfeasibleError):
        fixed(optimizer_offload=1.0, host=HOST | {"memory_gib": 1e-3})


def test_verification_counts_the_host_and_refuses_what_the_job_does_not_allow() -> None:
    plan = fixed(optimizer_offload=0.5)
    filled = plan.memory[0].model_copy(update={"host_bytes": plan.memory[0].host_bytes / 2})
    with pytest.raises(VerificationError, match="V3: host_bytes of stage 0"):
        verify(plan.model_copy(update={"memory": (filled,)}))
    told = plan.decision.model_copy(update={"optimizer_offload": 0.25})
    with pytest.raises(VerificationError, match=r"the job allows optimizer_offload 0.5; the decision has 0.25"):
        verify(plan.model_copy(update={"decision": told}))


def test_parameters_kept_from_pass_to_pass_ask_for_no_pipeline() -> None:
    decision = Decision.model_validate(
        {
            "degrees": {"pp": 2, "dp_shard": 4},
            "pipeline": {"schedule": "1F1B"},
            "recompute": "none",
            "shard": "parameters_once",
        }
    )
    with pytest.raises(InputError, match="shard parameters_once with pp 2"):
        evaluated(problem_of(plain_job(1, **FIXED | {"shard": "parameters_once", "degrees": {}})), decision)


def test_the_full_space_opens_what_the_job_does_not_state_and_says_what_quick_leaves_out() -> None:
    quick = sa.plan(
        plain_job(1, **{k: v for k, v in FIXED.items() if k != "shard"}), gap_tolerance=0.0, alternatives=False
    )
    said = next(note for note in quick.report.notes if note.startswith("not tried"))
    assert (
        "shard gradients, parameters_once" in said and "optimizer_offload" not in said
    )  # no host, nothing to offload to
    wide = problem_of(with_host(plain_job(1, recompute=["none"])).model_copy(update={"space": "full"})).job
    assert wide.recompute == ("none",)  # the job allows it
    assert (wide.shard, wide.optimizer_offload) == (SHARD_LEVELS, (0.0, 0.5, 1.0))
    assert len(wide.activation_offload) > 1 and wide.activation_offload[0] == 0
