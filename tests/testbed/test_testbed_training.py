"""A job from calibration to losses in emulated buildings: one small setting, as a user runs it. Needs torch and privileges."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from emulated import EXAMPLES, needs_testbed, scaleacross

pytest.importorskip("torch", reason="ranks train with torch (pip install 'scaleacross[runtime]')")
pytestmark = needs_testbed

NAME = f"r{os.getpid()}"


def test_run_trains_both_plans_with_equal_losses_and_leaves_nothing(tmp_path: Path) -> None:
    job = str(EXAMPLES / "job.yaml")
    small = ("--set", "sequence_length=64", "--steps", "4", "--name", NAME, "-o", str(tmp_path), "--json")
    done = scaleacross("testbed", "run", job, *small)
    assert done.returncode == 0, done.stderr
    (setting,) = json.loads(done.stdout)["settings"]
    ours, production = setting["plans"]
    assert ours["across"] == "pp" and production["across"] == "dp_replicate"
    for mine, theirs in zip(ours["losses"], production["losses"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3)
    assert ours["losses"][-1] < ours["losses"][0] and len(ours["losses"]) == 5
    assert all(plan["measured_s"] > 0.01 and plan["predicted_s"] > 0.01 for plan in (ours, production))
    assert json.loads((tmp_path / "ours" / "launch.json").read_text())["world_size"] == 4
    assert NAME not in scaleacross("testbed", "status").stdout


def test_collectives_are_right_and_thin_trunks_tell_algorithms_apart() -> None:
    done = scaleacross(
        "testbed", "collectives", str(EXAMPLES / "two_buildings.yaml"), "--quick", "--name", NAME, "--json"
    )
    assert done.returncode == 0, done.stderr
    (setting,) = json.loads(done.stdout)["settings"]
    rows = {row["name"]: row for row in setting["rows"]}
    plain = [row for name, row in rows.items() if "int8" not in name]
    assert all(row["error_fraction"] == 0 for row in plain)
    assert 0 < rows["hierarchical(ring, ring) in 4, int8_block"]["error_fraction"] < 0.02
    assert rows["ring, buildings taking turns"]["measured_s"] > 1.5 * rows["ring"]["measured_s"]
