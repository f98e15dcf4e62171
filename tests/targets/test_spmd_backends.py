"""SelectiveAC under torchtitan's backends: the collectives that a backward pass repeats.

They are the same in plan, search, simulation, verification and files.
"""

from __future__ import annotations

from functools import cache

import pytest

import scaleacross as sa
from cases import each
from decisions import DENSE, QWEN, Case, decision_of, job_of
from instances import random_job
from oracles.exhaustive import exhaustive
from scaleacross.api.evaluation import evaluated
from scaleacross.api.problems import problem_of as read
from scaleacross.emitters.torchtitan import config_module
from scaleacross.solvers.joint import search
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.spec.recomputation import RECOMPUTES
from scaleacross.workloads.problem import problem_of

TYPED = "kept.spmd_backend=spmd_types"
HEADS = 2
"""Gathers over tp besides the layers': those of the head, in either pass."""


@cache
def estimated(job: str, degrees: str, policy: str, *overrides: str, shard: str = "parameters") -> Plan:
    case = Case({"dense": DENSE, "qwen": QWEN}[job], degrees, "1F1B", policy, shard, exchange="gather")
    stated = ("target=torchtitan", "network.settings=library", "global_batch_sequences=128", *overrides)
    return evaluated(read(Job.model_validate(job_of(case)), stated), decision_of(case))


def per_step(plan: Plan, axis: str, op: str) -> float:
    return sum(one.per_step for one in plan.collectives if (one.axis, one.op) == (axis, op))


@pytest.mark.parametrize(
    ("job", "degrees", "layers", "op", "ends", "times"),
    [
        ("dense", "tp4 dp8", 32, ("tp", "all_gather"), HEADS, (4, 6, 5, 6, 5)),
        ("dense", "tp4 dp8", 32, ("tp", "reduce_scatter"), HEADS, (4, 6, 5, 6, 5)),
        ("qwen", "dp64 ep32", 94, ("ep", "all_to_all"), 0, (4, 6, 4, 6, 4)),
        ("qwen", "tp4 dp64 ep16 lanes4", 94, ("ep", "all_to_all"), 0, (4, 6, 4, 6, 4)),
        ("qwen", "tp4 dp64 ep16 lanes4", 94, ("tp", "all_gather"), HEADS, (2, 3, 2.5, 3, 2.5)),
    ],
)
def test_spmd_types_repeats_every_collective_of_tp_and_experts(
    job: str, degrees: str, layers: int, op: tuple[str, str], ends: int, times: tuple[float, ...]
) -> None:
    """spmd_types repeats every collective of tp and experts.

    Cases per layer and micro-batch are none, full, and three kinds of selective. These use functional collectives,
    others, and others in compiled layers. A gather alone counts as half a pair of gather and scatter
    (tests/golden/torch_counts.jsonl has both).
    """
    plans = [
        estimated(job, degrees, "none"),
        estimated(job, degrees, "full"),
        estimated(job, degrees, "selective"),
        estimated(job, degrees, "selective", TYPED),
        estimated(job, degrees, "selective", TYPED, "kept.compiled=[model]"),
    ]
    micro_batches = 128 / int(degrees.partition("dp")[2].split()[0])
    assert [per_step(plan, *op) / micro_batches - ends for plan in plans] == [layers * n for n in times]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("job", "degrees"),
    [("dense", "tp4 pp2 dp4"), ("dense", "tp2 pp4 dp4"), ("qwen", "tp4 pp2 dp32 ep8 lanes4")],
)
def test_the_simulation_sends_again_what_the_estimate_has(job: str, degrees: str) -> None:
    """The simulation repeats the collectives that the estimate counts.

    Both take longer, and fewer activations are kept. ``verify`` recomputes the figures.
    """
    kept, again = (estimated(job, degrees, "selective", *of, shard="optimizer") for of in ((), (TYPED,)))
    simulations = [sa.simulate(plan) for plan in (kept, again)]
    for plan, step in zip((kept, again), simulations, strict=True):
        sa.verify(plan)
        assert abs(step.difference) < 0.05, (plan.cost.step_s, step.step_s)
    more = again.cost.step_s - kept.cost.step_s
    assert more > 0
    assert simulations[1].step_s - simulations[0].step_s == pytest.approx(more, rel=0.25)
    assert max(s.activations_bytes for s in again.memory) < max(s.activations_bytes for s in kept.memory)


@each("seed", (), (23, 58), heavy=(30, 44))
def test_search_finds_the_optimum_of_brute_force(seed: int) -> None:
    """The search finds the optimum of brute force: SelectiveAC over tp, and in seed 30 over experts too."""
    data = random_job(seed).model_dump(mode="json", exclude_none=True)
    data |= {"recompute": ["none", "selective"], "kept": {"by": "pytorch", "spmd_backend": "spmd_types"}}
    problem = problem_of(Job.model_validate(data))
    oracle, found = exhaustive(problem), search(problem, time_limit_s=600, gap_tolerance=0.0)
    assert found.bound_violation_s <= 1e-12
    assert found.best is not None
    assert found.best.candidates.recompute[0] == RECOMPUTES.index("selective")
    assert found.best.step_s == pytest.approx(oracle.step_s, rel=1e-9)
    assert found.bound_s <= found.best.step_s


def test_the_backend_that_was_estimated_is_written() -> None:
    for overrides, backend in (((), "partial_dtensor"), ((TYPED,), "spmd_types")):
        assert f"spmd_backend='{backend}'," in config_module(estimated("dense", "tp4 dp8", "selective", *overrides))


def test_a_backend_of_torchtitan_says_nothing_of_megatron() -> None:
    with pytest.raises(sa.InputError, match=r"has kept\.spmd_backend spmd_types, which is PyTorch's alone"):
        read(Job.model_validate(job_of(Case(DENSE, "tp4 dp8"))), ("target=megatron", TYPED))
