"""The Pareto front of two objectives against all plans of a small problem, and the command around it."""

from __future__ import annotations

import csv
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import scaleacross as sa
from cases import each
from instances import accelerator, plain_job, plain_topology
from oracles.exhaustive import exhaustive
from priced import MONEY, POWER, spent, two
from scaleacross.api import frontier
from scaleacross.cli import app
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.report.page import html
from scaleacross.report.pareto import pareto_rows
from scaleacross.spec.job import ObjectiveName
from scaleacross.spec.plan import Decision, Plan
from scaleacross.workloads.problem import Problem, problem_of

SMALL = {"recompute": ["none"], "schedules": ["1F1B"], "num_chunks": [1], "micro_batch_sequences": [1]}


@each("objective", (), (MONEY, POWER))
def test_every_point_is_the_best_within_its_limit(objective: ObjectiveName) -> None:
    job = two("step_time", **SMALL)
    problem = problem_of(job)
    plans: list[tuple[float, float]] = []

    def note(decision: Decision, cost: PlanCost) -> float:
        plans.append((cost.cost.step_s, spent(problem, objective, decision, cost)))
        return cost.cost.step_s

    exhaustive(problem, note)
    tokens = job.tokens_per_step * (1e6 if objective == POWER else 1.0)
    front = sa.pareto(job, ("step_time", objective), points=6)
    assert 3 <= len(front.points) <= 6
    assert not front.notes
    for point in front.points:
        step_s, value = point.values
        assert not any(t < step_s * (1 - 1e-9) and j <= tokens / value * (1 + 1e-9) for t, j in plans)
        assert point.plan.report.status == "optimal"
        sa.verify(point.plan)
        for name, limit in point.plan.report.limits.items():
            assert step_s <= limit * (1 + 1e-6) if name == "step_time" else value >= limit * (1 - 1e-6)
    assert front.points[0].values[0] == pytest.approx(min(t for t, _ in plans))
    assert front.points[-1].values[1] == pytest.approx(tokens / min(j for _, j in plans))
    steps, values = zip(*(point.values for point in front.points), strict=True)
    assert list(steps) == sorted(steps)
    assert list(values) == sorted(values)


def test_one_plan_that_is_best_in_both_is_a_front_of_one() -> None:
    ones = {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 1, "dp_replicate": 1, "ep": 1}
    assert len(sa.pareto(two("step_time", degrees=ones), ("step_time", MONEY), points=3).points) == 1


@pytest.mark.parametrize("objectives", [("step_time",), ("step_time", "step_time"), ("step_time", "joy")])
def test_two_different_objectives_are_needed(objectives: tuple[str, ...]) -> None:
    with pytest.raises(sa.InputError, match="two different objectives are needed"):
        sa.pareto(two("step_time"), objectives)
    with pytest.raises(sa.InputError, match="2 to 1000"):
        sa.pareto(two("step_time"), ("step_time", MONEY), points=1)


