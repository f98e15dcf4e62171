"""Accelerators without a standard building. The refusal gives the reason and, without bf16, a fix that works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from scaleacross.catalogue import load_accelerator, load_topology
from scaleacross.cli import app

SAID = "has no bf16, in which a job trains unless it says otherwise"


@pytest.mark.parametrize("gpus", ["p100:8", "Tesla-V100S-PCIE-32GB:8", "east=T4:16"])
def test_plan_says_that_the_type_has_no_bf16(gpus: str) -> None:
    done = CliRunner().invoke(
        app, ["plan", "--model", "llama3.1-8b", "--gpus", gpus, "--tokens", "1M", "--seq", "8192"]
    )
    assert done.exit_code == 2 and SAID in " ".join(done.stderr.split()), done.output


def test_import_says_that_the_type_has_no_bf16(tmp_path: Path) -> None:
    source = tmp_path / "topology.conf"
    source.write_text("SwitchName=s1 Nodes=n[1-2]\n")
    options = ["import", "slurm", str(source), "-o", str(tmp_path / "t.yaml"), "--accelerator"]
    refused = CliRunner().invoke(app, [*options, "p100"])
    assert refused.exit_code == 2 and f"p100 {SAID}" in " ".join(refused.stderr.split())
    other = CliRunner().invoke(app, [*options, "z80"])
    assert other.exit_code == 2 and "bf16" not in other.stderr
    assert not (tmp_path / "t.yaml").exists()


@pytest.mark.parametrize(
    ("instance", "said"),
    [("trn2.48xlarge", "Trainium chips are not modelled"), ("p3.16xlarge", "states types v100 16GB")],
)
def test_import_says_why_an_instance_is_not_known(tmp_path: Path, instance: str, said: str) -> None:
    hosts = [{"InstanceId": f"i{at}", "InstanceType": instance, "ZoneId": "a", "NetworkNodes": ["n"]} for at in (1, 2)]
    source = tmp_path / "aws.json"
    source.write_text(json.dumps({"Instances": hosts}))
    refused = CliRunner().invoke(app, ["import", "aws", str(source), "-o", str(tmp_path / "t.yaml")])
    assert refused.exit_code == 2 and said in " ".join(refused.stderr.split()), refused.output


def test_import_counts_gaudis_of_kubernetes(tmp_path: Path) -> None:
    node = {"metadata": {"name": "n1", "labels": {}}, "status": {"allocatable": {"habana.ai/gaudi": "8"}}}
    source, made = tmp_path / "nodes.json", tmp_path / "t.yaml"
    source.write_text(json.dumps({"items": [node]}))
    done = CliRunner().invoke(app, ["import", "kubernetes", str(source), "--accelerator", "gaudi3", "-o", str(made)])
    assert done.exit_code == 0, done.output
    (building,) = load_topology(made).buildings
    assert (building.accelerator.name, building.accelerators_per_host) == ("gaudi3", 8)


def test_the_way_out_is_one(tmp_path: Path) -> None:
    """The fix works: an accelerator with fp16 only has step times for a job of precision fp16."""
    card = load_accelerator("a100-80gb").model_dump(mode="json")
    card |= {"name": "mine", "peak_flop_per_s": {"fp16": 125e12}, "gemm_models": {}, "training_gemm_ratio": {}}
    (tmp_path / "card.yaml").write_text(yaml.safe_dump({**card, "provenance": {}}))
    assert load_accelerator(tmp_path / "card.yaml").peak_flop_per_s == {"fp16": 125e12}
    shown = CliRunner().invoke(app, ["show", "topology", "one_building", "--yaml"])
    topology = yaml.safe_load(shown.stdout)
    for region in topology["regions"]:
        for building in region["buildings"]:
            building["accelerator"] = str(tmp_path / "card.yaml")
    (tmp_path / "topology.yaml").write_text(yaml.safe_dump(topology))
    job = {
        "name": "mine",
        "workload": "llama3.1-8b",
        "topology": str(tmp_path / "topology.yaml"),
        "sequence_length": 8192,
        "global_batch_tokens": 2**20,
        "precision": "fp16",
        "num_accelerators": 16,
        "degrees": {"tp": 8, "pp": 2, "cp": 1},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml"), "--json", "--gap", "0.9"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["cost"]["step_s"] > 0
