"""plan without a file, init, show --yaml, standard input, python -m scaleacross."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from scaleacross.cli import app

FLAGS = [
    "--model",
    "llama3.1-8b",
    "--gpus",
    "h100:16,h100:8",
    "--trunk",
    "1x400G",
    "--km",
    "10",
    "--tokens",
    "256K",
    "--seq",
    "8192",
]


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=text)


@pytest.mark.heavy
def test_plan_without_a_file_says_that_buildings_are_standard() -> None:
    result = run("plan", *FLAGS, "--time-limit", "5", "--gap", "0.1", "--set", "schedules=[1F1B]")
    assert result.exit_code == 0, result.output
    assert "standard buildings" in result.stdout
    assert "1x400G over 10 km" in " ".join(result.stdout.split())


def test_init_writes_what_plan_reads_and_replaces_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run("init", str(folder), *FLAGS).exit_code == 0
    job = folder / "job.yaml"
    job.write_text(job.read_text() + "# mine\n")
    again = run("init", str(folder), *FLAGS)
    assert (again.exit_code, "--force" in again.stderr, "# mine" in job.read_text()) == (2, True, True)
    assert run("init", str(folder), *FLAGS, "--force").exit_code == 0
    assert "# mine" not in job.read_text()


def test_init_names_what_it_cannot_ask_for(tmp_path: Path) -> None:
    result = run("init", str(tmp_path / "new"), "--gpus", "h100:8")
    assert result.exit_code == 2
    assert "--model, --tokens, --seq" in result.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_plan_reads_standard_input() -> None:
    text = run("show", "job", "llama3_8b_one_building", "--yaml").stdout
    result = run("plan", "-", "--set", "num_accelerators=8", "--time-limit", "5", "--json", text=text)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["job"]["num_accelerators"] == 8


@pytest.mark.parametrize(
    ("text", "said"), [("", "empty"), ("a: [", "not YAML"), ("[1]", "a mapping"), ("x: 1", "unknown key")]
)
def test_bad_standard_input_is_said(text: str, said: str) -> None:
    result = run("plan", "-", text=text)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no job"),
        (("job.yaml", "--seq", "8K"), "change it with --set sequence_length=N"),
        (("job.yaml", "--target", "torchtitan"), "change it with --set target=NAME"),
        (("--gpus", "h100:8"), "also needed"),
        ((*FLAGS, "--target", "no-such-framework"), "target"),
    ],
)
def test_half_a_start_is_refused(arguments: tuple[str, ...], said: str) -> None:
    result = run("plan", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_show_prints_the_file_itself() -> None:
    path = Path(__file__).parents[2] / "configs" / "topologies" / "two_buildings_unequal.yaml"
    for arguments in (("two_buildings_unequal",), ("topology", "two_buildings_unequal")):
        assert run("show", *arguments, "--yaml").stdout == path.read_text()
    assert "nearest known name: 'two_buildings_unequal'" in run("show", "two_building_unequal", "--yaml").stderr
    assert "KIND NAME" in run("show", "two_buildings_unequal").stderr


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scaleacross", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("scaleacross ")


@pytest.mark.slow
def test_slurm_options_reach_the_batch_script(tmp_path: Path) -> None:
    partitions = ["--slurm-partition", "building-a=near", "--slurm-partition", "building-b=far"]
    assert run("init", str(tmp_path), *FLAGS, *partitions).exit_code == 0
    stated = ["--slurm-account", "team", "--slurm-time", "2-00", "--slurm-extra=--qos=high", "--emit", "torchrun"]
    planned = run("plan", str(tmp_path / "job.yaml"), *stated, "--work-limit", "20", "-o", str(tmp_path / "a"))
    assert planned.exit_code == 0, planned.output
    lines = (tmp_path / "a" / "torchrun" / "slurm.sbatch").read_text().splitlines()
    wanted = ("--account=team", "--time=2-00", "--partition=near", "--partition=far", "--qos=high")
    assert [f"#SBATCH {line}" in lines for line in wanted] == [True] * 5
    late = ["--to", "torchrun", "--slurm-partition", "all", "-o", str(tmp_path / "c")]
    assert run("emit", str(tmp_path / "a" / "plan.json"), *late).exit_code == 0
    text = (tmp_path / "c" / "torchrun" / "slurm.sbatch").read_text()
    assert "--partition=all\n" in text and "--account=team\n" in text and "near" not in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--slurm-time", "soon"), "slurm.time"),
        (("--slurm-partition", "a", "--slurm-partition", "b"), "one for all hosts"),
        (("--slurm-partition", "nowhere=a"), "no building 'nowhere'"),
        (("--slurm-extra", "rm -rf"), "slurm.extra"),
    ],
)
def test_slurm_options_are_checked(options: tuple[str, ...], said: str) -> None:
    result = run("plan", *FLAGS, *options)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
