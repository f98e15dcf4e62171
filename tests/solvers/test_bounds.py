"""The stated bounds agree with hand arithmetic, and no plan of any instance is below them."""

from __future__ import annotations

from typing import Any

import pytest

from cases import each
from instances import instance, mixed_instance, plain_job, plain_topology, plain_trunk
from oracles.brute_force import fastest
from oracles.exhaustive import MAX_ACCELERATORS, exhaustive
from scaleacross.errors import InputError
from scaleacross.solvers.bounds import compute_bound, cut_bound, search_bounds
from scaleacross.solvers.fixed_placement import FixedPlacement
from scaleacross.solvers.joint import search
from scaleacross.spec.plan import Decision
from scaleacross.workloads.problem import Problem, problem_of

GRADIENTS = (4 + 2) / 2 * (4 * 256 * 256 + 3 * 256 * 768 + 2 * 256)
"""Bytes of a block: 4 attention products of 256 × 256, 3 MLP products of 256 × 768, 2 norms.

Activations would be 33 MB. Sharded states send half of 4 bytes of a gradient and 2 of a parameter in each direction.
"""


def test_compute_bound_by_hand() -> None:
    problem = problem_of(plain_job(2, 1))
    # 16 sequences of 4,096 tokens; 12 accelerators at peak, with the plain building's better efficiency 0.7
    peak = problem.topology.buildings[0].accelerator.peak_flop_per_s["bf16"]
    flop = problem.profile.model_flop_per_token(4096) * 16 * 4096
    assert compute_bound(problem).step_s == pytest.approx(flop / (12 * peak * 0.7))


def test_cut_bound_by_hand() -> None:
    """A narrow inter-building link determines the bound, up to the time of one building alone.

    Gradients of the smallest block take 1.5 times, then 9 times the computation on this link.
    """
    problem = problem_of(plain_job(1, 1))
    computing = compute_bound(problem).step_s
    assert GRADIENTS < 2 * 256 * 16 * 4096
    for times, expected in ((1.5, 1.5), (9.0, 2.0)):  # one building alone computes twice as long
        topology = plain_topology(1, 1)
        topology["trunks"] = [plain_trunk("b0", "b1", gbyte_per_s=GRADIENTS / (times * computing) / 1e9)]
        bound = cut_bound(problem_of(plain_job(topology=topology)))
        assert bound is not None
        assert bound.step_s == pytest.approx(expected * computing)
    assert cut_bound(problem_of(plain_job(2))) is None


def test_a_building_may_use_all_its_trunks_at_once() -> None:
    """The middle building has two links, and its bound counts the sum of their rates.

    Over both, gradients take twice the computation.
    """
    computing = compute_bound(problem_of(plain_job(1, 1, 1))).step_s
    topology = plain_topology(1, 1, 1)
    rate = GRADIENTS / (2 * 2.0 * computing) / 1e9
    topology["trunks"] = [plain_trunk(*pair, gbyte_per_s=rate) for pair in (("b0", "b1"), ("b1", "b2"))]
    bound = cut_bound(problem_of(plain_job(topology=topology)))
    assert bound is not None
    assert bound.step_s == pytest.approx(2.0 * computing)


def test_a_wide_cut_does_not_bind() -> None:
    problem = problem_of(plain_job(1, 1))
    bound = cut_bound(problem)
    assert bound is not None
    assert bound.step_s == pytest.approx(compute_bound(problem).step_s)


def test_accelerators_that_a_job_may_not_use_compute_nothing() -> None:
    every, some = (compute_bound(problem_of(plain_job(2, 2, num_accelerators=number))) for number in (None, 8))
    there = problem_of(plain_job(2, 2)).topology.num_accelerators
    assert some.step_s == pytest.approx(every.step_s * there / 8)
    ranged = compute_bound(problem_of(plain_job(2, 2, num_accelerators={"min": 4, "max": 8})))
    assert ranged.step_s == some.step_s


def test_a_gap_of_all_ends_with_the_first_plan() -> None:
    found = search(problem_of(plain_job(2, 2)), time_limit_s=600, gap_tolerance=1.0)
    assert found.best is not None and not found.out_of_time


@each("seed", (10, 26), (4, 6, 13, 14, 23, 48, 50, 54, 61, 73), size=2)
def test_no_plan_is_below_any_bound(seed: int) -> None:
    problem, best_s = instance(seed), fastest(seed).step_s
    state = search(problem, time_limit_s=600, gap_tolerance=0.0)
    bounds = {bound.name: bound for bound in search_bounds(state, float("inf"))}
    assert set(bounds) - {"any_layers"} == {"search", "compute", "pipeline", "critical_path", "memory_latency"} | (
        {"cut"} if len(problem.topology.buildings) > 1 else set()
    )
    for bound in bounds.values():
        assert 0 < bound.step_s <= best_s * (1 + 1e-9), bound
        assert bound.why
    assert bounds["search"].step_s == pytest.approx(best_s, rel=1e-9)
    assert bounds["compute"].step_s <= bounds["pipeline"].step_s * (1 + 1e-9)
    assert ("any_layers" in bounds) == (problem.job.stages != "equal" and not state.left_out)


@each("seed", (10,), (4, 6, 13, 50, 54))
def test_stopping_early_leaves_a_true_bound(seed: int) -> None:
    problem, best_s = instance(seed), fastest(seed).step_s
    for gap_tolerance in (0.05, 0.3):
        state = search(problem, time_limit_s=600, gap_tolerance=gap_tolerance)
        assert state.best is not None
        assert state.bound_s <= best_s * (1 + 1e-12)
        assert best_s <= state.best.step_s * (1 + 1e-9)
        assert state.best.step_s * (1 - gap_tolerance) <= state.bound_s * (1 + 1e-9)


def test_no_time_leaves_a_true_bound() -> None:
    problem, best_s = instance(10), fastest(10).step_s
    state = search(problem, time_limit_s=0.0, gap_tolerance=0.0)
    assert state.out_of_time
    assert state.bound_s <= best_s * (1 + 1e-12)


@pytest.mark.parametrize(
    "problem", [instance(13), pytest.param(mixed_instance(9), marks=pytest.mark.heavy)], ids=["one type", "two types"]
)
def test_the_clock_interrupts_the_placing_of_one_candidate(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit stops the placement of a candidate.

    Each exact step time takes one second and the limit is 2.5 s, so three are computed. What remains open stays in the
    bound.
    """
    best = search(problem, time_limit_s=600, gap_tolerance=0.0)
    assert best.best is not None
    estimated, exact = [], FixedPlacement.step_s

    def step_s(placed: FixedPlacement, decision: Decision, *of: Any) -> float:
        estimated.append(decision)
        return exact(placed, decision, *of)

    monkeypatch.setattr(FixedPlacement, "step_s", step_s)
    state = search(problem, time_limit_s=2.5, gap_tolerance=0.0, clock=lambda: float(len(estimated)))
    assert len(estimated) == 3
    assert state.best is not None
    assert state.bound_s <= best.best.step_s * (1 + 1e-12)


def test_the_oracle_refuses_large_problems() -> None:
    assert MAX_ACCELERATORS == 64
    with pytest.raises(InputError, match="68 accelerators are too many to try every plan: at most 64"):
        exhaustive(problem_of(plain_job(17)))
