"""From a job to losses, traces and a diagnosis: plan, run, bench and diagnose, as a user would."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

from fault_cases import example
from launch_configs import small_launch

from scaleacross.spec.framework import Optimizer
from scaleacross.spec.parallelism import PipelineChoice

ROOT = Path(__file__).parents[2]


def scaleacross(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", "from scaleacross.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT, env=dict(os.environ))


JOB = "examples/two_small_buildings/job.yaml"
ALLOWED_ERROR = 0.05
NARROW_TRUNK = ("--set", "topology.trunks.0.bandwidth_gbit_per_s=1")
REPLICAS = ("--set", "degrees={tp: 1, cp: 1, pp: 1, dp_shard: 1}")


def losses_of(launch: str, folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> list[float]:
    """Losses of eight steps of the example."""
    out = folder / "losses.txt"
    trained = scaleacross(
        "run", launch, "--local", *options, "--", "examples/train.py", "--steps", "8", "--losses", str(out), *arguments
    )
    assert trained.returncode == 0, trained.stderr
    return [float(line) for line in out.read_text().splitlines()]


def bytes_of_a_step(dumps: Path, rank: int, steps: int) -> dict[tuple[str, str], float]:
    """(axis, operation) -> bytes of it that a rank's trace holds, a step."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for entry in pickle.loads((dumps / f"trace_rank_{rank}").read_bytes())["entries"]:
        found[entry["process_group"][1], entry["scaleacross"]["op"]] += entry["scaleacross"]["bytes"] / steps
    return found


@pytest.mark.parametrize(
    "settings",
    [
        ("degrees.pp=2",),
        ("degrees.pp=1", "degrees.dp_shard=2", "shard=[gradients]", "optimizer.reduce_bytes=2"),
    ],
)
def test_the_bytes_that_run_are_those_that_were_estimated(settings: tuple[str, ...], tmp_path: Path) -> None:
    """The bytes of a run equal those of the plan.

    Layer norms are excluded, because the plan does not count them: 0.1 % of the parameters.
    """
    sets = [word for one in (*settings, "micro_batch_sequences=2") for word in ("--set", one)]
    planned = scaleacross("plan", JOB, *sets, "-o", str(tmp_path))
    assert planned.returncode == 0, planned.stderr
    launch, dumps = tmp_path / "launch.json", tmp_path / "dumps"
    losses_of(str(launch), tmp_path, options=("--dumps", str(dumps)))
    ran = bytes_of_a_step(dumps, 0, steps=8)
    for groups in json.loads(launch.read_text())["process_groups"]:
        for estimated in groups["collectives"]:
            expected = estimated["bytes_per_rank"] * estimated["per_step"]
            assert ran[groups["axis"], estimated["op"]] == pytest.approx(expected, rel=2e-3), estimated["name"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"precision": "fp8"}, "precision fp8; plan with --set 'precision=bf16'"),
        ({"shard": "parameters"}, "shard parameters under a pipeline; plan with --set 'shard=[none,optimizer]'"),
        ({"recompute": "selective"}, "recompute selective; plan with --set 'recompute=[none,full]'"),
        ({"optimizer": Optimizer(parameter_bytes=4)}, "4 bytes; plan with --set 'optimizer.parameter_bytes=2'"),
        ({"embedding": object()}, "a plan of a recommendation model: examples/train_dlrm.py trains it"),
        ({"pipeline": PipelineChoice(schedule="ZBVZeroBubble", num_chunks=2)}, "--set 'schedules=[GPipe,1F1B]'"),
    ],
)
def test_what_the_example_cannot_run_as_estimated_is_refused(change: dict[str, Any], said: str) -> None:
    """The example refuses settings that would run another job than the planned one.

    They are fp32, and one reduction per step instead of one per micro-batch.
    """
    launch, refuse = small_launch(pp=2, dp_shard=2), example().refuse_what_is_not_here
    refuse(launch)
    with pytest.raises(SystemExit, match=re.escape(said)):
        refuse(launch.model_copy(update=change))


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
    assert result["host"] == socket.gethostname()
    assert result["algorithm"] == "ring" and [row["num_wrong"] for row in result["rows"]] == [0, 0]
    assert any(row["predicted_s"] for row in result["rows"])
    wrong = scaleacross("bench", launch, "--op", "reduce_scatter", "--algorithm", "rings")
    assert wrong.returncode == 2 and "choose from" in wrong.stderr and "torchrun" not in wrong.stderr


