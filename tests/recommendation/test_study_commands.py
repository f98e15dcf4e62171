"""``sweep``, ``emit`` and ``simulate`` on recommendation jobs: their output and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scaleacross.api import plan_recommendation, simulate_recommendation, sweep
from scaleacross.catalogue import load_recommendation_job
from scaleacross.cli import app
from scaleacross.errors import InputError
from scaleacross.simulation.table_step import sent_bytes
from scaleacross.spec.simulation import SimulatedTables
from scaleacross.spec.topology import Topology
from scaleacross.workloads.recommendation import Dlrm

JOB: dict[str, Any] = {
    "name": "small",
    "workload": "synthetic-tiny",
    "topology": "zionex_128",
    "num_accelerators": 8,
    "global_batch_samples": 524288,
}
STUDY: dict[str, Any] = {"name": "tables", "base": [JOB], "time_limit_s": 1, "gap_tolerance": 0.1}


def test_sweep_has_a_row_per_point_and_says_what_was_refused(tmp_path: Path) -> None:
    study = tmp_path / "study.json"
    study.write_text(json.dumps({**STUDY, "grid": {"num_accelerators": [8, 300]}}))
    run = CliRunner().invoke(app, ["sweep", str(study), "-j", "1", "-o", str(tmp_path / "out")])
    assert run.exit_code == 0, run.output
    said = " ".join(run.output.split())
    assert "samples/s" in said and "MFU" not in said and "has 128; ask for fewer" in said
    again = sweep(
        {**STUDY, "grid": {"num_accelerators": [8], "table_precision": ["fp32", "fp16"]}}, directory=tmp_path / "out"
    )
    full, half = again.rows
    assert again.best is half and half["samples_per_s"] > full["samples_per_s"]
    assert full["accelerators"] == 8 and full["dense"] + full["fused"] == 55


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"base": [JOB, "llama3_405b_region"]}, "no speed in common"),
        ({"work_limit": 5}, "give recommendation jobs time_limit_s"),
        ({"grid": {"num_acelerators": [8]}}, "num_accelerators"),
    ],
)
def test_studies_that_are_wrong(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sweep({**STUDY, **fields})


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    (folder / "job.json").write_text(json.dumps(JOB))
    options = ["--time-limit", "1", "--gap", "0.1", "-o", str(folder), "--quiet"]
    run = CliRunner().invoke(app, ["plan", str(folder / "job.json"), *options])
    assert run.exit_code == 0, run.output
    return folder / "plan.json"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "nccl"], "is written for launch, torchrec"),
        (["--to", "launch", "--slurm-partition", "h100"], "of language models"),
    ],
)
def test_emit_refuses_what_a_plan_has_no_place_for(plan_file: Path, options: list[str], message: str) -> None:
    run = CliRunner().invoke(app, ["emit", str(plan_file), *options])
    assert run.exit_code == 2 and message in " ".join(run.output.split())


def test_emit_writes_what_plan_writes(plan_file: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["emit", str(plan_file), "--to", "torchrec,launch", "-o", str(tmp_path)])
    assert run.exit_code == 0, run.output
    for name in ("torchrec/sharding_plan.json", "torchrec/sharding_plan.py", "launch.json"):
        assert (tmp_path / name).read_text() == (plan_file.parent / name).read_text()


def test_simulate_states_the_difference(plan_file: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["simulate", str(plan_file), "-o", str(tmp_path)])
    assert run.exit_code == 0, run.output
    step = SimulatedTables.model_validate_json((tmp_path / "simulation.json").read_text())
    assert step.step_s == pytest.approx(sum(one.seconds for one in step.phases))
    assert "its estimate is" in run.output and abs(step.difference) < 0.25
    slow = simulate_recommendation(plan_file, what_if=["straggler=3:2"])
    thin = simulate_recommendation(plan_file, what_if=["slow=scale_up:0.25"])
    assert slow.step_s > step.step_s and thin.step_s > 2 * step.step_s


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gantt"], "--gantt is of language models"),
        (["--what-if", "jitter=0.1"], "of tables there are straggler"),
        (["--what-if", "straggler=8:2"], "there is no rank 8"),
        (["--what-if", "fast=1"], "choose from straggler"),
    ],
)
def test_simulate_refuses(plan_file: Path, options: list[str], message: str) -> None:
    run = CliRunner().invoke(app, ["simulate", str(plan_file), *options])
    assert run.exit_code == 2 and message in " ".join(run.output.split())


def test_bytes_of_the_simulation_are_those_of_the_exchange() -> None:
    """Bytes of the simulation are those of the exchange.

    One whole table is on rank 1 of two. 64 samples of 8 columns in fp32 go both ways, and nothing else.
    """
    job = {
        **JOB,
        "workload": {"name": "one", "tables": [{"name": "t", "rows": 100, "dimension": 8}]},
        "num_accelerators": 2,
        "global_batch_samples": 64,
        "shardings": ["table_wise"],
    }
    plan = plan_recommendation(load_recommendation_job(job)[0], time_limit_s=1)
    sent = sent_bytes(plan, Dlrm.model_validate(plan.job.workload))
    (holder,) = plan.decision.tables[0].ranks
    assert sent.back[holder] == sent.vectors[None][holder] == 64 * 8 * 4 and sent.back[1 - holder] == 0
    assert sent.stored[holder] == 100 * 8 * 4 and sent.row_wise == sent.copies == 0
    # look-ups, two launches with one way each, half of the bytes over the port, both ways
    building = Topology.model_validate(plan.job.topology).buildings[0]
    link = building.links.scale_up
    rate = link.technology.bandwidth_bytes_per_s * link.technology.efficiency_fraction
    fixed = building.accelerator.collective_start_s + link.one_way_latency_s
    expected = plan.ranks[holder].lookup_s + 2 * (fixed + 64 * 8 * 4 / 2 / rate)
    assert simulate_recommendation(plan).step_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("ranks", [8, 64])
def test_dense_gradients_and_vectors_share_links_in_estimate_and_simulation(ranks: int) -> None:
    """Dense gradients and vectors share links in estimate and simulation.

    On 64 A100 the all-reduce of 64 MB takes about as long as the vectors. An estimate that overlaps it is 40 % too
    short.
    """
    job = {**JOB, "workload": "mlperf-dlrm-dcnv2", "num_accelerators": ranks, "global_batch_samples": 65536}
    plan = plan_recommendation(load_recommendation_job(job)[0], time_limit_s=3, gap_tolerance=0.05)
    assert plan.cost.all_reduce_s > 0.05 * plan.cost.step_s
    assert abs(simulate_recommendation(plan).difference) < 0.2
