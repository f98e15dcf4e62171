"""Each mistake gives one clear message: file, line, column, key, and a fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleacross.catalogue import (
    load_accelerator,
    load_decision,
    load_job,
    load_plan,
    load_plan_or_decision,
    load_topology,
    load_workload,
)
from scaleacross.errors import InputError

JOB = """\
name: j
workload: llama3.1-8b
topology: one_building
sequence_length: 8192
global_batch_sequences: 64
degrees: {tp: 8}
"""
TOPOLOGY = """\
name: t
building_defaults:
  accelerator: h100-sxm
  accelerators_per_host: 8
  hosts_per_rack: 2
  racks_per_zone: 4
  links:
    scale_up: {technology: nvlink4, one_way_latency_us: 1}
    rack: {technology: roce-400g, one_way_latency_us: 3}
    zone: {technology: roce-400g, one_way_latency_us: 7}
    building: {technology: roce-400g, one_way_latency_us: 12, oversubscription_ratio: 7}
regions:
  - name: r
    buildings:
      - {name: a, num_zones: 1}
      - {name: b, num_zones: 2}
trunks:
  - between: [a, b]
    bandwidth_gbit_per_s: 400
    one_way_latency_us: 20
"""
DECISION = """\
job: llama3_8b_one_building
decision:
  degrees: {tp: 8, dp_shard: 64}
  pipeline: {schedule: 1F1B}
  recompute: none
  shard: optimizer