def test_gradients_travel_in_the_codec_that_the_plan_chose(tmp_path: Path) -> None:
    """Gradients use the codec that the plan chose over a link of 1 Gbit/s between buildings.

    Losses are as close to those without a codec as the plan says for gradients.
    """
    asked = ("--set", f"network.compression.max_relative_error={ALLOWED_ERROR}")
    planned = scaleacross("plan", JOB, *REPLICAS, *NARROW_TRUNK, *asked, "-o", str(tmp_path))
    assert planned.returncode == 0, planned.stderr
    launch = tmp_path / "launch.json"
    (groups,) = json.loads(launch.read_text())["process_groups"]
    (codec,) = [choice["compression"] for choice in groups["network"]]
    assert codec["levels"] == ["campus"] and 0 < codec["relative_error"] <= ALLOWED_ERROR
    coded = losses_of(str(launch), tmp_path, options=("--dumps", str(tmp_path / "dumps")))
    plain = losses_of(str(launch), tmp_path, "--backend", "gloo")
    assert coded != plain, "the codec changed nothing"
    assert coded == pytest.approx(plain, rel=codec["relative_error"])
    assert coded[0] == pytest.approx(plain[0], rel=1e-6), (
        "the first loss precedes all gradients, so the codec must not change it"
    )
    for rank in range(4):
        entries = pickle.loads((tmp_path / "dumps" / f"trace_rank_{rank}").read_bytes())["entries"]
        sums = [entry for entry in entries if entry["scaleacross"]["op"] == "all_reduce"]
        ratios = {entry["scaleacross"]["compression_ratio"] for entry in sums if entry["input_sizes"] != [[1]]}
        assert ratios and all(ratio == pytest.approx(codec["ratio"], rel=0.01) for ratio in ratios)


KILLED = """
import os, signal, torch, torch.distributed as dist
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE, read_launch
from scaleacross.runtime.start import rank_of_process, start
start(read_launch(os.environ[LAUNCH_VARIABLE]), rank_of_process(), timeout_s=60)
for step in range(5):
    if step == 3 and dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1 << 16))
"""


def test_a_killed_rank_is_named_from_the_traces_of_the_others(tmp_path: Path) -> None:
    planned = scaleacross("plan", JOB, *REPLICAS, "-o", str(tmp_path))
    assert planned.returncode == 0, planned.stderr
    program, dumps, launch = tmp_path / "killed.py", tmp_path / "dumps", str(tmp_path / "launch.json")
    program.write_text(KILLED)
    ran = scaleacross("run", launch, "--local", "--dumps", str(dumps), "--", str(program))
    assert ran.returncode == 1 and f"scaleacross diagnose {dumps}" in ran.stderr
    assert sorted(path.name for path in dumps.iterdir()) == [f"trace_rank_{rank}" for rank in (0, 1, 3)]
    root = json.loads(scaleacross("diagnose", str(dumps), "--json").stdout)["root"]
    assert (root["verdict"], root["ranks"], root["num_victims"]) == ("process_dead", [2], 3)
    again = scaleacross("run", launch, "--local", "--dumps", str(dumps), "--", str(program))
    assert again.returncode == 2 and "holds the traces of an earlier run" in again.stderr


ENDLESS = """
import os, pathlib, sys, torch, torch.distributed as dist
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE, read_launch
from scaleacross.runtime.start import rank_of_process, start
start(read_launch(os.environ[LAUNCH_VARIABLE]), rank_of_process(), timeout_s=60)
dist.all_reduce(torch.ones(1))
pathlib.Path(sys.argv[1], f"{os.getpid()}.pid").touch()
while True:
    dist.all_reduce(torch.ones(1))
"""


def test_a_run_that_is_told_to_end_leaves_no_rank_and_all_traces(tmp_path: Path) -> None:
    """A run that gets SIGTERM leaves no rank and all traces.

    SLURM, Kubernetes and ``timeout`` send SIGTERM to the command only.
    """
    planned = scaleacross("plan", JOB, *REPLICAS, "-o", str(tmp_path))
    assert planned.returncode == 0, planned.stderr
    program, dumps = tmp_path / "endless.py", tmp_path / "dumps"
    program.write_text(ENDLESS)
    command = [
        "run",
        str(tmp_path / "launch.json"),
        "--local",
        "--dumps",
        str(dumps),
        "--",
        str(program),
        str(tmp_path),
    ]
    with (tmp_path / "said").open("w") as log:
        starter = [sys.executable, "-c", "from scaleacross.cli import main; main()"]
        running = subprocess.Popen([*starter, *command], stderr=log, cwd=ROOT)
    until = time.monotonic() + 100
    while len(files := [*tmp_path.glob("*.pid")]) < 4 and time.monotonic() < until and running.poll() is None:
        time.sleep(0.1)
    running.terminate()
    running.wait(60)
    left = [pid for pid in (int(file.stem) for file in files) if Path(f"/proc/{pid}").exists()]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    said = (tmp_path / "said").read_text()
    assert len(files) == 4, said
    assert running.returncode > 0 and not left, said
    assert sorted(path.name for path in dumps.iterdir()) == [f"trace_rank_{rank}" for rank in range(4)]
