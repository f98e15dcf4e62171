"""Studies: points and their keys, the stored results, and the points that a resumed sweep runs again."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

import scaleacross as sa
from instances import plain_job
from scaleacross.api import planning, refereeing, stated, study_run, sweep_points
from scaleacross.api.engines.local import _Worker
from scaleacross.api.study_store import POINTS_FILE, Store
from scaleacross.api.sweep_points import key_of, run_point
from scaleacross.catalogue import load_study, points_of
from scaleacross.cli import app
from scaleacross.report.sweep import _outcome, sweep_report
from scaleacross.spec.csv_table import csv_text
from scaleacross.spec.job import Job
from scaleacross.spec.study import Study

SMALL: dict[str, Any] = {
    "degrees": {"tp": 1, "cp": 1, "pp": 2},
    "schedules": ["1F1B"],
    "recompute": ["none"],
    "micro_batch_sequences": [1],
    "shard": ["optimizer"],
}


def study(**changes: Any) -> dict[str, Any]:
    """A study of one plain job on 8 accelerators."""
    job = plain_job(2, **SMALL).model_dump(mode="json", exclude_none=True)
    return {"name": "small", "base": [job], "grid": {"global_batch_sequences": [8, 16]}} | changes


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[sa.SweepResult, Path]:
    """The rows of ``study`` and the folder that keeps them. Tests write into copies."""
    folder = tmp_path_factory.mktemp("swept")
    return sa.sweep(study(), directory=folder), folder


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / POINTS_FILE).read_text().splitlines()]


# --- points ---------------------------------------------------------------------------------------------------------


def test_every_combination_with_zipped_groups() -> None:
    data = study(
        grid={"global_batch_sequences": [8, 16], "degrees.pp": [1, {"min": 2, "max": 4}]},
        zipped=[{"sequence_length": [2048, 4096, 8192], "precision": ["bf16", "bf16", "bf16"]}],
    )
    points = points_of(Study.model_validate(data))
    assert len(points) == Study.model_validate(data).num_points == 12
    seen = {
        (p.fields["global_batch_sequences"], str(p.fields["degrees.pp"]), p.fields["sequence_length"]) for p in points
    }
    assert len(seen) == 12
    assert all(p.job is not None and p.job.sequence_length == p.fields["sequence_length"] for p in points)
    assert {str(p.job.degrees.pp) for p in points if p.job} == {"1", "from 2 to 4"}


def in_tokens() -> dict[str, Any]:
    """A job of 16 sequences of 6,144 tokens that states its batch in tokens."""
    job = plain_job(2, **SMALL).model_dump(mode="json", exclude_none=True)
    del job["global_batch_sequences"]
    return job | {"sequence_length": 6144, "global_batch_tokens": 16 * 6144}


def test_a_batch_in_tokens_stays_as_many_tokens_at_every_sequence_length(tmp_path: Path) -> None:
    lengths = {"sequence_length": [3072, 6144]}
    swept = points_of(Study.model_validate(study(base=[in_tokens()], grid=lengths)))
    path = tmp_path / "settings.yaml"
    decision = {"degrees": {"pp": 2, "dp_shard": 4}, "pipeline": {"schedule": "1F1B", "micro_batch_sequences": 1}}
    path.write_text(
        yaml.safe_dump({"job": in_tokens(), "decision": decision | {"recompute": "none", "shard": "optimizer"}})
    )
    stated = points_of(Study.model_validate(study(base=[str(path)], grid=lengths, command="evaluate")))
    for points in (swept, stated):
        assert [p.job.global_batch_sequences for p in points if isinstance(p.job, Job)] == [32, 16]
    assert sa.evaluate(path, overrides=["sequence_length=3072"]).job.global_batch_sequences == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": {"degrees.tp": []}}, "grid 'degrees.tp' has no value"),
        ({"zipped": [{"sequence_length": [1, 2], "precision": ["bf16"]}]}, "lists of one length"),
        ({"zipped": [{"global_batch_sequences": [1]}]}, "'global_batch_sequences' varies twice"),
        ({"grid": {f"a{i}": list(range(20)) for i in range(5)}}, "3,200,000 points"),
        ({"base": []}, "at least 1 item"),
    ],
)
def test_a_wrong_study_says_what_is_wrong(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(sa.InputError, match=message):
        load_study(study(**changes))


def test_a_misspelt_path_is_an_error_of_the_study() -> None:
    with pytest.raises(sa.InputError, match="no key 'tq'; known keys: tp, cp"):
        sa.sweep(study(grid={"degrees.tq": [1, 2]}))


def test_equal_points_have_one_key_and_run_once() -> None:
    same = study(grid={"topology.regions.0.buildings.0.links.zone.one_way_latency_us": [25, 50]})
    other = study(grid={"topology.regions.0.buildings.0.links.zone.one_way_latency_s": [25e-6, 0.000025, 50e-6]})
    first, second = Study.model_validate(same), Study.model_validate(other)
    keys = [key_of(first, point, "1") for point in points_of(first)]
    others = [key_of(second, point, "1") for point in points_of(second)]
    assert keys[0] == others[0] == others[1]
    assert keys[1] == others[2] != keys[0]
    assert key_of(first, points_of(first)[0], "2") != keys[0]
    slower = first.model_copy(update={"time_limit_s": 5.0})
    assert key_of(slower, points_of(first)[0], "1") != keys[0]
    result = sa.sweep(second)
    assert (len(result.rows), result.num_distinct, result.num_run) == (3, 2, 2)
    assert [row["topology.regions.0.buildings.0.links.zone.one_way_latency_s"] for row in result.rows] == [
        25e-6,
        0.000025,
        50e-6,
    ]
    assert result.rows[0]["step_s"] == result.rows[1]["step_s"]


# --- results --------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_figures_are_those_of_plan(tmp_path: Path) -> None:
    result = sa.sweep(study(), directory=tmp_path)
    for row, batch in zip(result.rows, (8, 16), strict=True):
        plan = sa.plan(plain_job(2, **SMALL), overrides=[f"global_batch_sequences={batch}"])
        assert (row["step_s"], row["gap"], row["status"]) == (plan.cost.step_s, plan.report.gap, plan.report.status)
        assert row["pp"] == plan.degrees.pp
        assert (row["step_of"], row["estimate_s"]) == ("simulation", plan.estimated.step_s)
    assert result.best == max(result.rows, key=lambda row: row["tokens_per_s"])
    kept = lines(tmp_path)
    assert {line["key"] for line in kept} and len(kept) == 2
    assert sa.Decision.model_validate(kept[0]["decision"]).placement is not None


@pytest.mark.heavy
def test_points_look_for_no_alternatives_that_nobody_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(planning, "alternatives_to", lambda *_, **__: asked.append(1) or ())
    loaded, folder = load_study(study())
    record = run_point(loaded, points_of(loaded, folder)[0])
    assert "step_s" in record["figures"] and not asked


def test_refused_infeasible_and_failed_points_are_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = study(grid={"global_batch_sequences": [8, "many"], "degrees.tp": [1, 3]})
    result = sa.sweep(data, directory=tmp_path)
    assert [row["status"] for row in result.rows] == ["optimal", "infeasible", "refused", "refused"]
    assert "No plan exists" in result.rows[1]["reason"]
    assert "global_batch_sequences" in result.rows[2]["reason"]
    monkeypatch.setattr(sweep_points, "plan", lambda *_, **__: 1 // 0)
    broken = sa.sweep(data, directory=tmp_path / "other")
    assert broken.rows[0]["status"] == "failed"
    assert "ZeroDivisionError" in broken.rows[0]["reason"]
    monkeypatch.undo()
    mended = sa.sweep(data, directory=tmp_path / "other")
    assert (mended.num_run, mended.num_reused) == (2, 2)  # both met the error; refused points stay
    assert mended.rows[0]["status"] == "optimal"


def test_a_resumed_sweep_runs_only_what_is_new(
    swept: tuple[sa.SweepResult, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = swept[0]
    shutil.copytree(swept[1], tmp_path, dirs_exist_ok=True)
    wider = study(grid={"global_batch_sequences": [8, 16, 24]})
    with monkeypatch.context() as patched:
        calls: list[int] = []
        real = sweep_points.plan
        patched.setattr(sweep_points, "plan", lambda *a, **k: (calls.append(1), real(*a, **k))[1])
        result = sa.sweep(wider, directory=tmp_path)
    assert (result.num_run, result.num_reused, len(calls)) == (1, 2, 1)
    assert result.rows[:2] == first.rows
    with (tmp_path / "points.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["global_batch_sequences"] for row in table] == ["8", "16", "24"]
    assert float(table[2]["step_s"]) == result.rows[2]["step_s"]


def test_rows_say_whether_their_step_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise sa.InputError("too large")

    for module in (refereeing, stated):
        monkeypatch.setattr(module, "stepped", refuse)
    result = sa.sweep(study())
    for row in result.rows:
        assert (row["step_of"], row["estimate_s"]) == ("estimate", row["step_s"])
    shown = io.StringIO()
    Console(file=shown, width=200).print(sweep_report(result))
    (header,) = [line for line in shown.getvalue().splitlines() if "estimate" in line]
    assert header.split()[:3] == ["a", "step", "estimate"]
    assert re.search(r"^ *8 +– +\S+ m?s", shown.getvalue(), re.MULTILINE)


def test_evaluate_estimates_settings(tmp_path: Path) -> None:
    plan = sa.plan(plain_job(2, **SMALL))
    path = tmp_path / "settings.yaml"
    decision = plan.decision.model_dump(mode="json")
    path.write_text(yaml.safe_dump({"job": plan.job.model_dump(mode="json", exclude_none=True), "decision": decision}))
    ratio = "topology.regions.0.buildings.0.links.zone.oversubscription_ratio"
    result = sa.sweep({"name": "price", "command": "evaluate", "base": str(path), "grid": {ratio: [1, 16]}})
    assert [row["status"] for row in result.rows] == ["evaluated", "evaluated"]
    assert result.rows[0]["step_s"] == plan.cost.step_s
    assert result.rows[1]["step_s"] >= plan.cost.step_s


def test_csv_keeps_every_column_and_writes_structures_as_json() -> None:
    text = csv_text([{"a": 1, "b": {"min": 2}}, {"a": 2, "c": "x,y"}])
    assert text == 'a,b,c\n1,"{""min"": 2}",\n2,,"x,y"\n'


@pytest.mark.heavy
def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    result = sa.sweep(study(grid={"degrees.tp": [1, [1, 2], 3]}), directory=tmp_path)
    table = parquet.read_table(tmp_path / "points.parquet").to_pylist()
    assert [row["status"] for row in table] == [row["status"] for row in result.rows]
    assert [row.get("step_s") for row in table] == [row.get("step_s") for row in result.rows]


# --- the file -------------------------------------------------------------------------------------------------------


def test_a_half_written_last_line_is_taken_away(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append({"key": "a", "status": "optimal"})
    with (tmp_path / POINTS_FILE).open("a") as file:
        file.write('{"key": "b", "sta')
    with Store(tmp_path) as store:
        assert list(store.records) == ["a"]
        store.append({"key": "c", "status": "optimal"})
    assert [line["key"] for line in lines(tmp_path)] == ["a", "c"]


def test_a_file_that_is_none_of_ours_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / POINTS_FILE).write_text("my notes\n")
    with pytest.raises(sa.InputError, match=r"points\.jsonl:1: no result of a sweep"):
        sa.sweep(study(), directory=tmp_path)
    assert (tmp_path / POINTS_FILE).read_text() == "my notes\n"


def test_two_sweeps_do_not_write_one_file(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(sa.InputError, match="another sweep is writing it"):
        sa.sweep(study(), directory=tmp_path)


# --- processes ------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_a_worker_that_dies_costs_its_point_only() -> None:
    loaded = Study.model_validate(study())
    point = points_of(loaded)[0]
    worker = _Worker(partial(run_point, loaded))
    try:
        worker.process.kill()
        worker.process.join()
        worker.index = 7
        index, record = worker.finish()
        assert (index, record["status"]) == (7, "failed")
        assert "-9" in record["reason"]
        worker.start(8, point)
        index, record = worker.finish()
        assert (index, record["status"]) == (8, "optimal")
    finally:
        worker.stop()


@pytest.mark.slow
def test_processes_give_the_same_rows(tmp_path: Path) -> None:
    done: list[int] = []
    alone = sa.sweep(study())
    result = sa.sweep(study(), directory=tmp_path, processes=2, progress=lambda p: done.append(p.done))
    drop = {"seconds"}
    assert [{k: v for k, v in row.items() if k not in drop} for row in result.rows] == [
        {k: v for k, v in row.items() if k not in drop} for row in alone.rows
    ]
    assert done == [0, 1, 2]
    with pytest.raises(sa.InputError, match="at least 1"):
        sa.sweep(study(), processes=0)


@pytest.mark.slow
def test_ctrl_c_leaves_a_valid_file_and_the_next_run_continues(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    grid: dict[str, list[Any]] = {"num_accelerators": [8 * 2**k for k in range(6)], "sequence_length": [4096, 8192]}
    grid |= {"degrees.tp": [2], "degrees.cp": [1], "schedules": [["1F1B"]], "micro_batch_sequences": [[1]]}
    path.write_text(yaml.safe_dump({"name": "long", "base": ["llama3_8b_one_building"], "grid": grid}))
    command = [sys.executable, "-c", "from scaleacross.cli import main; main()", "sweep", str(path), "-j", "2"]
    out = tmp_path / "out"
    process = subprocess.Popen([*command, "-o", str(out)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while process.poll() is None and not ((out / POINTS_FILE).exists() and lines(out)):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"finished points are kept in {out}; the same command continues" in err
    kept = lines(out)
    assert 1 <= len(kept) < 12
    result = sa.sweep(path, directory=out)
    assert (result.num_reused, result.num_run) == (len(kept), 12 - len(kept))


def test_cli_writes_tables_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("scaleacross.api.study_store.find_spec", lambda _: None)
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study()))
    result = CliRunner().invoke(app, ["sweep", str(path), "-j", "1", "-o", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["points"], summary["status"]) == (2, {"optimal": 2})
    assert "pyarrow is not installed" in summary["note"]
    assert {Path(file).name for file in summary["files"]} == {"points.jsonl", "points.csv"}
    shown = CliRunner().invoke(app, ["sweep", str(path), "-j", "1", "-o", str(tmp_path / "out")])
    assert "0 run, 2 were there already" in shown.stdout
    assert "global_batch_sequences" in shown.stdout
    monkeypatch.setattr(study_run, "_is_open", lambda _: True)
    monkeypatch.setattr(sweep_points, "plan", lambda *_, **__: 1 // 0)
    failed = CliRunner().invoke(app, ["sweep", str(path), "-j", "1", "-o", str(tmp_path / "out")])
    assert failed.exit_code == 1
    assert "2 points met an unexpected error" in failed.stderr


@pytest.mark.parametrize("command", [["sweep"], ["pareto"], ["reproduce"], ["compare"], ["plan"], ["testbed", "run"]])
def test_help_says_of_json_what_every_command_prints(command: list[str]) -> None:
    shown = " ".join(CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).output.split())
    assert "--json" in shown and "Print the plan as JSON" not in shown


def test_a_reason_that_is_cut_says_so() -> None:
    outcomes = [
        _outcome({"status": "refused", "reason": reason}, 5, 0)[-1] for reason in ("too short", "word " * 60, "")
    ]
    assert outcomes[0] == "too short" and outcomes[2] == ""
    assert outcomes[1].endswith("word … (CSV)") and len(outcomes[1]) <= 160
