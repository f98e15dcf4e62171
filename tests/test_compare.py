"""Our plan and the baselines: never slower, ties and missing plans named, equal figures in every format."""

from __future__ import annotations

import json
import time
from itertools import count
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

import scaleacross as sa
from cases import each
from instances import instance, plain_job
from priced import MONEY, two
from scaleacross import api
from scaleacross.cli import app
from scaleacross.report.comparison import comparison_line, comparison_report
from scaleacross.report.cost import chance
from scaleacross.report.format import large
from scaleacross.solvers.baselines import BASELINES, Baseline, Outcome
from scaleacross.spec.comparison import BaselineResult, Comparison
from scaleacross.spec.job import Job
from scaleacross.spec.progress import Progress


def job() -> Job:
    return plain_job(2, 3, degrees={"tp": 1, "cp": 1}, micro_batch_sequences=1, recompute="none", schedules="1F1B")


@pytest.fixture(scope="module")
def told() -> list[Progress]:
    """Log messages of ``found``."""
    return []


@pytest.fixture(scope="module")
def found(told: list[Progress]) -> Comparison:
    return sa.compare(job(), progress=told.append)


def baseline(found: Comparison, name: str) -> BaselineResult:
    return next(baseline for baseline in found.rivals if baseline.name == name)


def shown(found: Comparison, width: int = 140) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(comparison_report(found))
    return capture.get()


def test_every_baseline_is_there_fastest_first(found: Comparison) -> None:
    assert {baseline.name for baseline in found.rivals} == set(BASELINES)
    times = [baseline.step_s for baseline in found.rivals if baseline.step_s is not None]
    assert len(times) >= 5
    assert times == sorted(times)


def test_ours_is_never_slower_and_ties_are_named(found: Comparison) -> None:
    for baseline in found.rivals:
        assert baseline.step_s is None or baseline.step_s >= found.plan.cost.step_s
        assert baseline.speed_up is None or baseline.speed_up == pytest.approx(baseline.step_s / found.plan.cost.step_s)
        assert baseline.is_tie == (baseline.speed_up is not None and baseline.speed_up <= 1.005)


@pytest.mark.heavy
@each("seed", (10,), (4, 6, 13, 50))
def test_ours_is_never_slower_on_random_problems(seed: int) -> None:
    found = sa.compare(instance(seed).job, gap_tolerance=0.0)
    assert all(
        baseline.step_s is None or baseline.step_s >= found.plan.cost.step_s * (1 - 1e-9) for baseline in found.rivals
    )
    assert all(baseline.decision is not None or baseline.reason for baseline in found.rivals)