@pytest.mark.heavy
def test_command_writes_table_csv_json_and_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "can_draw", lambda: False)
    path = tmp_path / "job.json"
    path.write_text(two("step_time", **SMALL).model_dump_json(exclude_none=True))
    out = tmp_path / "front"
    made = CliRunner().invoke(app, ["pareto", str(path), "--points", "3", "-o", str(out), "--json"])
    assert made.exit_code == 0, made.output
    data = json.loads(made.stdout)
    assert data["objectives"] == ["step_time", MONEY]
    with (out / "pareto.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["step_time"]) for row in rows] == [point["step_time"] for point in data["points"]]
    for index in range(len(rows)):
        sa.verify(sa.load_plan(out / f"point-{index}" / "plan.json"))
    shown = CliRunner().invoke(app, ["pareto", str(path), "--points", "2"])
    assert MONEY in shown.stdout
    assert CliRunner().invoke(app, ["pareto", str(path), "--objectives", "joy,step_time"]).exit_code == 2


@pytest.mark.heavy
def test_a_front_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted front continues where it stopped.

    Finished searches do not run again, and the front is the same.
    """
    monkeypatch.setattr(html, "can_draw", lambda: False)
    path, out = tmp_path / "job.json", tmp_path / "front"
    path.write_text(two("step_time", **SMALL).model_dump_json(exclude_none=True))
    arguments = ["pareto", str(path), "--points", "3", "-o", str(out), "--json"]
    real, run = frontier.plan, list[str]()

    def stopped(problem: Problem, **options: object) -> Plan:
        if len(run) == 2:
            raise KeyboardInterrupt
        run.append(problem.job.objective)
        return real(problem, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(frontier, "plan", stopped)
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 130
    assert f"finished points are kept in {out}; the same command continues" in first.stderr
    assert len((out / "searches.jsonl").read_text().splitlines()) == 2
    assert not (out / "pareto.csv").exists()

    def counted(problem: Problem, **options: object) -> Plan:
        run.append(problem.job.objective)
        return real(problem, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(frontier, "plan", counted)
    second = CliRunner().invoke(app, arguments)
    assert second.exit_code == 0, second.output
    whole = len(run)
    assert 2 < whole <= 5
    assert (
        json.loads(second.stdout)["points"]
        == json.loads(CliRunner().invoke(app, [*arguments[:-3], "--json"]).stdout)["points"]
    )
    run.clear()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert run == []


def test_kept_searches_are_told_apart_by_all_that_decides_them() -> None:
    problem = problem_of(two("step_time", **SMALL))
    other = problem_of(two("step_time", **SMALL, global_batch_sequences=48))

    def key(
        problem: Problem = problem,
        limits: float | None = None,
        how: tuple[float, int, float] = (9.0, 0, 0.0),
        clock: Callable[[], float] = time.perf_counter,
        work: int | None = None,
    ) -> str:
        limit, *rest = how
        front = frontier._Front(problem, ("step_time", MONEY), (limit, clock, work), *rest, None, None)
        return front._key("step_time", {} if limits is None else {MONEY: limits})

    keys = [key(), key(other), key(limits=1.0), key(limits=2.0)]
    keys += [key(how=how) for how in ((8.0, 0, 0.0), (9.0, 1, 0.0), (9.0, 0, 0.1))]
    keys += [key(clock=time.process_time), key(work=9)]
    assert len(set(keys)) == len(keys) and key() == keys[0]


@pytest.mark.slow
def test_a_front_by_work_is_the_same_again() -> None:
    job = two("step_time", **SMALL)
    first, second = (sa.pareto(job, ("step_time", MONEY), points=3, work_limit=20) for _ in range(2))
    assert [point.values for point in first.points] == [point.values for point in second.points]
    assert len(first.points) >= 2


def test_a_short_search_within_limits_has_the_bounds_that_need_no_search() -> None:
    topology = plain_topology(2, 2) | {"currency": "EUR"}
    for number, building in enumerate(topology["regions"][0]["buildings"]):
        building |= {"accelerator": accelerator(random.Random(number), f"type-{number}", 1000.0)}
        building |= {"accelerator_price_per_hour": 1.0}
    topology["trunks"][0]["egress_price_per_gb"] = 0.01
    plan = sa.plan(plain_job(topology=topology), limits={MONEY: 1e-9}, work_limit=1, simulated=False)
    least_s = max(bound.step_s for bound in plan.report.bounds)
    assert plan.report.status == "time_limit"
    assert plan.report.gap <= 1 - least_s / plan.report.objective_s


@pytest.mark.heavy
def test_points_say_what_tokens_cost_used_and_as_owned() -> None:
    front = sa.pareto(two("step_time", **SMALL), ("step_time", MONEY), points=2, work_limit=20)
    for row, point in zip(pareto_rows(front), front.points, strict=True):
        assert row["currency"] == "EUR"
        assert row["cost_per_million_tokens"] * point.values[1] == pytest.approx(1e6)
        assert row["owned_cost_per_million_tokens"] >= row["cost_per_million_tokens"] * (1 - 1e-9)
        assert row["kwh_per_million_tokens"] > 0
