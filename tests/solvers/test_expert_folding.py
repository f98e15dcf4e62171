"""Folding experts onto the lanes of tensor and context parallelism is a decision of the search.

It equals brute force, is bounded and agrees with the simulation.
"""

from __future__ import annotations

from typing import Any

import pytest

import scaleacross as sa
from cases import each
from instances import mixed_job, moe, plain_job, random_job
from oracles.brute_force import equals_brute_force
from scaleacross.errors import VerificationError
from scaleacross.solvers.joint import search
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import EXPERT_FOLDINGS, Degrees
from scaleacross.spec.placement import axis_orders
from scaleacross.spec.plan import Decision
from scaleacross.verification import verify
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
    """The job with eight experts on lanes of tp, cp or both, with either folding and one schedule and policy."""
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


@pytest.mark.heavy
@each("seed", (41,), (3, 4, 7, 10, 15), size=1)
def test_the_search_equals_brute_force(seed: int) -> None:
    equals_brute_force(problem_of(with_folding(random_job(seed), seed)))


@each("seed", (), (2, 6, 9), size=1)
def test_so_does_that_of_two_types(seed: int) -> None:
    equals_brute_force(problem_of(with_folding(mixed_job(seed), seed)))


@pytest.mark.heavy
@pytest.mark.parametrize(("seed", "lanes"), [pytest.param(14, 4, marks=pytest.mark.slow), (3, 2)])
def test_folding_is_the_best_somewhere(seed: int, lanes: int) -> None:
    """Each folding is the best in some job, and the plan gets slower if the job forbids it."""
    job = with_folding(random_job(seed), seed)
    found = search(problem_of(job), time_limit_s=600, gap_tolerance=0.0)
    assert found.best is not None and found.best.candidates.decision(0).degrees.expert_lanes == lanes
    forbidden = problem_of(job.model_copy(update={"expert_folding": ("none",)}))
    without = search(forbidden, time_limit_s=600, gap_tolerance=0.0)
    assert without.best is not None and without.best.step_s > found.best.step_s


def test_lanes_divide_the_experts_and_dp_shard_lies_behind_them() -> None:
    job = plain_job(4, **PINNED | {"degrees": {"tp": [1, 2, 4], "cp": [1, 2]}})
    space = SearchSpace(job, problem_of(job).profile, 16, 4)
    for partials in space.partials(Refusals()):
        rows = space.expand(partials, Refusals())
        assert len(rows) == space.num_candidates(partials).sum()
        folded = rows.expert_lanes > 1
        assert (rows.expert_lanes[folded] == (rows.tp * rows.cp)[folded]).all()
        assert (8 % (rows.ep * rows.expert_lanes) == 0).all() and (rows.dp_shard[folded] > 1).all()
        assert folded.any() or rows.pp[0] > 2
    orders = axis_orders(("tp", "cp", "pp", "dp_shard"), folded=True)
    assert (
        len(orders) == 4 and ("pp", "cp", "tp", "dp_shard") in orders and ("tp", "pp", "dp_shard", "cp") not in orders
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        *(pytest.param(one, marks=pytest.mark.heavy) for one in ({"shard": "parameters"}, {"pp": 2})),
        {"cp": 2, "tp": 2},
    ],
    ids=str,
)
def test_the_simulation_agrees(changes: dict[str, Any]) -> None:
    degrees = PINNED["degrees"] | {name: value for name, value in changes.items() if name != "shard"}
    shard = {"shard": changes.get("shard", "optimizer")}
    job = plain_job(4, **PINNED | {"degrees": degrees, "expert_folding": "tp_cp", **shard})
    plan = sa.plan(job, gap_tolerance=0.0, alternatives=False, simulated=False)
    assert plan.degrees.expert_ranks == 8 and plan.cost.exposed_s["ep"] > 0
    assert sa.simulate(plan).step_s == pytest.approx(plan.estimated.step_s, rel=0.05)
    verify(plan)


def test_memory_is_the_same_on_fewer_ranks_of_dp_shard() -> None:
    """Memory of experts depends on the number of ranks that share them.

    Experts over tp 4 · ep 2 take as many bytes as experts over ep 2 divided by tp 4. With cp too they take half.
    """
    job = plain_job(4, **PINNED | {"degrees": {}})
    held = {}
    for name, degrees in {
        "divided": Degrees(tp=4, dp_shard=2, ep=2),
        "folded": Degrees(tp=4, dp_shard=2, ep=2, expert_lanes=4),
        "over cp": Degrees(tp=2, cp=2, dp_shard=2, ep=2, expert_lanes=4),
        "cp copies": Degrees(tp=2, cp=2, dp_shard=2, ep=2),
    }.items():
        said = {"degrees": degrees, "pipeline": {"schedule": "1F1B"}, "recompute": "none", "shard": "optimizer"}
        plan = sa.evaluate((job, Decision.model_validate(said)))
        held[name] = plan.memory[0].parameters_bytes
    assert held["divided"] == held["folded"]
    experts = 8 * 8 * 3 * 256 * 128 * 2.0  # layers, experts, products, bytes
    assert held["cp copies"] - held["over cp"] == pytest.approx(experts / 4 - experts / 8)


def test_verification_refuses_what_does_not_divide_or_lies_apart() -> None:
    plan = sa.plan(plain_job(4, **PINNED | {"expert_folding": "tp_cp"}), gap_tolerance=0.0, alternatives=False)
    job = plan.job.model_copy(update={"expert_folding": ("none",)})
    with pytest.raises(VerificationError, match="the job allows expert_folding none; the decision has tp_cp"):
        verify(plan.model_copy(update={"job": job}))
    order = ("dp_shard", "tp", "cp", "dp_replicate", "pp")
    apart = plan.decision.model_copy(update={"placement": plan.placement.model_copy(update={"axis_order": order})})
    with pytest.raises(VerificationError, match="ask for dp_shard right behind them; the order is dp_shard tp"):
        verify(plan.model_copy(update={"decision": apart}))
    with pytest.raises(ValueError, match="must be 1 or tp · cp = 4"):
        Degrees(tp=4, dp_shard=2, expert_lanes=2)


def test_a_quick_search_says_that_it_has_not_tried_it() -> None:
    pinned = {name: value for name, value in PINNED.items() if name != "expert_folding"}
    plan = sa.plan(plain_job(2, **pinned), gap_tolerance=0.0, alternatives=False)
    assert plan.degrees.expert_lanes == 1 and "expert_folding tp_cp" in " ".join(plan.report.notes)
    wide = sa.plan(plain_job(2, **pinned, space="full"), gap_tolerance=0.0, alternatives=False)
    assert wide.estimated.step_s <= plan.estimated.step_s
