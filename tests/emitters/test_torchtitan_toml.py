"""The TOML file for torchtitan 0.2.2 is written if that version can run the plan; otherwise a message says why not."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from plans import llama3_8b, make_plan

from interpreters import python_with
from scaleacross.emitters import EMITTERS, emit
from scaleacross.emitters.torchtitan_toml import FILE
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.plan import Plan
from scaleacross.workloads.identity import Rope

CASES: dict[str, tuple[Degrees, dict[str, Any]]] = {
    "interleaved": (
        Degrees(tp=2, pp=2, dp_shard=2),
        {"schedule": "Interleaved1F1B", "num_chunks": 2, "recompute": "full"},
    ),
    "sharded": (Degrees(dp_shard=8, dp_replicate=2), {"shard": "parameters"}),
    "context": (Degrees(cp=2, dp_shard=4), {"shard": "parameters", "context_exchange": "gather"}),
}


def plan(case: str, **changes: Any) -> Plan:
    degrees, settings = CASES[case]
    return make_plan(degrees, **{**settings, **changes})


@pytest.mark.parametrize("case", CASES)
def test_the_file_holds_the_plan(case: str) -> None:
    made = plan(case)
    data = tomllib.loads(EMITTERS["torchtitan"](made)[f"torchtitan/{FILE}"])
    parallel = data["parallelism"]
    assert parallel["tensor_parallel_degree"] == made.degrees.tp
    assert parallel["context_parallel_degree"] == made.degrees.cp
    assert data["model"] == {"name": "llama3", "flavor": "8B", "hf_assets_path": "./assets/hf"}
    assert data["training"]["global_batch_size"] == made.job.global_batch_sequences
    modules = [module for part in parallel.get("module_fqns_per_model_part", [["output"]]) for module in part]
    assert modules[-1] == "output" and "lm_head" not in modules


def test_a_loss_in_pieces_is_refused_for_0_2_2() -> None:
    files = EMITTERS["torchtitan"](plan("sharded", kept={"by": "pytorch", "loss_chunks": 8}))
    assert f"torchtitan/{FILE}" not in files
    assert "ChunkedLossWrapper" in files["torchtitan/scaleacross_plan.py"]
    assert "set kept.loss_chunks: 1" in files["torchtitan/run_node.sh"]


def test_what_0_2_2_cannot_run_is_refused_by_the_script(tmp_path: Path) -> None:
    other = llama3_8b().model_copy(update={"rope": Rope(base=10_000.0)})
    made = plan("sharded", workload=other)
    emit(made, "torchtitan", tmp_path)
    folder = tmp_path / "torchtitan"
    assert not (folder / FILE).exists()
    done = started(folder, "0.2.2")
    assert (
        done.returncode == 2
        and "torchtitan 0.2.2: llama3 8B has ComplexRoPE.theta 500000.0, not 10000.0" in done.stderr
    )


@pytest.mark.parametrize(("version", "words"), [("0.2.2", f"--job.config_file .*{FILE}"), ("0.3.0", "--module")])
def test_the_version_chooses_the_file(version: str, words: str, tmp_path: Path) -> None:
    emit(plan("sharded"), "torchtitan", tmp_path)
    done = started(tmp_path / "torchtitan", version)
    assert done.returncode == 0, done.stderr
    assert words.partition(" ")[0] in done.stdout


def started(folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    """run_node.sh on the first host, with echo for torchrun."""
    first = next(
        line.split()[0] for line in (folder / "hosts.txt").read_text().splitlines() if not line.startswith("#")
    )
    env = {**os.environ, "TORCHRUN": "echo", "NODE_NAME": first, "TORCHTITAN_VERSION": version}
    return subprocess.run(["bash", str(folder / "run_node.sh")], env=env, capture_output=True, text=True, check=False)


READ = """
import json, sys
from dataclasses import asdict
from torchtitan.config import ConfigManager
from torchtitan.protocols.train_spec import get_train_spec
config = ConfigManager().parse_args(["--job.config_file", sys.argv[1]])
flavor = get_train_spec(config.model.name).model_args[config.model.flavor]
own = {"layers": flavor.n_layers, "theta": flavor.rope_theta, "eps": flavor.norm_eps}
print("READ", json.dumps({"config": asdict(config), **own}))
"""


@pytest.mark.consumer
@pytest.mark.parametrize("case", CASES)
def test_torchtitan_0_2_2_reads_it(case: str, tmp_path: Path) -> None:
    python = python_with("torchtitan")
    older = os.environ.get("SCALEACROSS_TORCHTITAN_0_2", str(Path(python).parents[1] / "torchtitan-0.2.2"))
    if not Path(older).is_dir():
        pytest.skip(f"torchtitan 0.2.2 is not at {older}: SCALEACROSS_TORCHTITAN_0_2 names its folder")
    emit(plan(case), "torchtitan", tmp_path)
    path = tmp_path / "torchtitan" / FILE
    environ = {"PYTHONPATH": older, "PATH": os.environ.get("PATH", ""), "HOME": str(tmp_path)}
    done = subprocess.run(
        [python, "-c", READ, str(path)], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    read = json.loads(done.stdout.split("READ ")[1])
    assert (read["layers"], read["theta"], read["eps"]) == (32, 500000, 1e-05)
    for table, values in tomllib.loads(path.read_text()).items():
        assert {name: read["config"][table][name] for name in values} == values
