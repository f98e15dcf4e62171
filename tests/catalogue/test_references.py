"""Names, paths, folders and mappings; overrides; self-contained jobs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scaleacross.catalogue import load_accelerator, load_job, load_network, load_topology, load_workload, resolve
from scaleacross.errors import InputError
from scaleacross.spec.job import Range
from scaleacross.spec.topology import Topology

NAME = "llama3_405b_two_buildings"


def topology_of(*overrides: str) -> Topology:
    return resolve(load_job(NAME, overrides)).topology


def test_objects_pass_through() -> None:
    for load, name in (
        (load_accelerator, "h100-sxm"),
        (load_network, "nvlink4"),
        (load_topology, "one_building"),
        (load_workload, "llama3.1-8b"),
    ):
        loaded: Any = load(name)  # type: ignore[operator]
        assert load(loaded) is loaded  # type: ignore[operator]


@pytest.mark.parametrize("spelled", ["Qwen/Qwen3-30B-A3B", "Qwen3-30B-A3B", "qwen3_30b_a3b", "qwen3.30b a3b"])
def test_models_go_by_the_names_that_hubs_and_files_give_them(spelled: str) -> None:
    assert load_workload(spelled).name == "qwen3-30b-a3b"


def test_a_name_as_it_stands_comes_before_another_spelling_and_a_file_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = load_path("workloads", "qwen3-8b").read_text()
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "Qwen3-8B.yaml").write_text(text.replace("name: qwen3-8b", "name: Qwen3-8B"))
    monkeypatch.setenv("SCALEACROSS_CONFIGS", str(tmp_path))
    assert [load_workload(name).name for name in ("qwen3-8b", "Qwen3-8B")] == ["qwen3-8b", "Qwen3-8B"]
    (tmp_path / "Qwen").mkdir()
    (tmp_path / "Qwen" / "Qwen3-8B").write_text(text.replace("name: qwen3-8b", "name: of-the-file"))
    monkeypatch.chdir(tmp_path)
    assert load_workload("Qwen/Qwen3-8B").name == "of-the-file"


@pytest.mark.parametrize("spelled", ["{folder}/Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B/", "Qwen"])
def test_a_clone_of_a_model_goes_by_its_directory(
    spelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "Qwen" / "Qwen3-8B"
    clone.mkdir(parents=True)
    config = (Path(__file__).parents[2] / "examples" / "tutorial" / "qwen3_config.json").read_text()
    (clone / "config.json").write_text(config)
    monkeypatch.chdir(tmp_path)
    if spelled == "Qwen":  # a directory without one
        with pytest.raises(InputError, match="no file and no name"):
            load_workload(spelled)
    else:
        assert load_workload(spelled.format(folder=tmp_path)) == load_workload(str(clone / "config.json"))


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "nearest known name: 'llama3.1-8b'"),
        ("mistralai/Mixtral-8x7B-v0.1", "nearest known name: 'mixtral-8x7b'"),
        ("moonshotai/Kimi-K2-Instruct-0905", "nearest known name: 'kimi-k2'"),
        ("Qwen3", "names that begin so: qwen3-0.6b, "),
        ("./qwen3-8b", "no such file; nearest known name: 'qwen3-8b'"),
        ("models/qwen3-8b.yaml", "no such file; nearest known name: 'qwen3-8b'"),
    ],
)
def test_other_models_are_told_the_nearest_name(spelled: str, expected: str) -> None:
    with pytest.raises(InputError, match=re.escape(expected)):
        load_workload(spelled)


def test_paths_in_a_job_are_read_against_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "gpu.yaml").write_text(Path(load_path("accelerators", "h200")).read_text())
    topology = Path(load_path("topologies", "one_building")).read_text()
    (folder / "mine.yaml").write_text(topology.replace("h100-sxm", "./gpu.yaml").replace("name: one_building\n", ""))
    (folder / "job.yaml").write_text(
        "workload: llama3.1-8b\ntopology: mine.yaml\nsequence_length: 8192\nglobal_batch_tokens: 524288\n"
    )
    monkeypatch.chdir("/")
    job = load_job(folder / "job.yaml")
    assert (job.name, job.global_batch_sequences) == ("job", 64)
    problem = resolve(job)
    assert problem.topology.name == "mine"
    assert problem.topology.buildings[0].accelerator.name == "h200"


def load_path(kind: str, name: str) -> Path:
    return Path(__file__).parents[2] / "configs" / kind / f"{name}.yaml"


def test_own_folder_comes_before_the_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / "nvlink4.yaml").write_text("bandwidth_gbyte_per_s: 400\nefficiency_fraction: 0.7\n")
    monkeypatch.setenv("SCALEACROSS_CONFIGS", str(tmp_path))
    assert load_network("nvlink4").bandwidth_bytes_per_s == 400e9
    assert load_network("nvlink5").bandwidth_bytes_per_s == 900e9
    monkeypatch.setenv("SCALEACROSS_CONFIGS", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"SCALEACROSS_CONFIGS=.*is no directory"):
        load_network("nvlink4")


def test_name_defaults_to_the_file_and_is_made_harmless(tmp_path: Path) -> None:
    path = tmp_path / "my net $(x).yaml"
    path.write_text("bandwidth_gbyte_per_s: 400\nefficiency_fraction: 0.7\n")
    assert load_network(path).name == "my-net---x-"


def test_job_of_objects_is_resolved_too() -> None:
    job = load_job(NAME)
    built = job.model_copy(update={"workload": "llama3.1-8b", "topology": "one_building"})
    assert resolve(built).profile.total_parameters == 8_030_261_248
    assert load_job(built).topology == load_topology("one_building").model_dump(mode="json")
    assert load_job(job, {"degrees.pp": "16"}).degrees.pp == 16


def test_override_replaces_the_same_quantity_in_another_unit() -> None:
    assert topology_of().trunks[0].one_way_latency_s == pytest.approx(20e-6)
    assert topology_of("topology.trunks.0.one_way_latency_ms=20").trunks[0].one_way_latency_s == pytest.approx(20e-3)
    later = topology_of("topology.trunks.0.one_way_latency_ms=20", "topology.trunks.0.one_way_latency_us=5")
    assert later.trunks[0].one_way_latency_s == pytest.approx(5e-6)


def test_override_reaches_everything() -> None:
    job = load_job(
        NAME,
        [
            "topology.trunks.0.oversubscription_ratio=16",
            "topology.regions.0.buildings.1.num_zones=2",
            "topology.regions.0.buildings.0.links.building.technology.bandwidth_gbit_per_s=800",
            "workload.num_layers=128",
            "degrees.pp={min: 8, max: 16}",
            "degrees.tp=[4, 8]",
            "degrees.cp.max=2",
            "optimizer.state_bytes=8",
            "global_batch_tokens=33554432",
            "recompute=full",
        ],
    )
    problem = resolve(job)
    assert problem.topology.trunks[0].oversubscription_ratio == 16
    assert problem.topology.buildings[1].num_accelerators == 2 * 3072
    assert problem.topology.buildings[0].links.building.technology.bandwidth_bytes_per_s == 100e9
    assert problem.topology.buildings[0].links.zone.technology.bandwidth_bytes_per_s == 50e9
    assert problem.profile.num_layers == 128
    assert (job.degrees.pp, job.degrees.tp) == (Range(min=8, max=16), (4, 8))
    assert job.degrees.cp == Range(min=1, max=2)
    assert job.optimizer.state_bytes == 8
    assert (job.global_batch_sequences, job.recompute) == (4096, ("full",))


def test_override_of_building_defaults_reaches_every_building() -> None:
    topology = topology_of("topology.building_defaults.links.zone.one_way_latency_us=9")
    assert len(topology.buildings) > 1
    assert {one.links.zone.one_way_latency_s for one in topology.buildings} == {9e-6}


def test_override_of_a_whole_reference_and_then_below_it() -> None:
    topology = topology_of("topology=three_regions", "topology.trunks.2.one_way_latency_ms=8")
    assert topology.name == "three_regions"
    assert [trunk.one_way_latency_s for trunk in topology.trunks] == pytest.approx([4.9e-3, 4.9e-3, 8e-3])


def test_overridden_figure_no_longer_claims_its_source() -> None:
    topology = topology_of(
        "topology.trunks.0.one_way_latency_ms=20",
        "topology.regions.0.buildings.0.accelerator.memory_gib=70",
        "topology.regions.0.buildings.0.accelerator.peak_flop_per_s.bf16=8e14",
        "topology.regions.0.buildings.0.links.zone.oversubscription_ratio=2",
        "topology.regions.0.buildings.0.num_hosts=1000",
    )
    trunk, building = topology.trunks[0], topology.buildings[0]
    assert {key: (origin.source, origin.status) for key, origin in trunk.provenance.items()} == {
        "one_way_latency_ms": ("--set topology.trunks.0.one_way_latency_ms=20", "assumed")
    }
    assert set(building.provenance) == {"links.zone.oversubscription_ratio"}
    own, untouched = building.accelerator.provenance, topology.buildings[1].accelerator.provenance
    assert own["memory_gib"].status == own["peak_flop_per_s"].status == "assumed"
    assert "memory_mib" not in own and "peak_tflop_per_s" not in own
    assert own["num_multiprocessors"] == untouched["num_multiprocessors"]
    assert untouched["memory_mib"].status == "measured"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sequence_length", "--set sequence_length: write KEY=VALUE"),
        ("=3", "write KEY=VALUE"),
        (
            "sequence_lenght=3",
            "--set sequence_lenght=3: no key 'sequence_lenght'; nearest known key: 'sequence_length'",
        ),
        ("topology.trunk.0.x=1", "no key 'trunk'; nearest known key: 'trunks'"),
        (
            "topology.building_defaults.quux=1",
            "no key 'quux'; known keys: provenance, name, accelerator, accelerators_per_host",
        ),
        ("topology.building_defaults.links.zon.x=1", "no key 'zon'; nearest known key: 'zone'"),
        ("topology.building_defaults={}", "name what to change in all buildings"),
        ("workload.building_defaults.x=1", "no key 'building_defaults'"),
        ("topology.trunks.3.oversubscription_ratio=1", "'3' is no item of a list of 1"),
        ("topology.trunks.first.oversubscription_ratio=1", "'first' is no item of a list of 1"),
        (
            "topology.trunks.0.one_way_latency_hours=1",
            "accepted: one_way_latency_s, one_way_latency_us, one_way_latency_ms",
        ),
        ("topology.trunks.0.one_way_latency_us.x=1", "'one_way_latency_us' is a single value and has no 'x'"),
        ("workload.hidden=1", "no key 'hidden'; nearest known key: 'hidden_size'"),
        ("sequence_length.x=1", "'sequence_length' is a single value and has no 'x'"),
        ("degrees.tp=-3", "--set degrees.tp=-3: key 'degrees.tp': Input should be greater than 0, got -3"),
        ("degrees.tp=[1", "--set degrees.tp=[1"),
        (
            "topology.trunks.0.bandwidth_gbyte_per_s=-4",
            "0.bandwidth_gbyte_per_s': Input should be greater than 0, got -4",
        ),
        (
            "workload.num_heads=127",
            "num_heads 127 is no multiple of num_kv_heads 8 (changed by --set workload.num_heads=127)",
        ),
        ("workload=llama3.1-404b", "--set workload=llama3.1-404b: key 'workload': workloads: 'llama3.1-404b'"),
        ("degrees.²=1", "no key '²'"),
    ],
)
def test_override_that_leads_nowhere(override: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        load_job(NAME, [override])
    assert expected in str(caught.value)


def test_a_mapping_with_keys_of_its_own_takes_new_ones() -> None:
    assert load_job(NAME, ["spare_hosts.building-a=3"]).spare_hosts == {"building-a": 3}
    with pytest.raises(InputError, match="'fp16', 'bf16', 'fp8' or 'nvfp4'"):
        topology_of("topology.regions.0.buildings.0.accelerator.peak_flop_per_s.b16=8e14")


def test_overrides_leave_the_job_they_start_from_alone() -> None:
    job = load_job(NAME)
    before = job.model_dump(mode="json")
    load_job(job, ["topology.trunks.0.one_way_latency_ms=20", "workload.num_layers=3"])
    assert job.model_dump(mode="json") == before


def test_overrides_leave_the_mapping_they_start_from_alone() -> None:
    mapping = {
        "name": "j",
        "workload": "llama3.1-8b",
        "topology": "one_building",
        "sequence_length": 8192,
        "global_batch_sequences": 64,
        "degrees": {"tp": 8},
    }
    assert load_job(mapping, {"degrees.tp": "4"}).degrees.tp == 4
    assert load_job(mapping).degrees.tp == 8


def test_import_does_not_read_yaml_or_solvers() -> None:
    code = (
        "import sys, scaleacross.catalogue; print(sorted({'yaml', 'numpy', 'ortools', 'networkx'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
