"""Finite differences of the step time: their laws, and the bottlenecks that they name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import scaleacross as sa
from cases import each
from instances import instance, mixed_instance, plain_job, plain_topology, plain_trunk
from scaleacross.cost_models import sensitivity
from scaleacross.cost_models.sensitivity import Estimator, figures, sensitivities
from scaleacross.solvers.joint import search
from scaleacross.solvers.search_state import decision_of
from scaleacross.spec.explanation import Phase, Sensitivity
from scaleacross.workloads.problem import Problem, problem_of


def repricer(problem: Problem) -> Estimator:
    best = search(problem, time_limit_s=60).best
    assert best is not None
    return Estimator.of(problem.job, problem.profile, problem.topology, decision_of(best))


PINNED: dict[str, Any] = {"schedules": "1F1B", "recompute": "none", "micro_batch_sequences": 1}


def explained(**changes: Any) -> tuple[dict[str, Sensitivity], dict[str, Phase]]:
    """Figures and phases of a plain job.

    Choices that would mask the tested effect are fixed.
    """
    rows, phases = sensitivities(repricer(problem_of(plain_job(2, 2, num_accelerators=16, **PINNED | changes))))
    return {row.figure: row for row in rows}, {phase.name: phase for phase in phases}


@each("seed", (10,), (4, 6, 7, 13, 41, 50, 65), size=3)
def test_faster_machines_are_never_slower(seed: int) -> None:
    rows, _ = sensitivities(repricer(instance(seed)))
    for row in rows:
        sign = 1 if row.figure.endswith(("latency", "time")) else -1
        if row.more_s is not None and row.less_s is not None:
            assert sign * row.more_s >= -1e-12, row.figure
            assert sign * row.less_s <= 1e-12, row.figure


@pytest.mark.parametrize(
    "problem",
    [
        *(pytest.param(instance(seed), id=f"{seed}") for seed in (4, 10, 41)),
        pytest.param(instance(13), id="13", marks=pytest.mark.heavy),
        *(pytest.param(instance(seed), id=f"{seed}", marks=pytest.mark.slow) for seed in (6, 7, 50, 65)),
        pytest.param(mixed_instance(9), id="two types, 9", marks=pytest.mark.heavy),  # waits for tp, as 54 does
        pytest.param(mixed_instance(54), id="two types, 54", marks=pytest.mark.slow),
    ],
)
def test_all_figures_together_scale_the_step(problem: Problem) -> None:
    """If everything is twice as fast the step takes half the time.

    The figures are complete, and each is changed in one place only.
    """
    pricer = repricer(problem)

    def all_faster(levels: Any, factor: float) -> Any:
        for figure in figures(pricer.levels):
            slower = figure.name.endswith(("latency", "time"))
            levels = figure.change(levels, 1 / factor if slower else factor)
        return levels

    whole = pricer.cost().cost.step_s
    assert pricer.cost(all_faster, 2.0).cost.step_s == pytest.approx(whole / 2, rel=1e-9)
    assert pricer.cost(all_faster, 1.0).cost.step_s == whole


def test_elasticities_add_up_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elasticities add up to one, by Euler's theorem for a function of degree −1 in rates and 1 in times.

    The curvature of 1/f is allowed for. The test uses ±1 %, because ±10 % can change which ring latencies are exposed.
    Such a change is no curvature.
    """
    change = 0.01
    monkeypatch.setattr(sensitivity, "CHANGE", change)
    rows, _ = sensitivities(repricer(problem_of(plain_job(2, degrees={"tp": 2, "cp": 1, "pp": 2}, **PINNED))))
    total = sum(abs(row.elasticity) for row in rows if row.elasticity is not None)
    curvature = (1 / (1 - change) - 1 / (1 + change)) / (2 * change)
    assert 0.97 <= total <= curvature + 1e-6


@pytest.mark.heavy
def test_the_original_is_untouched_and_the_step_is_the_plans() -> None:
    plan = sa.plan(plain_job(2, 2), alternatives=False)
    problem = problem_of(plan.job)
    pricer = Estimator.of(problem.job, problem.profile, problem.topology, plan.decision)
    before = [array.copy() for array in (pricer.levels.bandwidth, pricer.levels.capacity, pricer.levels.latency)]
    sensitivities(pricer)
    after = (pricer.levels.bandwidth, pricer.levels.capacity, pricer.levels.latency)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert pricer.cost().cost == plan.estimated
    with pytest.raises(ValueError, match="no placement"):
        Estimator.of(
            problem.job, problem.profile, problem.topology, plan.decision.model_copy(update={"placement": None})
        )


def crossing(gbyte_per_s: float, latency_us: float) -> dict[str, Any]:
    topology = plain_topology(2, 2)
    topology["trunks"] = [plain_trunk("b0", "b1", gbyte_per_s, latency_us)]
    return {"topology": topology}


def test_a_thin_trunk_binds_what_crosses_it() -> None:
    pins = {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 16, "dp_replicate": 1}
    thin, phases = explained(degrees=pins, **crossing(0.05, 1.0))
    assert phases["dp"].resource == "trunk"
    assert thin["campus bandwidth"].elasticity == min(row.elasticity for row in thin.values() if row.elasticity)
    wide, phases = explained(degrees=pins, **crossing(500.0, 1.0))
    assert phases["dp"].resource in ("NIC", "building uplink", "scale-up")
    assert abs(wide["campus bandwidth"].elasticity or 0) < abs(thin["campus bandwidth"].elasticity or 0)


def test_a_distant_link_binds_by_its_latency() -> None:
    pins = {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 16, "dp_replicate": 1}
    _, phases = explained(degrees=pins, **crossing(500.0, 1e6))
    assert phases["dp"].resource == "latency of campus"


def test_computation_waits_for_flop_or_memory_and_the_host_for_nothing_else() -> None:
    _, phases = explained(degrees={"tp": 1, "cp": 1, "dp_replicate": 1})
    assert phases["compute"].resource in ("compute", "HBM")
    assert sum(phases["compute"].shares.values()) == pytest.approx(1.0, abs=0.03)


def test_memory_says_when_the_decision_would_not_fit() -> None:
    plan = sa.plan(plain_job(2, degrees={"tp": 1, "pp": 1, "cp": 1}, num_accelerators=8, **PINNED), alternatives=False)
    used = max(stage.total_bytes for stage in plan.memory)
    job = plan.job.model_dump(mode="json")
    for building in job["topology"]["regions"][0]["buildings"]:
        building["accelerator"] |= {"memory_bytes": used * 1.05}
    problem = problem_of(sa.Job.model_validate(job))
    rows, phases = sensitivities(Estimator.of(problem.job, problem.profile, problem.topology, plan.decision))
    assert (rows[-1].figure, rows[-1].less_s, rows[-1].elasticity) == ("memory capacity", None, None)
    assert "does not fit into" in rows[-1].note
    assert phases[-1].resource == "memory"
