"""refine_schedule returns a plan with a better order of its pipeline.

The plan is timed and verified like any other.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

import scaleacross as sa
from scaleacross import api
from scaleacross.api.problems import problem_of
from scaleacross.cli import app
from scaleacross.cost_models.pipeline.timeline import planned_pipeline
from scaleacross.schedules.pipeline.check import check
from scaleacross.spec.plan import Plan
from scaleacross.spec.progress import ORDERS_STOPPED, Progress
from scaleacross.spec.timeline import PipelineTimeline

JOB = {
    "name": "small", "workload": "llama3.1-8b", "topology": "two_buildings_unequal", "sequence_length": 8192,
    "global_batch_sequences": 64, "num_accelerators": 16, "num_chunks": 1,
}  # fmt: skip


def plan_with(schedule: str, **job: object) -> Plan:
    """The best plan with ``schedule`` of a job that allows ZBH1 too."""
    found = sa.plan(sa.load_job(JOB | job | {"degrees": {"pp": 4}, "schedules": schedule}), alternatives=False)
    allowed = sa.load_job(JOB | job | {"degrees": {"pp": 4}, "schedules": ["1F1B", "ZBH1"]})
    return sa.evaluate((allowed, found.decision))


@pytest.mark.heavy
def test_a_better_order_is_estimated_and_verified() -> None:
    plan = plan_with("1F1B")
    refined = api.refine_schedule(plan, 2.0)
    assert refined.cost.step_s < plan.cost.step_s
    assert refined.decision.pipeline.order is not None
    assert refined.decision.degrees == plan.decision.degrees
    assert any("no order of these stages takes less than" in note for note in refined.report.notes)
    api.verify(refined)
    pipe = planned_pipeline(problem_of(refined.job, ()), refined.decision)
    check(pipe.schedule)
    assert max(stage.total_bytes / stage.capacity_bytes for stage in refined.memory) <= 1


@pytest.mark.slow
def test_nothing_better_gives_the_same_plan() -> None:
    refined = api.refine_schedule(plan_with("1F1B"), 2.0)
    assert api.refine_schedule(refined, 1.0) == refined


@pytest.mark.heavy
def test_command(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_with("1F1B").model_dump_json(), encoding="utf-8")
    result = CliRunner().invoke(app, ["schedule", str(path), "--optimal", "--time-limit", "2", "--json"])
    assert result.exit_code == 0, result.output
    assert "order of the pipeline step: optimal" in result.stderr
    assert PipelineTimeline.model_validate_json(result.stdout).num_ranks == 4
    assert CliRunner().invoke(app, ["schedule", "--name", "1F1B", "--optimal"]).exit_code == 2


def test_no_pipeline() -> None:
    plan = sa.plan(sa.load_job(JOB | {"degrees": {"pp": 1}}), alternatives=False)
    with pytest.raises(sa.InputError, match="pp 1 has no pipeline"):
        api.refine_schedule(plan, 1.0)


@pytest.mark.slow
def test_finalists_of_a_search_are_refined(tmp_path: Path) -> None:
    job = sa.load_job(JOB | {"degrees": {"pp": {"min": 2, "max": 4}}, "schedules": ["1F1B", "ZBH1"]})
    plan = sa.plan(job, alternatives=False)
    refined = api.refine_finalists(plan, 4.0)
    assert refined.estimated.step_s <= plan.estimated.step_s
    assert refined.cost.step_s <= api.refine_schedule(plan, 2.0).cost.step_s * (1 + 1e-9)
    if refined != plan:
        assert refined.report.status == "evaluated"
        assert any("among named schedules the search found" in note for note in refined.report.notes)
    flat = sa.plan(sa.load_job(JOB | {"degrees": {"pp": 1}}), alternatives=False)
    assert api.refine_finalists(flat, 1.0) == flat


def stopped_after(looks: int) -> Callable[[], bool]:
    """A caller that asks the search to stop at its ``looks``-th look."""
    seen = count(1)
    return lambda: next(seen) > looks


@pytest.mark.parametrize("looks", [0, 3, 200])
def test_a_stop_ends_the_refinement_with_the_best_plan_so_far(looks: int) -> None:
    plan = plan_with("1F1B", global_batch_sequences=512)
    begin = time.perf_counter()
    refined = api.refine_finalists(plan, 500.0, stopped=stopped_after(looks))
    assert time.perf_counter() - begin < 60
    assert refined.estimated.step_s <= plan.estimated.step_s
    assert sum(ORDERS_STOPPED in note for note in refined.report.notes) == 1
    api.verify(refined)
    if looks == 0:
        assert refined.decision == plan.decision


class InterruptedWhileOrdering(AbstractContextManager[Callable[[Progress], None]]):
    """A display of progress in whose process Ctrl-C is pressed once orders are searched."""

    pressed = False

    def __enter__(self) -> Callable[[Progress], None]:
        return self.show

    def __exit__(self, *_: object) -> None:
        assert self.pressed

    def show(self, progress: Progress) -> None:
        if progress.stage == "ordering" and not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_the_refinement_of_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(JOB | {"degrees": {"pp": 4}, "global_batch_sequences": 512, "schedules": "1F1B"}))
    monkeypatch.setattr("scaleacross.cli.plan.searching", InterruptedWhileOrdering)
    begin = time.perf_counter()
    result = CliRunner().invoke(app, ["plan", str(job), "--refine", "500", "--json"])
    assert result.exit_code == 0 and time.perf_counter() - begin < 60
    plan = Plan.model_validate_json(result.stdout)
    assert any(ORDERS_STOPPED in note for note in plan.report.notes)