def test_a_baseline_that_the_search_cannot_beat_is_our_plan(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time to search, the plan is the best baseline's."""
    best = found.plan
    bare = best.placement.model_copy(update={"spans": {}})
    decision = best.decision.model_copy(update={"placement": bare})
    oracle = Baseline("what the search would find", "here", lambda problem, clock: Outcome(decision))
    monkeypatch.setattr("scaleacross.api.comparison.BASELINES", {"oracle": oracle})
    found = sa.compare(job(), time_limit_s=0.0)
    assert found.matched == "oracle"
    assert "ours is oracle's but for the network's settings" in " ".join(shown(found).split())
    assert found.plan.report.status == "time_limit"
    assert found.plan.cost.step_s == best.cost.step_s
    assert baseline(found, "oracle").is_tie


@pytest.mark.heavy
def test_an_illegal_decision_is_no_plan(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    decision = found.plan.decision
    wrong = Baseline("no placement", "here", lambda *_: Outcome(decision.model_copy(update={"placement": None})))
    monkeypatch.setattr("scaleacross.api.comparison.BASELINES", {"wrong": wrong})
    found = sa.compare(job())
    assert baseline(found, "wrong").decision is None
    assert "no placement" in baseline(found, "wrong").reason
    assert "no plan" in shown(found)


def test_axes_that_cross_buildings_are_the_placement_s(found: Comparison) -> None:
    crossing = {axis for axis, level in found.plan.placement.spans.items() if level in ("campus", "region")}
    assert set(found.across) == crossing


def test_progress_names_the_baselines(found: Comparison, told: list[Progress]) -> None:
    assert {f"baseline {name}" for name in BASELINES} <= {progress.stage for progress in told}


def test_it_survives_json(found: Comparison) -> None:
    assert Comparison.model_validate_json(found.model_dump_json()) == found


def test_table_names_plans_speed_ups_ties_and_missing_plans(found: Comparison) -> None:
    text = shown(found)
    for name in ("scaleacross", *BASELINES):
        assert name in text
    assert ("a tie" in text) == any(baseline.is_tie for baseline in found.rivals)
    assert "faster" in text
    assert "slower" not in text


def test_another_objective_than_step_time_is_what_plans_are_compared_by(tmp_path: Path) -> None:
    """The plan of least cost may be slower; the table says what it was chosen for and what the baselines reach."""
    found = sa.compare(two(MONEY))
    ours = found.plan.report.objective
    assert ours is not None
    known = {one.name: one.objective_value for one in found.rivals if one.objective_value is not None}
    assert len(known) >= 5
    for name, value in known.items():
        chosen = baseline(found, name).decision
        assert chosen is not None
        stated = {"job": found.plan.job.model_dump(mode="json"), "decision": chosen.model_dump(mode="json")}
        (tmp_path / f"{name}.json").write_text(json.dumps(stated), encoding="utf-8")
        again = sa.evaluate(tmp_path / f"{name}.json").report.objective
        assert again is not None
        assert again.value == pytest.approx(value)
        assert value <= ours.value * (1 + 1e-9)
    text = " ".join(shown(found, 200).split())
    lead = f"{ours.value / max(known.values()):.3f}x the most of a baseline"
    assert lead in text
    assert lead in comparison_line(found)
    assert "the plan was not chosen for step time" in text
    assert all(large(value) in text for value in known.values())


def test_a_rule_cut_short_names_the_limits_that_there_are(found: Comparison) -> None:
    cut = found.model_copy(update={"rivals": tuple(r.model_copy(update={"complete": False}) for r in found.rivals)})
    text = " ".join(shown(cut).split())
    assert "the limit ended its rule; more (--time-limit, --cpu-limit, --work-limit) may find a faster plan" in text


@pytest.mark.heavy
def test_the_stated_clock_measures_our_search_and_every_rule() -> None:
    """The given clock measures our search and every baseline.

    ``compare`` once lacked the option ``--cpu-limit`` of ``plan``.
    """
    asked = count()
    cut = sa.compare(job(), time_limit_s=10.0, clock=lambda: float(next(asked)))
    assert not all(one.complete for one in cut.rivals) and cut.plan.report.status == "time_limit"


def test_command_takes_the_limits_of_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def record(name: str, **said: object) -> Comparison:
        seen.update(said)
        raise sa.InputError(name)

    monkeypatch.setattr(api, "compare", record)
    assert CliRunner().invoke(app, ["compare", "one", "--cpu-limit", "3"]).exit_code == 2
    assert (seen["time_limit_s"], seen["clock"], seen["work_limit"]) == (3.0, time.process_time, None)
    both = CliRunner().invoke(app, ["compare", "one", "--cpu-limit", "3", "--work-limit", "40"])
    assert both.exit_code == 2 and "--work-limit counts step times" in both.output


@pytest.mark.slow
def test_command_writes_settings_that_evaluate_estimates_alike(tmp_path: Path) -> None:
    source = tmp_path / "job.yaml"
    source.write_text(yaml.safe_dump(job().model_dump(mode="json")))
    result = CliRunner().invoke(app, ["compare", str(source), "--json", "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.stderr
    printed = Comparison.model_validate(json.loads(result.stdout))
    written = tmp_path / "out"
    assert Comparison.model_validate_json((written / "comparison.json").read_text()) == printed
    sa.verify(sa.load_plan(written / "plan.json"))
    for other in printed.rivals:
        if other.step_s is not None:
            assert sa.evaluate(written / "rivals" / f"{other.name}.json").cost.step_s == pytest.approx(other.step_s)


def test_command_says_what_is_wrong_with_a_job() -> None:
    result = CliRunner().invoke(app, ["compare", "no_such_job"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no_such_job" in result.stderr


def test_a_lead_says_how_sure_it_is(found: Comparison) -> None:
    ours = found.plan
    assert ours.interval is not None
    assert ours.interval.p10_s < ours.cost.step_s < ours.interval.p90_s
    estimated = [baseline for baseline in found.rivals if baseline.step_s is not None]
    sure = [baseline.probability_ours_faster for baseline in estimated]
    assert sure == sorted(sure)  # the larger the lead, the more certain
    assert all(0.5 <= one < 1 for one in sure if one is not None)
    assert all(baseline.interval is not None and baseline.interval.p10_s < baseline.step_s for baseline in estimated)
    assert [chance(one) for one in (0.5, 0.999, 0.001)] == ["50 %", "> 99 %", "< 1 %"]
    assert "nobody published a step time of an accelerator and precision of this plan" in " ".join(shown(found).split())
