"""The runner-up of every decision equals brute force, and the command prints it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import scaleacross as sa
from cases import each
from instances import instance, plain_job
from oracles.exhaustive import candidates, exhaustive, placements
from scaleacross.cli import app
from scaleacross.report.explanation import _runner_up, explanation_summary
from scaleacross.solvers import runner_up
from scaleacross.solvers.every_placement import EveryPlacement
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.solvers.place_parallelism import PlacementDecision
from scaleacross.solvers.pools import pools
from scaleacross.solvers.runner_up import SEARCH_GAP, without
from scaleacross.spec.explanation import Explanation, RunnerUp
from scaleacross.workloads.problem import Problem


@pytest.mark.heavy
@each("seed", (10,), (41, 65), size=1)
def test_runner_ups_are_those_of_brute_force(seed: int) -> None:
    problem = instance(seed)
    plan = sa.plan(problem.job, time_limit_s=900, alternatives=False)
    rows = {row.decision: row for row in sa.explain(plan, time_limit_s=900).runner_ups}
    tried = 0
    for one in without(problem, plan.decision):
        row = rows[one.decision]
        if one.job is None:
            assert row.status == "none"
            continue
        oracle = exhaustive(Problem(one.job, problem.workload, problem.topology, problem.profile))
        if oracle.decision is None:
            assert row.status == "none", one.decision
            continue
        tried += 1
        assert row.status == "proved"
        assert row.step_s is not None and row.bound_s is not None and row.alternative is not None
        assert oracle.step_s * (1 - 1e-9) <= row.step_s <= oracle.step_s * (1 + SEARCH_GAP + 1e-9), one.decision
        assert row.bound_s <= oracle.step_s * (1 + 1e-9)
        assert one.read(row.alternative) == row.runner_up != row.chosen == one.chosen
        assert row.difference_s == pytest.approx(row.step_s - plan.estimated.step_s, abs=1e-12)
        assert row.difference_s >= -1e-12
    assert tried >= 2


@each("seed", (10,), (6, 41), size=1)
def test_placements_are_compared_with_all_placements(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_up, "without", lambda *_: ())
    problem = instance(seed)
    plan = sa.plan(problem.job, alternatives=False)
    rows = {row.decision: row for row in sa.explain(plan, time_limit_s=900).runner_ups}
    chosen = plan.placement
    types = {problem.topology.building(share.building).accelerator.name for share in chosen.fill}
    [pool] = [pool for pool in pools(problem.topology) if {a.name for a in pool.accelerators} == types]
    assert any(c.degrees == plan.degrees for c in candidates(problem, pool))
    costs = [
        with_network(problem, plan.decision.model_copy(update={"placement": other})).cost
        for other in placements(pool, plan.degrees)
    ]
    allocations = [cost.cost.step_s for cost in costs if cost.placement.fill != chosen.fill]
    assert rows["allocation"].step_s == (pytest.approx(min(allocations), rel=1e-9) if allocations else None)
    for axis, level in chosen.spans.items():
        if axis != "ep":
            others = [cost.cost.step_s for cost in costs if cost.placement.spans.get(axis) != level]
            assert rows[f"outermost level of {axis}"].chosen == level
            assert rows[f"outermost level of {axis}"].step_s == (
                pytest.approx(min(others), rel=1e-9) if others else None
            )


@pytest.mark.parametrize("limit", [0, 2, 10**6])
def test_placements_are_tried_within_the_limit(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, tried = sa.plan(instance(10).job, alternatives=False), list[float]()
    every_of = EveryPlacement.every_of

    def counted(placer: EveryPlacement, decision: sa.Decision) -> Iterator[tuple[float, PlacementDecision]]:
        for step_s, placed in every_of(placer, decision):
            tried.append(step_s)
            yield step_s, placed

    monkeypatch.setattr(runner_up, "without", lambda *_: ())
    monkeypatch.setattr(EveryPlacement, "every_of", counted)
    limits: dict[str, Any] = {"work_limit": limit} if limit else {"time_limit_s": 0}
    rows = {row.decision: row for row in sa.explain(plan, **limits).runner_ups}
    found = [row for row in rows.values() if row.step_s is not None]
    if limit == 10**6:
        assert len(tried) > 3 and found and {row.status for row in found} == {"proved"}
        return
    assert len(tried) == (limit + 1 if limit else 0)  # the last one is past the limit and not used
    assert {row.status for row in rows.values()} <= {"best_found", "not_tried"}
    assert all(row.bound_s == 0 and row.probability_plan_faster is None for row in found)
    assert bool(found) == bool(limit)


def test_no_time_is_said_and_not_called_optimal() -> None:
    job = plain_job(1, schedules=["1F1B"], recompute=["none"])
    rows = sa.explain(sa.plan(job, alternatives=False), time_limit_s=0).runner_ups
    assert {row.status for row in rows if row.decision == "pp"} == {"not_tried"}


@pytest.mark.heavy
def test_a_pinned_choice_has_no_runner_up() -> None:
    rows = {
        row.decision: row
        for row in sa.explain(sa.plan(plain_job(1, degrees={"tp": 2}, schedules="1F1B"), alternatives=False)).runner_ups
    }
    assert (rows["tp"].status, rows["tp"].chosen) == ("none", "2")
    assert rows["ep"].status == "none"  # a dense model has no experts


@pytest.mark.heavy
def test_settings_that_somebody_brings_may_be_beaten() -> None:
    job = plain_job(
        2, num_accelerators=8, schedules=["1F1B", "GPipe"], recompute=["none", "full"], micro_batch_sequences=1
    )
    best = sa.plan(job, alternatives=False)
    slow = sa.Decision.model_validate(
        {
            "degrees": {"tp": 4, "dp_shard": 2},
            "pipeline": {"schedule": "1F1B", "num_chunks": 1, "micro_batch_sequences": 1},
            "recompute": "full",
            "shard": "optimizer",
        }
    )
    rows = {row.decision: row for row in sa.explain((job, slow)).runner_ups}
    differences = [row.difference_s for row in rows.values() if row.difference_s is not None]
    assert min(differences) < 0
    assert min(row.step_s for row in rows.values() if row.step_s) >= best.estimated.step_s * (1 - 1e-9)


def few_choices() -> sa.Job:
    degrees = {"tp": 1, "cp": 1, "pp": [1, 2]}
    return plain_job(2, 2, num_accelerators=16, degrees=degrees, schedules=["1F1B", "GPipe"], micro_batch_sequences=1)


@pytest.mark.heavy
def test_command_prints_tables_and_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(sa.plan(few_choices(), alternatives=False).model_dump_json())
    shown = CliRunner().invoke(app, ["explain", str(path), "--full"])
    assert shown.exit_code == 0, shown.output
    for words in ("Runner-up of every decision", "What binds every phase", "campus bandwidth", "memory capacity"):
        assert words in shown.stdout
    made: Any = CliRunner().invoke(app, ["explain", str(path), "--json", "--time-limit", "0"])
    explanation = Explanation.model_validate(json.loads(made.stdout))
    assert {row.decision for row in explanation.runner_ups} >= {"tp", "pp", "schedule", "axis order", "allocation"}
    assert CliRunner().invoke(app, ["explain", "no-such-plan.json"]).exit_code == 2


@pytest.mark.heavy
def test_the_network_is_explained_where_it_was_decided() -> None:
    plan = sa.plan(plain_job(2, 2), alternatives=False)
    assert plan.network is not None
    found = sa.explain(plan, time_limit_s=0)
    assert found.network == plan.network.terms
    assert all(term.time_s <= term.library_s * (1 + 1e-9) for term in found.network)
    bare = sa.evaluate((plan.job, plan.decision.model_copy(update={"network": None})))
    assert sa.explain(bare, time_limit_s=0).network == ()


@pytest.mark.heavy
def test_what_a_limit_left_out_names_the_limits_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(sa.plan(plain_job(1, 1, degrees={"tp": 2}), work_limit=5, simulated=False).model_dump_json())
    first, full = (
        " ".join(CliRunner().invoke(app, ["explain", str(path), "--work-limit", "1", *more]).output.split())
        for more in ((), ("--full",))
    )
    assert "not tried" in first and "--time-limit, --cpu-limit or --work-limit" in first
    assert "the limit came first" in full and "time limit" not in first + full


@pytest.mark.slow
def test_limits_in_work_give_the_same_runner_ups_again() -> None:
    plan = sa.plan(plain_job(2, 2), alternatives=False)
    first, second = (sa.explain(plan, work_limit=30).runner_ups for _ in range(2))
    assert first == second
    assert {row.status for row in sa.explain(plan, work_limit=1).runner_ups} & {"not_tried", "best_found"}


@pytest.mark.slow
def test_explain_takes_one_limit_of_work_or_cpu_seconds(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(sa.plan(plain_job(2, 2), alternatives=False).model_dump_json())
    for limit in (["--cpu-limit", "2"], ["--work-limit", "20"]):
        assert CliRunner().invoke(app, ["explain", str(path), "--quiet", *limit]).exit_code == 0
    both = CliRunner().invoke(app, ["explain", str(path), "--cpu-limit", "2", "--work-limit", "20"])
    assert both.exit_code == 2
    assert "give one of them" in both.stderr


def test_what_a_cut_search_found_is_a_limit_and_no_claim() -> None:
    """A search that stopped early states a limit of the loss, not the loss itself.

    The same runner-up is shown as proved and as cut short, with its bound.
    """
    found = {"decision": "tp", "chosen": "8", "runner_up": "4", "step_s": 7.0, "difference_s": 2.0, "reason": "longer"}
    figures = {"difference_fraction": 0.4, "alternative": None}
    proved = RunnerUp(**found, **figures, bound_s=7.0, status="proved", probability_plan_faster=0.9)
    cut = RunnerUp(**found, **figures, bound_s=4.5, status="best_found")
    assert _runner_up(proved) == "tp 4, not 8: +2.00 s (+40.0 %)"
    assert _runner_up(cut) == "tp 4, not 8: ≤ +2.00 s (≤ +40.0 %); search cut short, bound 4.50 s"
    assert "no bound yet" in _runner_up(cut.model_copy(update={"bound_s": 0.0}))
    kinds = Explanation(name="x", step_s=5.0, runner_ups=(cut, proved), phases=(), sensitivities=(), seconds=1.0)
    lines = [text for label, text in explanation_summary(kinds).facts if "not 8" in text]
    assert ["cut short" in line for line in lines] == [False, True]


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        (["best_found"], ("cut short", "1 search of runner-ups; the limit came first")),
        (["best_found"] * 2, ("cut short", "2 searches of runner-ups; the limit came first")),
        (["not_tried"], ("not tried", "1 decision; the limit came first")),
        (["not_tried"] * 2 + ["best_found"] * 3, ("not tried", "2 decisions, and 3 searches cut short; the limit")),
    ],
)
def test_first_lines_name_only_what_the_limit_left_open(statuses: list[Any], said: tuple[str, str]) -> None:
    rows = tuple(
        RunnerUp(
            decision="tp",
            chosen="8",
            runner_up="",
            step_s=None,
            difference_s=None,
            difference_fraction=None,
            status=status,
            reason="",
        )
        for status in statuses
    )
    found = Explanation(name="x", step_s=5.0, runner_ups=rows, phases=(), sensitivities=(), seconds=1.0)
    told = {label: str(text) for label, text in explanation_summary(found).facts}
    assert told[said[0]].startswith(said[1])
    assert not {"cut short", "not tried"} - {said[0]} & told.keys()


@pytest.mark.heavy
def test_a_limit_says_which_searches_it_cut() -> None:
    plan = sa.plan(plain_job(2, 2), work_limit=5, simulated=False, alternatives=False)
    rows = sa.explain(plan, work_limit=60).runner_ups
    cut = [row for row in rows if row.status == "best_found"]
    assert cut
    for row in cut:
        assert row.probability_plan_faster is None
        assert row.bound_s is not None and row.step_s is not None and row.bound_s <= row.step_s
