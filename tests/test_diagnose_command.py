"""``scaleacross diagnose`` on the command line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import scaleacross as sa
from scaleacross.cli import app


def dumps(directory: Path, world: int = 4, absent: int = 2) -> Path:
    """All ranks but ``absent`` are in the second all_reduce; the first took 2 ms where 1 ms was predicted."""
    directory.mkdir(exist_ok=True)
    begin = 1_700_000_000_000_000_000
    for rank in range(world):
        entries: list[dict[str, Any]] = []
        for number in range(1 if rank == absent else 2):
            done = number == 0
            entries.append(
                {
                    "record_id": number,
                    "process_group": ("0", "default_pg"),
                    "collective_seq_id": number + 1,
                    "p2p_seq_id": 0,
                    "profiling_name": "gloo:all_reduce",
                    "time_created_ns": begin + number * 10_000_000,
                    "input_sizes": [[4]],
                    "output_sizes": [[4]],
                    "input_dtypes": ["Float"],
                    "output_dtypes": ["Float"],
                    "state": "completed" if done else "started",
                    "time_discovered_started_ns": begin + number * 10_000_000 + 1_000,
                    "time_discovered_completed_ns": begin + 2_001_000 if done else None,
                    "scaleacross": {
                        "predicted_s": 0.001,
                        "cursors": {str((rank + 1) % world): [1, 2, 0, 0, 8, 9, 0, 0]},
                    },
                }
            )
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
        content = {"version": "2.10", "pg_config": config, "entries": entries, "host_name": f"host-{rank}"}
        (directory / f"trace_rank_{rank}").write_bytes(pickle.dumps(content))
    return directory


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


def test_the_root_comes_first(tmp_path: Path) -> None:
    result = run(dumps(tmp_path / "dumps"))
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "stuck_outside: a rank issues nothing any more" in lines[0]
    assert "rank 2 (2 on host-2)" in lines[1]
    assert "3 other ranks held up by it" in result.stdout
    assert "7 operations in 4 dumps of 4 ranks; 3 operations stuck on 3 ranks" in result.stdout


def test_json_and_python_say_the_same(tmp_path: Path) -> None:
    directory = dumps(tmp_path / "dumps")
    result = run(directory, "--json")
    found = sa.diagnose(directory)
    assert json.loads(result.stdout) == found.model_dump(mode="json")
    assert found.root is not None and found.root.ranks == (2,)


def test_a_cut_dump_is_listed_and_can_be_the_root(tmp_path: Path) -> None:
    directory = dumps(tmp_path / "dumps")
    (directory / "trace_rank_2").write_bytes((directory / "trace_rank_2").read_bytes()[:100])
    result = run(directory)
    assert "process_dead" in result.stdout and "Dumps that could not be read" in result.stdout
    found = sa.diagnose(directory)
    assert found.root is not None and "rank 2 left a dump that cannot be read" in found.root.explanation
    assert "it ends in the middle" in found.root.explanation


def test_the_perfetto_file_shows_predicted_beside_measured(tmp_path: Path) -> None:
    directory, target = dumps(tmp_path / "dumps"), tmp_path / "trace.json"
    assert "wrote" in run(directory, "--perfetto", target).stderr
    events = json.loads(target.read_text())["traceEvents"]
    rank_0 = [event for event in events if event["ph"] == "X" and event["pid"] == 0]
    measured = next(event for event in rank_0 if event["name"] == "all_reduce #1" and event["cat"] == "completed")
    predicted = next(event for event in rank_0 if event["name"] == "all_reduce #1" and event["cat"] == "predicted")
    assert (measured["dur"], predicted["dur"], measured["ts"]) == (2000.0, 1000.0, predicted["ts"])
    assert measured["args"]["measured_over_predicted"] == 2.0 and measured["args"]["queued_us"] == 1.0
    assert measured["args"]["peer 1"] == "sent 1/2, received 0/0 chunks"
    stuck = [event["pid"] for event in events if event["name"] == "all_reduce #2 (started, never ended)"]
    assert stuck == [0, 1, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dumps", "trace.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such file or directory; give the directory that the ranks dumped into"),
        (["."], "no dump found; a dump's name ends in its rank, like trace_rank_0"),
        (["dumps", "--slow", "0.5"], "slow_ratio is 0.5: a link as fast as predicted has 1, so give more than 1"),
        (["dumps", "--perfetto", "none/x.json"], "none/x.json: cannot be written: No such file or directory"),
    ],
)
def test_errors_say_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    dumps(tmp_path / "dumps")
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2 and message in result.stderr
