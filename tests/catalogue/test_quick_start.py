"""A job from command-line arguments: stated values, derived values, and refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scaleacross.catalogue import Start, load_job, load_topology, quick_files, quick_job
from scaleacross.catalogue.quick_start import quick_topology, standard, standard_building
from scaleacross.errors import InputError
from scaleacross.spec.topology import Topology

STATED: dict[str, Any] = {
    "model": "llama3.1-8b",
    "gpus": "h100:512,east=b200:256",
    "tokens": "4M",
    "sequence": "8192",
    "trunk": "4x400G",
    "km": 50.0,
}


def topology_of(**changes: Any) -> Topology:
    return Topology.model_validate(load_job(quick_job(Start(**{**STATED, **changes}))).topology)


def test_what_is_stated_reaches_the_job() -> None:
    job = load_job(quick_job(Start(**STATED)))
    assert (job.global_batch_sequences, job.sequence_length) == (512, 8192)  # 4 · 2^20 / 8,192
    topology = Topology.model_validate(job.topology)
    assert [(one.name, one.num_accelerators, one.accelerator.name) for one in topology.buildings] == [
        ("building-a", 512, "h100-sxm"),
        ("east", 256, "b200"),
    ]
    (link,) = topology.trunks
    assert link.bandwidth_bytes_per_s == 200e9  # 4 · 400 Gbit/s
    assert link.one_way_latency_s == pytest.approx(50 * 1.4682 / 299_792.458 + 12e-6, rel=1e-3)
    assert "standard buildings" in topology.description


def test_every_figure_has_an_origin() -> None:
    topology = topology_of()
    assert {"trunks.bandwidth_gbit_per_s", "links.rack.one_way_latency_us"} <= set(topology.provenance)
    assert {origin.status for origin in topology.provenance.values()} == {"assumed"}


@pytest.mark.parametrize("kind", sorted(standard()["accelerators"]))
def test_every_standard_building_loads(kind: str) -> None:
    assert topology_of(gpus=f"{kind}:576", trunk=None, km=None).num_accelerators == 576


@pytest.mark.parametrize(
    ("gpus", "hosts", "per_host"), [("h100:1", 1, 1), ("h100:4", 1, 4), ("gb200:2", 1, 2), ("h100:16", 2, 8)]
)
def test_fewer_accelerators_than_a_host_s_are_one_host(gpus: str, hosts: int, per_host: int) -> None:
    (building,) = topology_of(gpus=gpus, trunk=None, km=None).buildings
    assert (building.hosts, building.accelerators_per_host) == (hosts, per_host)


@pytest.mark.parametrize(
    ("kind", "entry", "scale_up", "per_host"),
    [
        ("mi325x", "mi325x", "infinity-fabric", 8),
        ("mi355x", "mi355x", "infinity-fabric-4", 8),
        ("a100-40gb", "a100-40gb", "nvlink3", 8),
        ("a800", "a100-80gb", "nvlink-export", 8),
        ("h100-96gb", "h100-96gb", "nvlink4", 8),
        ("h800", "h100-sxm", "nvlink-export", 8),
        ("H20", "h20", "nvlink4", 8),
        ("gh200", "gh200", "nvlink4", 4),
        ("l40s", "l40s", "pcie-gen4", 8),
        ("h100-sxm", "h100-sxm", "nvlink4", 8),
        ("h100-pcie", "h100-pcie", "pcie-gen5", 8),
        ("h100-nvl", "h100-nvl", "pcie-gen5", 8),
        ("v100", "v100-32gb", "nvlink2-mesh", 8),
        ("v100-sxm3", "v100-32gb", "nvlink2", 16),
        ("mi250x", "mi250x-gcd", "infinity-fabric-2", 8),
        ("gaudi2", "gaudi2", "gaudi2-ethernet", 8),
        ("gaudi3", "gaudi3", "gaudi3-ethernet", 8),
    ],
)
def test_a_type_has_a_standard_building(kind: str, entry: str, scale_up: str, per_host: int) -> None:
    (building,) = topology_of(gpus=f"{kind}:64", trunk=None, km=None).buildings
    assert (building.accelerator.name, building.links.scale_up.technology.name) == (entry, scale_up)
    assert (building.hosts, building.accelerators_per_host) == (64 // per_host, per_host)


def test_distant_buildings_are_regions_of_their_own() -> None:
    assert len(topology_of().regions) == 1
    assert len(topology_of(km=500.0).regions) == 2


def test_files_of_init_say_what_the_options_say(tmp_path: Path) -> None:
    for name, text in quick_files(Start(**STATED)).items():
        (tmp_path / name).write_text(text)
    job = load_job(tmp_path / "job.yaml")
    assert job.global_batch_sequences == 512
    topology = load_topology(tmp_path / "topology.yaml")
    assert topology.buildings == topology_of().buildings
    assert "km" not in topology.description  # the user edits the links below; reports print the description


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": "h100"}, "TYPE:COUNT"),
        ({"gpus": ""}, "TYPE:COUNT"),
        ({"gpus": "x100:8"}, "nearest known type"),
        ({"gpus": "h100:513,h100:8"}, "nearest: 512"),
        ({"gpus": "h100:0"}, "no multiple"),
        ({"gpus": "a=h100:8,a=h100:8"}, "two buildings are called 'a'"),
        ({"gpus": ",".join(["h100:8"] * 27)}, "at most 26"),
        ({"gpus": "h100:" + "9" * 40}, "multiple|at most"),
        ({"gpus": "h100:8"}, "there is one building: name the others too"),
        ({"gpus": "h100:8", "trunk": None}, "there is one building: name the others too"),
        ({"trunk": None}, "--trunk 4x400G --km 50"),
        ({"km": None}, "--trunk 4x400G --km 50"),
        ({"trunk": "fast"}, "COUNTxRATE"),
        ({"trunk": "0x400G"}, "COUNTxRATE"),
        ({"trunk": "50GB/s"}, "counts bytes; write bits per second, 8 times the number"),
        ({"trunk": "4x50 GBps"}, "counts bytes"),
        ({"trunk": "1TB"}, "counts bytes"),
        ({"km": -1.0}, "--km -1"),
        ({"km": float("nan")}, "--km nan"),
        ({"tokens": "5000"}, "no multiple of --seq"),
        ({"tokens": "4.00000001M"}, "whole number"),
        ({"sequence": "many"}, "whole number"),
        ({"model": "no-such-model"}, "no-such-model"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.compile(message)):
        topology_of(**changes)


PRINTED = {
    "Tesla V100-SXM2-32GB": "v100",
    "Tesla-V100-SXM2-32GB": "v100",
    "Tesla V100-SXM3-32GB": "v100-sxm3",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA A800-SXM4-80GB": "a800",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 96GB HBM3": "h100-96gb",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H800": "h800",
    "NVIDIA H20": "h20",
    "NVIDIA H200": "h200",
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA GH200 120GB": "gh200",
    "NVIDIA L40S": "l40s",
    "NVIDIA B200": "b200",
    "NVIDIA B300 SXM6 AC": "b300",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "AMD Instinct MI250X": "mi250x",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI300X OAM": "mi300x",
    "AMD Instinct MI325X": "mi325x",
    "AMD Instinct MI355X": "mi355x",
    "HL-225": "gaudi2",
    "HL-225B": "gaudi2",
    "HL-325L": "gaudi3",
}
"""What nvidia-smi, rocm-smi and hl-smi print, with the type that it is."""


def test_names_that_drivers_print_are_types() -> None:
    for name, kind in PRINTED.items():
        assert standard_building(name, "--gpus") == standard_building(kind, "--gpus"), name
        (building,) = quick_topology(f"{name}:16", None, None)["regions"][0]["buildings"]
        assert building["accelerator"] == standard()["accelerators"][kind]["entry"]


def test_a_name_of_every_type_is_known() -> None:
    assert set(PRINTED.values()) == standard()["accelerators"].keys()


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM-64GB",
        "Tesla V100-SXM2-16GB",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA H200 NVL",
        "NVIDIA H20-3e",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GH200 144G HBM3e",
        "HL-338",
        "h100-96",
        "h100-fast",
        "h100 b200",
    ],
)
def test_names_of_other_products_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="no standard building of"):
        standard_building(name, "--gpus")
