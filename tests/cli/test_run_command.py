"""``scaleacross run`` and ``bench`` on the command line. Tests that need torch are in ``tests/runtime``."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaleacross.cli import app
from scaleacross.runtime.launch_file import EXCHANGES, read_launch
from scaleacross.schedules.collective import PHASES
from scaleacross.spec.network_choice import ALGORITHM_NAMES

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
from launch_configs import small_launch

RUNNER = CliRunner()


@pytest.fixture
def launch(tmp_path: Path) -> Path:
    path = tmp_path / "launch.json"
    path.write_text(small_launch(dp_shard=4).model_dump_json(), encoding="utf-8")
    return path


def test_several_hosts_get_a_command_each(launch: Path) -> None:
    result = RUNNER.invoke(app, ["run", str(launch), "--port", "1234", "--", "train.py", "--name", "two words"])
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert f"SCALEACROSS_LAUNCH={launch} torchrun --nnodes=2 --nproc-per-node=2 --node-rank=0 --master-addr=h0" in first
    assert "--node-rank=1 --master-addr=h0 --master-port=1234 train.py --name 'two words'  # on h1" in second
    assert "2 hosts" in result.stderr


def test_local_starts_all_ranks_here(launch: Path) -> None:
    result = RUNNER.invoke(app, ["run", str(launch), "--local", "--dry-run", "--", "train.py"])
    assert result.stdout == (
        f"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 SCALEACROSS_LAUNCH={launch} torchrun --nnodes=1 --nproc-per-node=4 "
        "--rdzv-backend=c10d --rdzv-conf=store_type=file --local-addr=127.0.0.1 train.py\n"
    )


def test_torchrun_meets_beside_the_rendezvous(tmp_path: Path) -> None:
    path = tmp_path / "launch.json"
    path.write_text(small_launch(dp_shard=4, port=4000).model_dump_json(), encoding="utf-8")
    result = RUNNER.invoke(app, ["run", str(path), "--dry-run", "--", "train.py"])
    assert "--master-addr=127.0.0.1 --master-port=4001 train.py" in result.stdout
    result = RUNNER.invoke(app, ["run", str(path), "--dry-run", "--port", "4000", "--", "train.py"])
    assert result.exit_code == 2 and "--port 4000 is the rendezvous of" in result.stderr


def test_a_missing_launch_file_says_how_to_get_one(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["run", str(tmp_path / "none.json"), "--", "train.py"])
    assert result.exit_code == 2
    assert "No such file" in result.stderr and "scaleacross emit" in result.stderr


def test_a_plan_is_no_launch_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"decision": {}}')
    result = RUNNER.invoke(app, ["bench", str(path)])
    assert result.exit_code == 2
    assert "is no launch file: plan_name: Field required. `scaleacross plan JOB -o DIR`" in result.stderr


@pytest.mark.parametrize(
    ("figure", "value", "said"),
    [
        ("time_s", -0.01, "process_groups.0.collectives.0.time_s: Input should be greater than or equal to 0"),
        ("bytes_per_rank", -1, "bytes_per_rank: Input should be greater than or equal to 0"),
        ("algorithm", "rign", "dp_shard all_reduce: no algorithm 'rign'; there are ring, "),
    ],
)
def test_a_launch_file_that_cannot_be_is_refused(figure: str, value: object, said: str, tmp_path: Path) -> None:
    """A launch file with an unknown algorithm is refused.

    Earlier gloo ran such collectives without a message.
    """
    text = json.loads(small_launch(dp_shard=4).model_dump_json())
    text["process_groups"][0]["collectives"][0][figure] = value
    (tmp_path / "launch.json").write_text(json.dumps(text))
    result = RUNNER.invoke(app, ["run", str(tmp_path / "launch.json"), "--dry-run", "--", "train.py"])
    assert result.exit_code == 2 and said in result.stderr


@pytest.mark.parametrize("algorithm", [*ALGORITHM_NAMES, *EXCHANGES, *PHASES])
def test_all_that_is_predicted_or_runs_may_stand_in_a_launch_file(algorithm: str, tmp_path: Path) -> None:
    text = json.loads(small_launch(dp_shard=4).model_dump_json())
    text["process_groups"][0]["collectives"][0]["algorithm"] = algorithm
    (tmp_path / "launch.json").write_text(json.dumps(text))
    assert read_launch(tmp_path / "launch.json").process_groups[0].collectives[0].algorithm == algorithm


def test_traces_go_where_none_are(launch: Path, tmp_path: Path) -> None:
    command = ["run", str(launch), "--dry-run", "--dumps", str(tmp_path / "dumps"), "--", "train.py"]
    first, second = RUNNER.invoke(app, command).stdout.splitlines()
    assert all(f" SCALEACROSS_DUMPS={tmp_path / 'dumps'} torchrun" in line for line in (first, second))
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "trace_rank_3").touch()
    result = RUNNER.invoke(app, command)
    assert result.exit_code == 2 and "holds the traces of an earlier run: name another folder" in result.stderr


def test_bench_names_the_axes_that_there_are(launch: Path) -> None:
    result = RUNNER.invoke(app, ["bench", str(launch), "--axis", "tp"])
    assert result.exit_code == 2
    assert "no groups of axis 'tp': choose from dp_shard" in result.stderr
    result = RUNNER.invoke(app, ["bench", str(launch), "--op", "reduce"])
    assert "choose from all_reduce, all_gather" in result.stderr


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_it_says_what_to_install(launch: Path) -> None:
    for command in (["run", str(launch), "--local", "--", "train.py"], ["bench", str(launch)]):
        result = RUNNER.invoke(app, command)
        assert result.exit_code == 2
        assert "pip install 'scaleacross[runtime]'" in result.stderr