"""


def message(tmp_path: Path, text: str, load: Callable[[Path], Any], name: str = "f.yaml") -> str:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load(path)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_the_templates_are_right(tmp_path: Path) -> None:
    (tmp_path / "j.yaml").write_text(JOB)
    (tmp_path / "t.yaml").write_text(TOPOLOGY)
    assert load_job(tmp_path / "j.yaml").name == "j"
    assert load_topology(tmp_path / "t.yaml").num_accelerators == 192


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "sequence_length:",
            "sequence_lenght:",
            "f.yaml:4:1: key 'sequence_lenght': unknown key; nearest known key: 'sequence_length'",
        ),
        ("sequences: 64", "token: 64", "unknown key; nearest known key: 'global_batch_tokens'"),
        ("{tp: 8}", "{tpp: 8}", "f.yaml:6:11: key 'degrees.tpp': unknown key; nearest known key: 'tp'"),
        ("{tp: 8}", "{tp: -8}", "f.yaml:6:11: key 'degrees.tp': Input should be greater than 0, got -8"),
        ("{tp: 8}", "{tp: many}", "f.yaml:6:11: key 'degrees.tp': Input should be a valid integer"),
        ("{tp: 8}", "{tp: {min: 4, max: 2}}", "f.yaml:6:11: key 'degrees.tp': empty range: min 4 > max 2"),
        ("{tp: 8}", "[8]", "f.yaml:6:1: key 'degrees': Input should be"),
        (
            "sequences: 64",
            "tokens: 9000",
            "f.yaml:1:1: global_batch_tokens 9,000 is no multiple of sequence_length 8,192; nearest: 8,192",
        ),
        ("name: j", "name: a;reboot", "f.yaml:1:1: key 'name': 'a;reboot' is no name"),
        (
            "llama3.1-8b",
            "llama3-8b",
            "f.yaml:2:1: key 'workload': workloads: 'llama3-8b': no file and no name in the catalogue",
        ),
        ("llama3.1-8b", "llama3-8b", "nearest known name: 'llama3.1-8b'"),
        ("llama3.1-8b", "llama3.1", "names that begin so: llama3.1-405b, llama3.1-70b, llama3.1-8b"),
        ("one_building", "./nowhere.yaml", "f.yaml:3:1: key 'topology': topologies: './nowhere.yaml': no such file"),
        ("one_building", "[]", "f.yaml:3:1: key 'topology'"),
        ("one_building", "{name: t}", "f.yaml:3:1: key 'topology.regions': missing"),
    ],
)
def test_job(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in JOB
    assert expected in message(tmp_path, JOB.replace(old, new), load_job)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "latency_us: 20",
            "latency_hours: 20",
            "f.yaml:20:5: key 'trunks.0.one_way_latency_hours': unknown key; unknown unit; "
            "accepted: one_way_latency_s, one_way_latency_us, one_way_latency_ms",
        ),
        ("latency_us: 20", "latancy_us: 20", "nearest known key: 'one_way_latency_us'"),
        (
            "latency_us: 20",
            "latency_us: -20",
            "f.yaml:20:5: key 'trunks.0.one_way_latency_us': Input should be greater than or equal to 0, got -20",
        ),
        ("latency_us: 20", "latency_us: 20\n    one_way_latency_ms: 1", "'one_way_latency_s' is stated twice"),
        ("latency_us: 20", "latency_us: .nan", "f.yaml:20:5: key 'trunks.0.one_way_latency_us'"),
        (
            "    one_way_latency_us: 20\n",
            "",
            "f.yaml:18:5: key 'trunks.0.one_way_latency_s': missing (or one_way_latency_us, one_way_latency_ms)",
        ),
        (
            "oversubscription_ratio: 7",
            "oversubscription_ratio: 0.5",
            "f.yaml:11:63: key 'regions.0.buildings.0.links.building.oversubscription_ratio': "
            "Input should be greater than or equal to 1, got 0.5",
        ),
        (
            "roce-400g, one_way_latency_us: 7",
            "roce-4000g, one_way_latency_us: 7",
            "f.yaml:10:12: key 'building_defaults.links.zone.technology': networks: 'roce-4000g'",
        ),
        (
            "num_zones: 2",
            "num_zones: 2, num_hosts: 9",
            "f.yaml:16:9: key 'regions.0.buildings.1': building 'b': state exactly one of num_zones and num_hosts",
        ),
        ("num_zones: 2", "num_hosts: 1250000", "10,000,064 accelerators; at most 1,048,576"),
        ("between: [a, b]", "between: [a, c]", "no building 'c'; there are ['a', 'b']"),
        (
            "\n      - {name: a, num_zones: 1}\n      - {name: b, num_zones: 2}\n",
            " []\n",
            "f.yaml:14:5: key 'regions.0.buildings': Tuple should have at least 1 item",
        ),
        ("{name: b,", "{name: a,", "two buildings are called 'a'"),
        ("building_defaults:", "building_default:", "unknown key; nearest known key: 'building_defaults'"),
    ],
)
def test_topology(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in TOPOLOGY
    assert expected in message(tmp_path, TOPOLOGY.replace(old, new), load_topology)


def test_mistake_in_the_defaults_is_told_once(tmp_path: Path) -> None:
    text = message(tmp_path, TOPOLOGY.replace("oversubscription_ratio: 7", "oversubscription: 7"), load_topology)
    assert text.count("unknown key") == 1
    assert text.startswith("f.yaml:11:63: ")


def test_many_errors_are_listed_up_to_a_cap(tmp_path: Path) -> None:
    text = message(tmp_path, "name: x\n" + "".join(f"k{i}: 1\n" for i in range(20)), load_accelerator)
    lines = text.splitlines()
    assert lines[0] == "f.yaml: 31 errors"
    assert len(lines) == 1 + 8 + 1
    assert lines[-1] == "  ... and 23 more"


def test_error_in_a_referenced_file_names_both(tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text("bandwidth_gbyte_per_s: -1\nefficiency_fraction: 0.9\n")
    text = message(tmp_path, TOPOLOGY.replace("nvlink4", "./slow.yaml"), load_topology)
    outer = "f.yaml:8:16: key 'building_defaults.links.scale_up.technology': "
    assert text.startswith(outer + "slow.yaml:1:1: key 'bandwidth_gbyte_per_s': Input should be greater than 0, got -1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a list\n", "a mapping (key: value) is expected at the top, not a list"),
        ("just words\n", "a mapping (key: value) is expected at the top, not a str"),
    ],
)
def test_no_mapping(tmp_path: Path, text: str, expected: str) -> None:
    for load in (load_job, load_topology, load_workload, load_accelerator):
        assert expected in message(tmp_path, text, load)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: x\n", "key 'family' is missing; families: dense_transformer, moe_transformer"),
        (
            "family: dense_transformr\n",
            "f.yaml:1:1: no family 'dense_transformr'; nearest known family: 'dense_transformer'",
        ),
        ("family: [1]\n", "no family '[1]'"),
        ("model_type: bert\n", "f.yaml: model_type 'bert' is not read"),
        (
            "family: moe_transformer\nattention: {kind: gqa, num_kv_head: 3}\n",
            "f.yaml:2:24: key 'attention.num_kv_head': unknown key; nearest known key: 'num_kv_heads'",
        ),
    ],
)
def test_workload(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in message(tmp_path, text, load_workload)


def test_decision(tmp_path: Path) -> None:
    good = DECISION
    (tmp_path / "good.yaml").write_text(good)
    job, decision = load_decision(tmp_path / "good.yaml")
    assert (job.name, decision.degrees.world_size) == ("llama3_8b_one_building", 512)
    wrong = good.replace("1F1B", "1F1BB")
    expected = "f.yaml:4:14: key 'decision.pipeline.schedule': Input should be 'GPipe', '1F1B', 'Interleaved1F1B', "
    found = message(tmp_path, wrong, load_plan_or_decision)
    assert expected in found and "got '1F1BB'" in found
    ep = good.replace("dp_shard: 64", "dp_shard: 64, ep: 3")
    assert "key 'decision.degrees': ep 3 must divide dp_shard 64" in message(tmp_path, ep, load_decision)
    unknown_job = good.replace("job: llama3_8b_one_building", "job: llama")
    assert "f.yaml:1:1: key 'job': jobs: 'llama': no file" in message(tmp_path, unknown_job, load_decision)


def test_neither_plan_nor_decision(tmp_path: Path) -> None:
    assert "this is a job: use 'scaleacross plan'" in message(tmp_path, JOB, load_plan_or_decision)
    assert "the plan is of schema_version 2; this release reads 1" in message(
        tmp_path, '{"schema_version": 2}', load_plan, "plan.json"
    )


@pytest.mark.parametrize("ref", ["", "a\nb", "x" * 5000, "/nope/x.yaml", ".", "\x00"])
def test_reference_to_nothing(ref: str) -> None:
    for load in (load_job, load_topology, load_workload, load_accelerator, load_decision, load_plan):
        with pytest.raises(InputError):
            load(ref)


@pytest.mark.heavy
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "workload", "topology", "degrees", "tp", "min", "regions", "buildings", "x"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_mapping_is_read_or_refused(data: Any) -> None:
    for load in (load_job, load_topology, load_workload):
        with pytest.raises(InputError):
            load(data)
