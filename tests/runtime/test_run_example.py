"""From a job to losses: plan, run and bench, as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

ROOT = Path(__file__).parents[2]


def scaleacross(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", "from scaleacross.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT, env=dict(os.environ))


def test_plan_run_and_bench(tmp_path: Path) -> None:
    planned = scaleacross("plan", "examples/two_small_buildings/job.yaml", "-o", str(tmp_path))
    assert planned.returncode == 0, planned.stderr
    launch = str(tmp_path / "launch.json")
    trained = scaleacross("run", launch, "--local", "--", "examples/train.py", "--steps", "8")
    assert trained.returncode == 0, trained.stderr
    first, *_, last = [float(line.split()[-1]) for line in trained.stdout.splitlines() if line.startswith("step")]
    assert last < first
    timed = scaleacross("bench", launch, "--op", "reduce_scatter", "--min", "1MiB", "--max", "4MiB", "--json")
    assert timed.returncode == 0, timed.stderr
    result = json.loads(timed.stdout)
    assert result["algorithm"] == "ring" and [row["num_wrong"] for row in result["rows"]] == [0, 0]
    assert any(row["predicted_s"] for row in result["rows"])
