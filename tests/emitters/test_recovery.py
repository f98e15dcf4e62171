"""Recovery settings: the order of time-outs for any step and any restart, and names that their readers have."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emitters.plans import make_plan
from interpreters import python_with
from scaleacross.emitters import emit, recovery
from scaleacross.emitters.kubernetes import render as kubernetes
from scaleacross.errors import EmitError
from scaleacross.spec.goodput import FaultModel, Goodput
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.plan import Plan

TWO_UNITS = Degrees(tp=2, cp=1, pp=1, dp_shard=2, dp_replicate=2)


def with_failures(units: int = 2, restart_s: float = 600.0, mtbf_s: float | None = 86_400.0) -> Plan:
    model = FaultModel(
        num_units=units,
        recover_s=restart_s,
        restart_s=restart_s,
        stall_s=30.0,
        unit_loss=1 / units,
        checkpoint_interval_s=900.0,
    )
    found = Goodput(
        goodput_fraction=0.9,
        useful_tokens_per_s=1.0,
        mtbf_s=mtbf_s,
        lost={},
        model=model,
        policy="shrink",
        batch_policy="shrink",
        hosts_in_repair=0.4,
        spares_advised=3,
        at_published_rates=(),
        assumed={},
    )
    return make_plan(TWO_UNITS, num_micro_batches=1).model_copy(update={"goodput": found})


@given(st.floats(1e-3, 5e3), st.floats(0.0, 5e4), st.floats(0.0, 1e4), st.integers(1, 64))
def test_every_time_out_is_longer_than_the_one_before_and_than_what_it_waits_for(
    step_s: float, restart_s: float, collective_s: float, units: int
) -> None:
    plan = with_failures(units, restart_s)
    slow = [one.model_copy(update={"time_s": collective_s}) for one in plan.collectives]
    cost = plan.cost.model_copy(update={"step_s": step_s})
    times = recovery.timeouts(plan.model_copy(update={"collectives": slow, "cost": cost}), plan.goodput)  # type: ignore[arg-type]
    assert list(times) == sorted(set(times))
    assert times.quorum_s > step_s and times.train_s >= step_s + 10 * collective_s * (
        collective_s > 0 and len(slow) > 0
    )
    assert times.init_s >= restart_s


def test_files_of_two_units_say_the_same() -> None:
    files = recovery.render(with_failures())
    facts, times = (
        json.loads(files["recovery/recovery.json"]),
        recovery.timeouts(with_failures(), with_failures().goodput),
    )  # type: ignore[arg-type]
    assert facts["timeouts_s"] == times._asdict() and facts["spare_hosts"] == 3
    assert f"TORCHFT_TIMEOUT_SEC={times.train_s}\n" in files["recovery/torchft.env"]
    assert f"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC={times.watchdog_s}\n" in files["recovery/nccl.env"]
    assert "--fault_tolerance.min_replica_size=2\n" in files["recovery/torchtitan.args"]
    join = re.search(r"--join_timeout_ms (\d+)", files["recovery/lighthouse.sh"])
    assert join and int(join[1]) < 1000 * times.quorum_s
    assert "SPARE_HOSTS=3" in files["recovery/slurm.env"] and shlex.split(files["recovery/slurm.env"], comments=True)


def test_one_unit_has_nobody_to_go_on_with() -> None:
    files = recovery.render(with_failures(1))
    assert "recovery/torchft.env" not in files and "fault_tolerance" not in files["recovery/torchtitan.args"]


def test_a_plan_that_knows_no_failures_is_refused_with_the_way_out() -> None:
    with pytest.raises(EmitError, match=r"reliability: \{\}"):
        recovery.render(make_plan(TWO_UNITS))


def test_a_jobset_restarts_as_often_as_failures_are_expected() -> None:
    for plan, expected in ((make_plan(TWO_UNITS), 3), (with_failures(), 33), (with_failures(mtbf_s=None), 3)):
        policy = json.loads(kubernetes(plan)["kubernetes/jobset.json"])["spec"]["failurePolicy"]
        assert policy == {"maxRestarts": expected}


READ_SETTINGS = """
import dataclasses, json, sys
from torchtitan.config import ConfigManager
from torchtitan.experiments.torchft.config.job_config import FaultTolerance
words = json.loads(sys.argv[1])
known = {field.name for field in dataclasses.fields(FaultTolerance)}
ours = {word[2:].partition("=")[0].partition(".")[2] for word in words if word.startswith("--fault_tolerance.")}
config = ConfigManager().parse_args(
    ["--module", "scaleacross_plan", "--config", "train", *(w for w in words if not w.startswith("--fault_tolerance."))]
)
print(json.dumps([sorted(ours - known), config.comm.init_timeout_seconds, config.comm.train_timeout_seconds,
                  config.checkpoint.enable, config.checkpoint.interval]))
"""


@pytest.mark.consumer
def test_torchtitan_reads_the_settings(tmp_path: Path) -> None:
    plan = with_failures()
    emit(plan, "torchtitan", tmp_path)
    words = recovery.render(plan)["recovery/torchtitan.args"].split()
    done = subprocess.run(
        [python_with("torchtitan"), "-c", READ_SETTINGS, json.dumps(words)],
        cwd=tmp_path / "torchtitan",
        env={"PATH": os.environ.get("PATH", ""), "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "torchtitan")},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(recovery.render(plan)["recovery/recovery.json"])
    times = facts["timeouts_s"]
    assert json.loads(done.stdout.splitlines()[-1]) == [
        [],
        times["init_s"],
        times["train_s"],
        True,
        facts["checkpoint_interval_steps"],
    ]
