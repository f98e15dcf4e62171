"""Input that was once misread without a message is now refused or reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scaleacross.catalogue import load_job, load_plan, load_plan_or_decision, load_topology
from scaleacross.catalogue.yaml_source import parse_yaml
from scaleacross.cli import app
from scaleacross.cost_models.pipeline.timed_bounds import max_in_flight
from scaleacross.diagnosis.verdict import diagnosis
from scaleacross.emitters import write_files
from scaleacross.errors import InputError
from scaleacross.spec.diagnosis import UnreadableDump
from scaleacross.spec.trace import RankTrace

BUILDING = {
    "accelerator": "h100-sxm",
    "accelerators_per_host": 8,
    "hosts_per_rack": 2,
    "racks_per_zone": 4,
    "num_hosts": 2,
    "links": {
        level: {"technology": "roce-400g", "one_way_latency_us": 3}
        for level in ("scale_up", "rack", "zone", "building")
    },
}


def topology(*trunks: dict[str, Any], names: tuple[str, ...] = ("a", "b")) -> dict[str, Any]:
    buildings = [{"name": name, **BUILDING} for name in names]
    return {"name": "t", "regions": [{"name": "r", "buildings": buildings}], "trunks": list(trunks)}


LINK = {"between": ["a", "b"], "one_way_latency_us": 20}


def test_a_link_between_buildings_states_its_rate() -> None:
    with pytest.raises(InputError, match="a–b states no rate: add bandwidth_gbit_per_s"):
        load_topology(topology(LINK))
    for rate in ({"bandwidth_gbit_per_s": 400}, {"oversubscription_ratio": 1}):
        assert load_topology(topology(LINK | rate)).trunks


def test_a_link_is_stated_once() -> None:
    link = LINK | {"bandwidth_gbit_per_s": 400}
    with pytest.raises(InputError, match="a–b is stated 2 times"):
        load_topology(topology(link, link | {"between": ["b", "a"]}))


def test_too_many_buildings_are_refused_in_a_sentence() -> None:
    names = tuple(f"b{index}" for index in range(1000))
    chain = [LINK | {"between": [names[i], names[i + 1]], "bandwidth_gbit_per_s": 400} for i in range(len(names) - 1)]
    with pytest.raises(InputError, match="1,000 buildings; at most 128"):
        load_topology(topology(*chain, names=names))


@pytest.mark.parametrize("text", ["0100", "1:30", "0x40", "0b11", "-0100", "1:30.5"])
def test_numbers_that_are_not_decimal_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="write a decimal number"):
        parse_yaml(f"a: {text}", "f.yaml")
    assert parse_yaml(f"a: '{text}'", "f.yaml").data == {"a": text}


@pytest.mark.parametrize(
    ("text", "value"), [("yes", "yes"), ("on", "on"), ("true", True), ("0", 0), ("0.5", 0.5), ("1e9", 1e9)]
)
def test_other_plain_values_keep_their_meaning(text: str, value: object) -> None:
    assert parse_yaml(f"a: {text}", "f.yaml").data == {"a": value}


@pytest.mark.parametrize(
    "override", ["sequence_length=true", "num_accelerators=true", "micro_batch_sequences=[true]", "degrees.tp=true"]
)
def test_true_is_no_number(override: str) -> None:
    with pytest.raises(InputError, match="true"):
        load_job("llama3_8b_one_building", [override])


@pytest.mark.parametrize(
    "override", ["sequence_length=1e20", "sequence_length=300000000", "global_batch_sequences=1000000000000"]
)
def test_sizes_beyond_reason_are_refused(override: str) -> None:
    with pytest.raises(InputError, match=r"less than or equal to|as an integer"):
        load_job("llama3_8b_one_building", [override])


def test_a_schedule_without_a_law_of_memory_is_an_error() -> None:
    with pytest.raises(InputError, match="NewSchedule: its activations in flight are not stated"):
        max_in_flight(np.array(["ZBH1", "NewSchedule"]), 4, 8, 1, 0)


@pytest.mark.parametrize("version", [None, 2, "1", True])
def test_plans_of_other_versions_are_refused_with_the_way_out(tmp_path: Path, version: object) -> None:
    data = {"job": "llama3_8b_one_building", "decision": {}, "report": {}}
    (tmp_path / "plan.json").write_text(json.dumps(data | ({} if version is None else {"schema_version": version})))
    with pytest.raises(InputError, match=r"schema_version.*'scaleacross evaluate .* computes it anew"):
        load_plan(tmp_path / "plan.json")


def test_plans_of_other_versions_migrate_by_their_job_and_decision(tmp_path: Path) -> None:
    decision = {
        "degrees": {"tp": 8, "dp_shard": 2},
        "pipeline": {"schedule": "1F1B"},
        "recompute": "none",
        "shard": "optimizer",
    }
    data = {"job": "llama3_8b_one_building", "decision": decision, "report": {"new": 1}, "schema_version": 7}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    found = load_plan_or_decision(tmp_path / "plan.json")
    assert isinstance(found, tuple)
    assert found[1].degrees.tp == 8


def test_the_root_is_no_place_for_files() -> None:
    with pytest.raises(InputError, match="root of the file system"):
        write_files({"plan.json": "x"}, Path("/tmp/.."))


def test_a_catalogue_that_hides_entries_is_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accelerators").mkdir()
    source = Path(__file__).parents[2] / "configs" / "accelerators" / "h100-sxm.yaml"
    (tmp_path / "accelerators" / "h100-sxm.yaml").write_text(source.read_text())
    monkeypatch.setenv("SCALEACROSS_CONFIGS", str(tmp_path))
    result = CliRunner().invoke(app, ["show", "accelerator", "h100-sxm"])
    assert "hides the bundled accelerators/h100-sxm" in result.stderr


def test_evidence_that_is_not_whole_is_not_all_good() -> None:
    trace = RankTrace(rank=0, world_size=1, operations=(), source="rank0.json", groups={})
    assert diagnosis([trace]).verdict == "not_judged"
    assert diagnosis([trace], [UnreadableDump(file="x", rank=None, reason="cut")]).verdict == "not_judged"


@pytest.mark.parametrize(("stages", "microbatches"), [("100000", "8"), ("8", "1000000"), ("1000", "1000")])
def test_schedules_too_large_to_draw_are_refused(stages: str, microbatches: str) -> None:
    result = CliRunner().invoke(app, ["schedule", "--name", "1F1B", "--stages", stages, "--microbatches", microbatches])
    assert result.exit_code == 2
    assert "are drawn" in result.stderr


QWEN3 = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 4,
    "vocab_size": 512, "rms_norm_eps": 1e-6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**QWEN3, "model_type": "qwen3", "num_hidden_layers": 10**9}, "at most 10,000 layers"),
        (QWEN3, "without model_type"),
    ],
)
def test_a_config_json_is_refused_in_a_sentence(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    quick = ["--model", str(tmp_path / "config.json"), "--gpus", "h100:8", "--tokens", "8K", "--seq", "1024"]
    run = CliRunner().invoke(app, ["plan", *quick])
    assert (run.exit_code, said in run.stderr) == (2, True), run.output


@pytest.mark.parametrize(
    ("options", "said"), [(["-o", "/"], "root of the file system"), (["-o", "x", "--emit", "torchrum"], "'torchrun'?")]
)
def test_places_and_targets_are_refused_before_the_search(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("scaleacross.api.planning.plan", lambda *_, **__: pytest.fail("the search began"))
    run = CliRunner().invoke(app, ["plan", "llama3_8b_one_building", *options])
    assert (run.exit_code, said in run.stderr) == (2, True), run.output


def test_a_plan_is_no_job() -> None:
    with pytest.raises(InputError, match="a plan, not a job"):
        load_job({"job": {}, "decision": {}, "layers_per_stage": [], "name": "x"})
