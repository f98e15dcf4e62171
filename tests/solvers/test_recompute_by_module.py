"""Recomputation of named modules as a decision.

The search equals brute force, and step time and simulation repeat the right work.
"""

from __future__ import annotations

import random

import pytest

import scaleacross as sa
from cases import each
from decisions import Case, decision_of, job_of
from instances import moe, plain_job, random_job
from oracles.exhaustive import exhaustive
from scaleacross.api.evaluation import evaluated
from scaleacross.api.problems import problem_of as read
from scaleacross.solvers.joint import search
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.spec.recomputation import MODULE_SETS, MODULES
from scaleacross.workloads.problem import Problem, problem_of

QUICK = (26,)
"""A quick seed.

Feed-forward modules are best in two of the seeds. Memory holds neither all activations nor full layers there.
"""
PROOF = (10, 16, 48)
"""Further seeds take minutes of brute force each. They were not run."""


def with_modules(seed: int) -> Problem:
    """The problem of a seed that allows no recomputation, whole layers, and three sets of its model's modules."""
    job, rng = random_job(seed), random.Random(f"recompute {seed}")
    profile = problem_of(job).profile
    sets = [policy for policy in map("+".join, MODULE_SETS) if profile.acting(policy) == policy]
    allowed = ["none", *rng.sample(sets, min(len(sets), 3)), "full"]
    return problem_of(Job.model_validate(job.model_dump(mode="json", exclude_none=True) | {"recompute": allowed}))


@each("seed", QUICK, PROOF, heavy=(19, 44))
def test_search_finds_the_optimum_of_brute_force(seed: int) -> None:
    problem = with_modules(seed)
    oracle, found = exhaustive(problem), search(problem, time_limit_s=600, gap_tolerance=0.0)
    assert found.bound_violation_s <= 1e-12
    if oracle.decision is None:
        assert found.best is None
        return
    assert found.best is not None
    assert found.best.step_s == pytest.approx(oracle.step_s, rel=1e-9)
    assert found.bound_s <= found.best.step_s


@pytest.mark.heavy
def test_a_module_is_taken_where_it_is_what_fits_best() -> None:
    problem = with_modules(62)
    plan = sa.plan(problem.job, gap_tolerance=0.0)  # verifies itself
    assert (plan.decision.recompute, plan.report.status) == ("moe_act+mlp", "optimal")
    narrow = problem.job.model_dump(mode="json", exclude_none=True) | {"recompute": ["none", "full"]}
    assert plan.cost.step_s < sa.plan(Job.model_validate(narrow), gap_tolerance=0.0).cost.step_s


def estimated(policy: str, degrees: str, **names: str) -> Plan:
    case = Case({"topology": "one_building"} | names, degrees, "1F1B", policy)
    return evaluated(read(Job.model_validate(job_of(case)), ("network.settings=library",)), decision_of(case))


def per_step(plan: Plan, axis: str, op: str) -> float:
    return sum(one.per_step for one in plan.collectives if (one.axis, one.op) == (axis, op))


@pytest.mark.parametrize(
    ("model", "degrees", "policies", "axis", "op", "times"),
    [
        (
            "mixtral-8x22b",
            "tp2 pp2 dp8 ep8",
            ("none", "moe_act+layernorm", "moe", "full"),
            "ep",
            "all_to_all",
            (4, 4, 6, 6),
        ),
        ("llama3.1-8b", "cp4 dp8", ("none", "core_attn", "mlp", "full"), "cp", "all_gather", (2, 3, 2, 3)),
        ("llama3.1-8b", "tp4 dp8", ("none", "core_attn", "mlp", "full"), "tp", "all_gather", (4, 4, 5, 6)),
    ],
)
def test_a_module_repeats_its_own_collectives_and_its_own_work(
    model: str, degrees: str, policies: tuple[str, ...], axis: str, op: str, times: tuple[int, ...]
) -> None:
    """A recomputed module repeats its own collectives and its own work.

    Collectives are counted per layer and micro-batch, next to those of the ends. The simulation of the plan agrees.
    """
    plans = [estimated(policy, degrees, workload=model) for policy in policies]
    layers = 56 / 2 if model.startswith("mixtral") else 32
    micro_batches = 128 / 8
    whole = per_step(plans[0], axis, op) - layers * micro_batches * times[0]
    shared = {"ep": 0, "cp": whole, "tp": 2 * micro_batches}[
        axis
    ]  # cp gathers parameters once a step, tp the head's logits
    assert whole == shared
    assert [per_step(plan, axis, op) - whole for plan in plans] == [layers * micro_batches * n for n in times]
    seconds, held = ([f(plan) for plan in plans] for f in (step_of, held_by))
    assert seconds == sorted(seconds)
    assert held == sorted(held, reverse=True)
    for plan in plans[1:3]:
        assert abs(sa.simulate(plan).difference) < 0.05


def step_of(plan: Plan) -> float:
    return plan.cost.step_s


def held_by(plan: Plan) -> float:
    return max(stage.activations_bytes for stage in plan.memory)


def test_a_job_may_allow_every_set_of_modules_and_none_that_the_model_lacks() -> None:
    assert problem_of(plain_job(1, recompute=["none", "modules"])).job.recompute == (
        "none", "core_attn", "mlp", "core_attn+mlp",
    )  # fmt: skip
    every = problem_of(plain_job(1, workload=moe(), recompute="modules")).job.recompute
    assert {word for policy in every for word in policy.split("+")} == set(MODULES) - {
        "mla_up_proj",
        "mlp",
        "shared_experts",
    }
    with pytest.raises(sa.InputError, match=r"recompute moe_act: in 'toy' moe_act frees nothing .* core_attn, mlp"):
        problem_of(plain_job(1, recompute=["moe_act"]))
