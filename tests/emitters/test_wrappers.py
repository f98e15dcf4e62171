"""Wrappers of run_node.sh: submit_ray.py on a real Ray cluster of one node, skypilot.yaml under its bash and its own reader."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from plans import make_plan, two_buildings

from scaleacross.emitters import EMITTERS, emit
from scaleacross.emitters.wrappers import RAY_FILE, SKYPILOT_FILE
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.plan import Plan


def one_building(num_hosts: int = 2) -> Plan:
    topology = two_buildings((4, 1))
    return make_plan(
        Degrees(dp_shard=4 * num_hosts), topology=topology, allocation=[("east", 4 * num_hosts)], shard="parameters"
    )


@pytest.mark.parametrize("target", ["torchrun", "megatron", "torchtitan"])
def test_every_launch_folder_has_them(target: str) -> None:
    files = EMITTERS[target](one_building())
    task = yaml.safe_load(files[f"{target}/{SKYPILOT_FILE}"])
    assert (task["num_nodes"], task["resources"]["accelerators"], task["workdir"]) == (2, "H100:4", "..")
    compile(files[f"{target}/{RAY_FILE}"], RAY_FILE, "exec")
    page = files[f"{target}/SUBMIT.md"]
    assert "sky launch skypilot.yaml" in page and f"python {RAY_FILE}" in page


def test_two_buildings_are_no_task_of_skypilot() -> None:
    files = EMITTERS["torchrun"](make_plan(Degrees(dp_shard=8), topology=two_buildings((1, 1))))
    assert f"torchrun/{SKYPILOT_FILE}" not in files
    assert (
        "skypilot.yaml is not written: a task of SkyPilot stands in one region; this plan uses east, west"
        in files["torchrun/SUBMIT.md"]
    )


def test_a_hostile_name_stays_inside_comments() -> None:
    plan = one_building()
    name = 'x"""\nimport os; os.abort() #'
    hostile = plan.model_copy(update={"job": plan.job.model_copy(update={"name": name})})
    files = EMITTERS["torchrun"](hostile)
    assert "import os; os.abort()" in files[f"torchrun/{RAY_FILE}"].splitlines()[1]
    assert yaml.safe_load(files[f"torchrun/{SKYPILOT_FILE}"])["num_nodes"] == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_skypilots_nodes_take_the_lines_of_hosts_txt(rank: int, tmp_path: Path) -> None:
    """SkyPilot's nodes use the lines of hosts.txt.

    The task's commands run under bash with SkyPilot's variables for each node.
    """
    emit(one_building(), "torchrun", tmp_path)
    task: dict[str, Any] = yaml.safe_load((tmp_path / "torchrun" / SKYPILOT_FILE).read_text())
    env = {**os.environ, **task["envs"], "TORCHRUN": "echo"}
    env |= {"SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.3", "SKYPILOT_NODE_RANK": str(rank)}
    done = subprocess.run(
        ["bash", "-c", task["run"]], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"--nproc-per-node 4 --node-rank {rank} " in done.stdout
    assert "--master-addr 10.0.0.7 " in done.stdout and done.stdout.rstrip().endswith("train.py")


def test_skypilots_task_of_megatron_takes_its_checkout_and_arguments(tmp_path: Path) -> None:
    """SkyPilot's task passes Megatron-LM's checkout and arguments.

    MEGATRON_LM and data once had no way into the task, and an unused PROGRAM was there instead.
    """
    emit(one_building(), "megatron", tmp_path)
    task: dict[str, Any] = yaml.safe_load((tmp_path / "megatron" / SKYPILOT_FILE).read_text())
    assert set(task["envs"]) == {"MEGATRON_LM", "ARGUMENTS"}
    env = {**os.environ, "TORCHRUN": "echo", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.3", "SKYPILOT_NODE_RANK": "1"}
    env |= {"MEGATRON_LM": "/opt/m", "ARGUMENTS": "--lr 1e-4"}
    done = subprocess.run(
        ["bash", "-c", task["run"]], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "/opt/m/pretrain_gpt.py --tensor-model" in done.stdout and done.stdout.rstrip().endswith("--lr 1e-4")


def test_a100_of_40_gb_is_not_that_of_80() -> None:
    topology = two_buildings((4, 1), accelerator_name="a100-40gb")
    plan = make_plan(Degrees(dp_shard=8), topology=topology, allocation=[("east", 8)], shard="parameters")
    task = yaml.safe_load(EMITTERS["torchrun"](plan)[f"torchrun/{SKYPILOT_FILE}"])
    assert task["resources"]["accelerators"] == "A100:4"


READ = "import sky, sys; t = sky.Task.from_yaml(sys.argv[1]); print('READ', t.num_nodes, list(t.resources)[0].accelerators)"


def test_skypilot_reads_its_task(tmp_path: Path) -> None:
    python = os.environ.get("SCALEACROSS_SKYPILOT_PYTHON")
    if not python:
        pytest.skip("SCALEACROSS_SKYPILOT_PYTHON names no interpreter with skypilot")
    emit(one_building(), "torchrun", tmp_path)
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [python, "-c", READ, str(tmp_path / "torchrun" / SKYPILOT_FILE)], cwd=tmp_path / "torchrun",
        env={**os.environ, "HOME": str(tmp_path / "home")}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert re.search(r"READ 2 \{'H100': 4\}", done.stdout), done.stderr[-2000:]


ON_RAY = """
import ray, runpy, sys
start = ray.init
ray.init = lambda **more: start(num_cpus=1, num_gpus=4, include_dashboard=False, **more)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "torchrun", "code", "said"),
    [
        (socket.gethostname(), "echo", 0, "--nproc-per-node 4 --node-rank 0"),
        (socket.gethostname(), "false", 1, "run_node.sh ended with 1"),
        ("elsewhere", "echo", 1, "elsewhere and 0 more are no nodes of this Ray cluster"),
    ],
)
def test_ray_runs_run_node_on_the_named_host(host: str, torchrun: str, code: int, said: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    emit(one_building(1), "torchrun", tmp_path)
    hosts = tmp_path / "torchrun" / "hosts.txt"
    hosts.write_text(hosts.read_text().replace("east-h00000 4", f"{host} 4"))
    done = subprocess.run(
        [sys.executable, "-c", ON_RAY, str(tmp_path / "torchrun" / RAY_FILE), "/mine/train.py", "--steps", "3"],
        env={**os.environ, "TORCHRUN": torchrun}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, (done.stdout + done.stderr)[-3000:]
    assert said in done.stdout + done.stderr
