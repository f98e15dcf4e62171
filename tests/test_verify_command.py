"""``scaleacross verify``: what was checked and how, the simulation, and exit code 5."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import scaleacross as sa
from instances import plain_job
from scaleacross.cli import app

RUN = CliRunner()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = sa.plan(
        plain_job(2, 2, degrees={"tp": 1, "cp": 1, "pp": 2}, recompute="none", schedules="1F1B"),
        simulated=False,
        alternatives=False,
    )
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(plan.model_dump_json())
    return path


@pytest.mark.heavy
def test_says_how_everything_was_checked(path: Path) -> None:
    done = RUN.invoke(app, ["verify", str(path), "--json"])
    assert done.exit_code == 0, done.stderr
    how = {check["name"]: check["how"] for check in json.loads(done.stdout)["checks"]}
    assert {name for name, each in how.items() if each == "counted"} == {"V1", "V2", "V3", "V4", "V8", "V10"}
    assert {name for name, each in how.items() if each == "recomputed"} == {"V5", "V6", "V7", "V9", "V11"}
    table = RUN.invoke(app, ["verify", str(path)]).stdout
    assert "plain verifies" in table and "layer by layer" in table


def test_deep_states_the_difference(path: Path) -> None:
    found = json.loads(RUN.invoke(app, ["verify", str(path), "--deep", "--json"]).stdout)
    assert found["simulated_step_s"] == pytest.approx(sa.simulate(path).step_s)
    plan, verified = sa.load_plan(path), sa.verify(path, deep=True)
    assert verified.difference == pytest.approx(plan.cost.step_s / found["simulated_step_s"] - 1)
    assert found["bound_s"] == plan.report.bound_s <= plan.estimated.step_s
    told = RUN.invoke(app, ["verify", str(path), "--deep"]).stdout
    assert f"{verified.difference:+.1%}" in told
    assert f"at least {plan.report.bound_s:.4g} s for any plan" in " ".join(told.split())


def test_a_difference_beyond_the_limit_is_exit_code_5(path: Path) -> None:
    apart = abs(sa.verify(path, deep=True).difference or 0.0)
    assert apart > 0
    done = RUN.invoke(app, ["verify", str(path), "--deep", "--max-difference", str(apart / 2)])
    assert done.exit_code == 5
    assert "deep: the plan states" in done.stderr and "scaleacross simulate" in done.stderr
    assert RUN.invoke(app, ["verify", str(path), "--deep", "--max-difference", str(apart * 2)]).exit_code == 0


@pytest.mark.parametrize("name", ["p10_s", "p50_s", "p90_s", "seen", "experts", "spans_buildings", "doublings_beyond"])
def test_a_changed_interval_is_exit_code_5(path: Path, tmp_path: Path, name: str) -> None:
    data = json.loads(path.read_text())
    value = data["interval"][name]
    changed = not value if isinstance(value, bool) else 1.01 * value + 0.01
    data["interval"][name] = changed
    other = tmp_path / "plan.json"
    other.write_text(json.dumps(data))
    done = RUN.invoke(app, ["verify", str(other)])
    assert done.exit_code == 5
    assert f"V5: interval.{name} is stated as {changed}, follows as {value}" in done.stderr
    assert "scaleacross evaluate" in done.stderr


def test_a_changed_figure_is_exit_code_5(path: Path, tmp_path: Path) -> None:
    data = json.loads(path.read_text())
    data["memory"][1]["activations_bytes"] *= 2
    other = tmp_path / "plan.json"
    other.write_text(json.dumps(data))
    done = RUN.invoke(app, ["verify", str(other)])
    assert done.exit_code == 5
    assert "V3: activations_bytes of stage 1 is stated as" in done.stderr
    assert "'scaleacross evaluate PLAN -o DIR' states its decision by today's laws" in done.stderr


def test_bad_input_is_exit_code_2(path: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("{}")
    for arguments in (
        ["verify", str(tmp_path / "none.json")],
        ["verify", str(tmp_path / "empty.json")],
        ["verify", str(path), "--max-difference", "0.1"],
        ["verify", str(path), "--deep", "--max-difference", "0"],
    ):
        assert RUN.invoke(app, arguments).exit_code == 2, arguments


def test_the_package_offers_what_its_api_offers() -> None:
    from scaleacross import api

    assert set(api.__all__) <= set(sa.__all__)
    assert all(getattr(sa, name) is getattr(api, name) for name in api.__all__)


@pytest.mark.parametrize("part", ["workload", "topology"])
def test_a_plan_with_an_edited_job_is_bad_input_at_its_place(path: Path, tmp_path: Path, part: str) -> None:
    """A plan with an edited job is refused with the place of the error.

    A job holds workload and topology as mappings without checking them itself.
    """
    data = json.loads(path.read_text())
    data["job"][part]["name"] = 7
    (tmp_path / "plan.json").write_text(json.dumps(data))
    done = RUN.invoke(app, ["verify", str(tmp_path / "plan.json")])
    assert done.exit_code == 2 and "plan.json" in done.stderr and f"'job.{part}.name'" in done.stderr, done.stderr
