"""Hosts joined by NVLink form one rack of a building of NVL72, whatever switches they have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scaleacross.catalogue import load_topology
from scaleacross.cli import app

DOMAIN_OF = {f"n{at:02}": f"domain-{at % 2}" for at in range(32)}
"""32 hosts of 4 GB200 in two domains of 16, every second host each.

Their switches contradict this, or have no label.
"""


def kubernetes(name: str, domain: str) -> dict[str, Any]:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-GB200",
        "topology.kubernetes.io/zone": "a",
        "nvidia.com/gpu.clique": domain,
    }
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": "4"}}}


def aws(name: str, domain: str) -> dict[str, Any]:
    return {
        "InstanceId": name,
        "InstanceType": "p6e-gb200.36xlarge",
        "ZoneId": "a",
        "CapacityBlockId": domain,
        "NetworkNodes": ["nn-1", "nn-2", f"nn-{name[:2]}"],
    }


def oci(name: str, domain: str) -> dict[str, Any]:
    ids = {"hpc-island-id": "x.a", "network-block-id": "x.b", "local-block-id": f"x.{name[:2]}"}
    return {"display-name": name, "shape": "BM.GPU.GB200.4", "gpu-memory-fabric-id": f"ocid1.{domain}", **ids}


@pytest.mark.parametrize(
    ("kind", "record", "key"), [("kubernetes", kubernetes, "items"), ("aws", aws, "Instances"), ("oci", oci, "items")]
)
def test_a_rack_of_nvl72_is_what_nvlink_joins(tmp_path: Path, kind: str, record: Any, key: str) -> None:
    source = tmp_path / "source.json"
    source.write_text(json.dumps({key: [record(name, domain) for name, domain in DOMAIN_OF.items()]}))
    result = CliRunner().invoke(app, ["import", kind, str(source), "-o", str(tmp_path / "t.yaml")])
    assert result.exit_code == 0, result.output
    (building,) = load_topology(tmp_path / "t.yaml").buildings
    assert (building.scale_up_domain, building.hosts_per_rack, building.hosts) == ("rack", 16, 32)
    racks = [building.host_names[at : at + 16] for at in (0, 16)]
    assert [{DOMAIN_OF[name] for name in rack} for rack in racks] == [{"domain-0"}, {"domain-1"}]


@pytest.mark.parametrize(
    ("instance", "accelerator", "per_host"),
    [
        ("p3dn.24xlarge", "v100-32gb", 8),
        ("p4d.24xlarge", "a100-40gb", 8),
        ("p4de.24xlarge", "a100-80gb", 8),
        ("p6e-gb200.36xlarge", "gb200-nvl72", 4),
        ("p6e-gb300.36xlarge", "gb300-nvl72", 4),
    ],
)
def test_an_instance_type_names_its_accelerator(tmp_path: Path, instance: str, accelerator: str, per_host: int) -> None:
    source = tmp_path / "source.json"
    source.write_text(
        json.dumps({"Instances": [{**aws(name, "d"), "InstanceType": instance} for name in ("a1", "a2")]})
    )
    result = CliRunner().invoke(app, ["import", "aws", str(source), "-o", str(tmp_path / "t.yaml")])
    assert result.exit_code == 0, result.output
    (building,) = load_topology(tmp_path / "t.yaml").buildings
    assert (building.accelerator.name, building.accelerators_per_host) == (accelerator, per_host)


@pytest.mark.parametrize(
    ("product", "accelerator"),
    [
        ("NVIDIA-A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA-H100-PCIe", "h100-pcie"),
        ("NVIDIA-H100-NVL", "h100-nvl"),
        ("Tesla-V100-SXM2-32GB", "v100-32gb"),
        ("AMD_Instinct_MI250X", "mi250x-gcd"),
        ("NVIDIA-A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA-GH200-480GB", "gh200"),
        ("NVIDIA-H20", "h20"),
        ("NVIDIA-H200", "h200"),
        ("NVIDIA-L40S", "l40s"),
    ],
)
def test_the_most_precise_type_of_a_product_name_is_taken(tmp_path: Path, product: str, accelerator: str) -> None:
    record = kubernetes("n1", "d")
    record["metadata"]["labels"]["nvidia.com/gpu.product"] = product
    source = tmp_path / "source.json"
    source.write_text(json.dumps({"items": [record]}))
    result = CliRunner().invoke(app, ["import", "kubernetes", str(source), "-o", str(tmp_path / "t.yaml")])
    assert result.exit_code == 0, result.output
    assert load_topology(tmp_path / "t.yaml").buildings[0].accelerator.name == accelerator
