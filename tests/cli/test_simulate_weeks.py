"""``simulate --days``: weeks with failures from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import instances
import scaleacross as sa
from scaleacross.cli import app

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    degrees = {"pp": 2, "dp_replicate": 4, "tp": 2, "cp": 1, "dp_shard": 1}
    topology = instances.plain_topology(2, 2) | {"reliability": {"host_mtbf_hours": 20, "repair_hours": 5}}
    pins = {"schedules": "1F1B", "recompute": "none"}
    job = instances.plain_job(
        topology=topology, degrees=degrees, num_accelerators=16, shard=["none"], reliability={"spares": 1}, **pins
    )
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    file.write_text(sa.plan(job, alternatives=False).model_dump_json())
    return str(file)


@pytest.mark.heavy
def test_weeks_by_rates(path: str) -> None:
    found = RUNNER.invoke(app, ["simulate", path, "--days", "30", "--draws", "20"])
    assert found.exit_code == 0, found.output
    for words in ("goodput", "useful tokens", "closed form", "waiting for a host", "first draw"):
        assert words in found.stdout
    facts = json.loads(RUNNER.invoke(app, ["simulate", path, "--days", "30", "--draws", "20", "--json"]).stdout)
    assert facts["goodput_fraction"]["mean"] == pytest.approx(facts["closed_form_fraction"], abs=0.02)
    tokens = json.loads(Path(path).read_text())["cost"]["tokens_per_s"] * 30 * 86_400
    assert facts["tokens"]["p50"] == pytest.approx(facts["goodput_fraction"]["p50"] * tokens)


def test_a_trace_is_played_as_it_is(path: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time_hours,cause,host_swap\n2,host,yes\n1,host,no\n")
    options = ["--days", "1", "--draws", "2", "--failures", str(trace), "--json"]
    facts = json.loads(RUNNER.invoke(app, ["simulate", path, *options]).stdout)
    assert facts["interruptions"] == 2
    assert facts["closed_form_fraction"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no failures"),
        ("time_hours,cause\n3,rack\n", "class rack"),
        ("time_hours,cause\nx,host\n", "trace.csv:2: time_hours is 'x'"),
        ("time_hours,host_swap\n1,maybe\n", "host_swap is 'maybe': write yes or no"),
        ("time_hours,unit\n1,-1\n", "unit is '-1': write the number"),
        ("time_hours,unit\n1,999\n", "hits fault unit 999"),
        ("hours\n1\n", "columns hours; a trace has time_hours"),
    ],
)
def test_a_trace_that_is_none(path: str, tmp_path: Path, text: str, message: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    found = RUNNER.invoke(app, ["simulate", path, "--days", "1", "--failures", str(trace)])
    assert found.exit_code == 2
    assert message in found.stderr.replace("\n", " ")


def test_a_host_keeps_its_pace_and_an_action_has_another_in_every_step(path: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "time_hours,cause,host_swap,unit\n2,host,yes,0\n"
    )  # all draws have the same failures and differ in pace

    def shares(*jitters: str) -> dict[str, float]:
        options = [word for one in jitters for word in ("--what-if", one)]
        done = RUNNER.invoke(
            app, ["simulate", path, "--days", "1", "--draws", "9", "--failures", str(trace), *options, "--json"]
        )
        return dict(json.loads(done.stdout)["goodput_fraction"])

    plain, actions, hosts = shares(), shares("jitter=0.1"), shares("host-jitter=0.1")
    both = shares("jitter=0.1", "host-jitter=0.1")
    assert actions["p5"] == pytest.approx(actions["p95"], rel=1e-9) and actions["mean"] < plain["mean"]
    assert hosts["p95"] - hosts["p5"] > 0.01
    assert both["mean"] == pytest.approx(hosts["mean"] * actions["mean"] / plain["mean"], rel=1e-3)


def test_draws_of_one_step(path: str) -> None:
    options = ["simulate", path, "--what-if", "host-jitter=0.05", "--draws", "9"]
    found = RUNNER.invoke(app, options)
    assert found.exit_code == 0, found.output
    assert "9 draws of a step" in found.stdout
    facts = json.loads(RUNNER.invoke(app, [*options, "--json"]).stdout)
    assert len(facts["seconds"]) == 9
    assert facts["step_s"]["p5"] <= facts["step_s"]["p95"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--draws", "3"], "all draws of the step are alike"),
        (["--failures", "trace.csv"], "--failures without --days"),
        (["--draws", "3", "--what-if", "jitter=0.1", "--gantt"], "--gantt and --draws"),
    ],
)
def test_draws_and_failures_of_nothing(path: str, options: list[str], message: str) -> None:
    found = RUNNER.invoke(app, ["simulate", path, *options])
    assert found.exit_code == 2
    assert message in found.stderr.replace("\n", " ")


def test_options_of_one_step_are_refused(path: str) -> None:
    found = RUNNER.invoke(app, ["simulate", path, "--days", "1", "--gantt"])
    assert found.exit_code == 2
    assert "--gantt and --days" in found.stderr
