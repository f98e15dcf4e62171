"""A cluster's own description becomes a topology with real names. The import asks for missing figures."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from importers.sources import INFRAGRAPH, SOURCES, TREE
from scaleacross.catalogue import load_topology
from scaleacross.cli import app
from scaleacross.spec.hostlist import expand_hosts

LINK = ("--trunk", "2x400G", "--km", "10")


def imported(folder: Path, kind: str, texts: tuple[str, ...], *options: str) -> Result:
    paths = []
    for index, text in enumerate(texts):
        suffix = ".json" if text.lstrip().startswith(("{", "[{")) else ".txt"
        paths.append(folder / f"source{index}{suffix}")
        paths[-1].write_text(text)
    return CliRunner().invoke(app, ["import", kind, *map(str, paths), *options])


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_says_the_same_of_the_same_cluster(tmp_path: Path, source: str) -> None:
    kind, texts = SOURCES[source]
    accelerator = ("--accelerator", "h100") if kind in ("oci", "hosts") else ()
    result = imported(tmp_path, kind, texts, *LINK, *accelerator, "-o", str(tmp_path / "t.yaml"))
    assert result.exit_code == 0, result.output
    topology = load_topology(tmp_path / "t.yaml")
    assert {one.name: one.host_names for one in topology.buildings} == {"a": ("n1", "n2"), "b": ("n3",)}
    assert {one.accelerator.name for one in topology.buildings} == {"h100-sxm"}
    assert [(one.hosts_per_rack, one.accelerators_per_host) for one in topology.buildings] == [(1, 8), (1, 8)]
    assert topology.trunks[0].bandwidth_bytes_per_s == 100e9
    assert "states no links" in topology.provenance["links.zone.one_way_latency_us"].source


def test_infragraph_counts_hosts_with_accelerators(tmp_path: Path) -> None:
    result = imported(
        tmp_path, "infragraph", (INFRAGRAPH,), *LINK, "--accelerator", "h100", "-o", str(tmp_path / "t.yaml")
    )
    assert result.exit_code == 0, result.output
    names = {one.name: one.host_names for one in load_topology(tmp_path / "t.yaml").buildings}
    assert names == {"east": ("east-0", "east-1"), "west": ("west-0",)}


def test_blocks_and_stated_buildings(tmp_path: Path) -> None:
    text = "BlockName=b1 Nodes=n[01-18]\nBlockName=b2 Nodes=n[19-36]\nBlockSizes=18\n"
    options = ("--accelerator", "gb200", "--building", "x=n[01-18]", "--building", "y=n[19-36]", *LINK)
    result = imported(tmp_path, "slurm", (text,), *options, "-o", str(tmp_path / "t.yaml"))
    assert result.exit_code == 0, result.output
    buildings = load_topology(tmp_path / "t.yaml").buildings
    assert [(one.name, one.hosts, one.scale_up_domain, one.accelerators_per_host) for one in buildings] == [
        ("x", 18, "rack", 4),
        ("y", 18, "rack", 4),
    ]


def test_scontrol_names_a_host_with_every_switch_above_it(tmp_path: Path) -> None:
    """``scontrol show topology``: the hosts of a switch are those of all switches below it."""
    names = {"core": "n[1-3]", "a": "n[1-2]", "b": "n3", "r1": "n1", "r2": "n2", "r3": "n3"}
    levels = {"core": 2, "a": 1, "b": 1}
    below = {"core": " Switches=a,b", "a": " Switches=r[1-2]", "b": " Switches=r3"}
    rows = [
        f"SwitchName={switch} Level={levels.get(switch, 0)} LinkSpeed=1 Nodes={hosts}{below.get(switch, '')}\n"
        for switch, hosts in names.items()
    ]
    shown, stated = (
        imported(tmp_path, "slurm", (text,), "--accelerator", "h100", *LINK) for text in ("".join(rows), TREE)
    )
    assert (shown.exit_code, stated.exit_code) == (0, 0), shown.output
    assert shown.stdout == stated.stdout
    twice = "SwitchName=core Nodes=n[1-2] Switches=a,b\nSwitchName=a Nodes=n1\nSwitchName=b Nodes=n[1-2]\n"
    refused = imported(tmp_path, "slurm", (twice,), "--accelerator", "h100")
    assert (refused.exit_code, "host n1 is below two switches" in refused.stderr) == (2, True)


def test_racks_of_different_sizes_are_never_joined(tmp_path: Path) -> None:
    text = "SwitchName=s Switches=r[1-3]\nSwitchName=r1 Nodes=a[1-4]\nSwitchName=r2 Nodes=b[1-6]\nSwitchName=r3 Nodes=c[1-2]\n"
    result = imported(tmp_path, "slurm", (text,), "--accelerator", "h100", "-o", str(tmp_path / "t.yaml"))
    assert "2 host(s) are taken for a rack" in result.stderr
    (building,) = load_topology(tmp_path / "t.yaml").buildings
    pairs = [building.host_names[at : at + 2] for at in range(0, 12, 2)]
    assert all(one[0] == other[0] for one, other in pairs)  # a rack never holds hosts of two leaves


def instance(name: str, accelerator: str = "nvidia-h100-80gb", **other: Any) -> dict[str, Any]:
    """A GCP instance with eight accelerators."""
    gpus = {"guestAccelerators": [{"acceleratorType": accelerator, "acceleratorCount": 8}]}
    return {"name": name, "zone": "a", **gpus, **other}


OUT_OF_SERVICE = {
    "slurm": ("State=DOWN*+DRAIN Reason=hbm", "State=IDLE+DRAIN", "State=MIXED*"),
    "kubernetes": ({"spec": {"unschedulable": True}}, {"ready": "False"}, {"ready": "Unknown"}),
    "gcp": ({"status": "TERMINATED"}, {"status": "SUSPENDED"}, {"status": "STOPPING"}),
}
IN_SERVICE = {"slurm": "State=MIXED+PLANNED", "kubernetes": {"ready": "True"}, "gcp": {"status": "RUNNING"}}


def cluster(kind: str, states: Sequence[Any]) -> tuple[str, ...]:
    """Hosts n0, n1, … of one building in these states, in the format of a source."""
    if kind == "slurm":
        nodes = "".join(f"NodeName=n{at} Gres=gpu:h100:8 {state}\n" for at, state in enumerate(states))
        return f"SwitchName=s Nodes=n[0-{len(states) - 1}]\n", nodes
    if kind == "gcp":
        gpus = {"guestAccelerators": [{"acceleratorType": "nvidia-h100-80gb", "acceleratorCount": 8}], "zone": "a"}
        return (json.dumps([{"name": f"n{at}", **gpus, **state} for at, state in enumerate(states)]),)
    labels = {"topology.kubernetes.io/zone": "a", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    items = [
        {
            "metadata": {"name": f"n{at}", "labels": labels},
            "spec": state.get("spec", {}),
            "status": {
                "allocatable": {"nvidia.com/gpu": "8"},
                "conditions": [{"type": "Ready", "status": state.get("ready", "True")}],
            },
        }
        for at, state in enumerate(states)
    ]
    return (json.dumps({"items": items}),)


@pytest.mark.parametrize("kind", OUT_OF_SERVICE)
def test_hosts_that_take_no_jobs_are_left_out_and_named(tmp_path: Path, kind: str) -> None:
    texts = cluster(kind, [IN_SERVICE[kind], *OUT_OF_SERVICE[kind], IN_SERVICE[kind]])
    result = imported(tmp_path, kind, texts, "-o", str(tmp_path / "t.yaml"))
    assert result.exit_code == 0, result.output
    assert load_topology(tmp_path / "t.yaml").buildings[0].host_names == ("n0", "n4")
    told = " ".join(result.stderr.split())
    assert "note: 3 host(s) that take no jobs now are left out (" in told
    assert all(f": n{at}" in told for at in (1, 2, 3))
    assert "--with-down brings them in" in told
    result = imported(tmp_path, kind, texts, "--with-down", "-o", str(tmp_path / "all.yaml"))
    assert load_topology(tmp_path / "all.yaml").buildings[0].hosts == 5
    assert "left out" not in result.stderr
    result = imported(tmp_path, kind, cluster(kind, OUT_OF_SERVICE[kind]))
    assert result.exit_code == 2
    assert "no host is left" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("kind", "text", "options", "said"),
    [
        (
            "hosts",
            "a slots=8\nb\n",
            ("--accelerator", "h100"),
            "building-a: the source states no number of accelerators of b: that",
        ),
        (
            "hosts",
            "a\nb\n",
            ("--accelerator", "h100", "--building", "x=a"),
            "1 host(s) of the source are in no --building and left out: b",
        ),
        (
            "gcp",
            json.dumps([instance("n0")]),
            ("--accelerator", "h200"),
            "the source says nvidia-h100-80gb; --accelerator h200 is taken",
        ),
    ],
)
def test_what_is_taken_over_is_noted(tmp_path: Path, kind: str, text: str, options: tuple[str, ...], said: str) -> None:
    result = imported(tmp_path, kind, (text,), *options)
    assert result.exit_code == 0, result.output
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("kind", "text", "options", "said"),
    [
        ("slurm", TREE, LINK, "add --accelerator"),
        ("slurm", TREE, ("--accelerator", "h100"), "state the link between them"),
        ("slurm", "", (), "neither SwitchName="),
        ("slurm", "SwitchName=a Switches=a\n", (), "circle"),
        ("slurm", "SwitchName=a Switches=b\n", (), "not stated itself"),
        ("slurm", "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n", (), "below two switches"),
        ("slurm", "SwitchName=a Nodes=n[1-\n", (), "no host list"),
        ("slurm", "SwitchName=a Nodes=n[1-999999999]\n", (), "more than"),
        ("slurm", "SwitchName=a Nodes=n[9-1]\n", (), "empty"),
        ("kubernetes", "{}", (), "a list of objects"),
        ("kubernetes", '{"items": [{}]}', (), "no node with"),
        ("kubernetes", '{"items": [1]}', (), "a list of objects"),
        ("aws", '{"Instances": []}', (), "no instance"),
        ("gcp", '[{"guestAccelerators": 3}]', (), "add --accelerator"),
        ("oci", '{"data": 3}', (), "a list of objects"),
        ("oci", '[{"display-name": "gpu 1", "shape": "BM.GPU.H100.8"}]', (), "'gpu 1' is no name of a host"),
        ("hosts", "a b c d\n", (), "HOSTLIST [BUILDING [RACK]]"),
        ("hosts", "a\na\n", ("--accelerator", "h100"), "listed twice"),
        ("hosts", 'a "New York\n', ("--accelerator", "h100"), "a quotation mark is not closed"),
        ("hosts", f"{'a' * 254}\n", ("--accelerator", "h100"), "1 to 253 letters"),
        (
            "slurm",
            "SwitchName=a Nodes=n1\nSwitchName=b Switches=c Nodes=n2\nSwitchName=c Switches=b\n",
            (),
            "b is below itself",
        ),
        ("slurm", "tree: {switches: [{switch: a, nodes: n1}, {switch: a, nodes: n2}]}\n", (), "a is stated twice"),
        ("slurm", "tree: {switches: [{switch: a, nodes: n1}, {name: b, nodes: n2}]}\n", (), "is no switch"),
        ("slurm", "block: {blocks: [{block: a, nodes: n1}, n2]}\n", (), "is no block"),
        ("hosts", "a slots=eight\n", ("--accelerator", "h100"), "no number of accelerators"),
        ("hosts", "a slots=0\n", ("--accelerator", "h100"), "no number of accelerators"),
        ("hosts", "a:x\n", ("--accelerator", "h100"), "no number of accelerators"),
        ("hosts", "a gpus=4\n", ("--accelerator", "h100"), "'gpus=' says nothing here"),
        ("infragraph", "devices: []\ninstances: [{name: a, device: dgx, count: 2}]", (), "not among the devices"),
        (
            "infragraph",
            "devices: [{name: dgx, components: [{choice: xpu, count: eight}]}]\ninstances: []",
            (),
            "device 'dgx': count 'eight'",
        ),
        ("hosts", "a x\na y\n", ("--accelerator", "h100", *LINK), "host 'a' is listed twice (buildings x, y)"),
        ("hosts", "a x\nb\n", ("--accelerator", "h100", *LINK), "1 of 2 hosts are in no building (b)"),
        ("hosts", "a x/1\nb x-1\n", ("--accelerator", "h100", *LINK), "both called 'x-1'"),
        ("hosts", "a\na\n", ("--accelerator", "h100", "--building", "x=a"), "listed twice"),
        (
            "hosts",
            "a\n",
            ("--accelerator", "h100", "--building", "x=a", "--building", "y=a", *LINK),
            "in two buildings",
        ),
        ("hosts", "a slots=4\nb slots=8\n", ("--accelerator", "h100", "--gpus-per-host", "8"), "a has 4 accelerators"),
        ("hosts", "a slots=8\nb slots=4\n", ("--accelerator", "h100"), "hosts of a building are alike"),
        ("gcp", json.dumps([instance("n0", "nvidia-h200-nvl")]), (), "states types nvidia-h200-nvl"),
        ("gcp", json.dumps([instance("n0", "nvidia-tesla-v100")]), (), "states types v100 16GB"),
        ("gcp", json.dumps([instance("n0", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb")]), (), "add --accelerator"),
        ("gcp", json.dumps([instance("n0"), instance("n1", "nvidia-b200")]), (), "states types b200, h100"),
        ("gcp", json.dumps([instance("")]), (), "a host has no name"),
        ("hosts", "a\n", ("--accelerator", "z80"), "no standard building"),
        ("hosts", "a\n", ("--accelerator", "h100", "--building", "x=b"), "not in the source"),
        ("hosts", "a\n", ("--building", "x"), "NAME=HOSTLIST"),
        ("infragraph", "devices: []\ninstances: []", (), "no instance"),
        ("infragraph", "devices: []\ninstances: [{name: a, count: -1}]", (), "no number of hosts"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, kind: str, text: str, options: tuple[str, ...], said: str
) -> None:
    result = imported(tmp_path, kind, (text,), *options, "-o", str(tmp_path / "t.yaml"))
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert not (tmp_path / "t.yaml").exists()


def nodes_of(tmp_path: Path, *gres: str, names: Sequence[str] = ()) -> Result:
    """Nodes n0, n1, … of a single switch with these generic resources, in scontrol's format."""
    conf = f"SwitchName=s Nodes=n[0-{len(gres) - 1}]\n"
    told = "".join(
        f"NodeName={name} Gres={one} State=IDLE\n"
        for name, one in zip(names or [f"n{at}" for at in range(len(gres))], gres, strict=True)
    )
    return imported(tmp_path, "slurm", (conf, told), "--accelerator", "h100", "-o", str(tmp_path / "t.yaml"))


@pytest.mark.parametrize(
    ("gres", "number"),
    [
        ("gpu:8", 8),
        ("gpu:h100:8(S:0-1)", 8),
        ("gpu:h100:4(S:0),gpu:h100:4(S:1)", 8),
        ("nic:mlx5:8,gpu:h100:no_consume:2", 2),
    ],
)
def test_gpus_of_a_node_are_added_up(tmp_path: Path, gres: str, number: int) -> None:
    result = nodes_of(tmp_path, gres)
    assert result.exit_code == 0, result.output
    assert load_topology(tmp_path / "t.yaml").buildings[0].accelerators_per_host == number


@pytest.mark.parametrize("gres", ["gpu:1g.10gb:7(S:0)", "gpu:h100:many", "gpu:a100:4,gpu:h100:4", "gpu:h100:0"])
def test_parts_of_gpus_and_mixed_nodes_are_left_out_and_named(tmp_path: Path, gres: str) -> None:
    result = nodes_of(tmp_path, "gpu:8", gres)
    assert result.exit_code == 0, result.output
    assert load_topology(tmp_path / "t.yaml").buildings[0].host_names == ("n0",)
    assert f"Gres={gres}: no whole GPUs of one type: n1" in " ".join(result.stderr.split())


def test_nodes_of_slurm_conf_and_nodes_beside_the_topology(tmp_path: Path) -> None:
    result = nodes_of(tmp_path, "gpu:8", "gpu:8", names=("n[0-1]", "x7"))
    assert result.exit_code == 0, result.output
    assert load_topology(tmp_path / "t.yaml").buildings[0].host_names == ("n0", "n1")
    assert "1 hosts with GPUs that the topology does not name are left out: x7" in " ".join(result.stderr.split())


def listed(kind: str, *hosts: dict[str, Any]) -> str:
    """Hosts n0, n1, … in a cloud's format."""
    if kind == "aws":
        return json.dumps(
            {"Instances": [{"InstanceId": f"n{at}", "ZoneId": "a"} | own for at, own in enumerate(hosts)]}
        )
    if kind == "oci":
        return json.dumps({"data": {"items": [{"display-name": f"n{at}"} | own for at, own in enumerate(hosts)]}})
    if kind == "gcp":
        return json.dumps([instance(f"n{at}") | own for at, own in enumerate(hosts)])
    items = [{"metadata": {"name": f"n{at}"}, "status": own} for at, own in enumerate(hosts)]
    return json.dumps({"items": items})


def gpus(allocatable: int, capacity: int) -> dict[str, Any]:
    return {"allocatable": {"nvidia.com/gpu": str(allocatable)}, "capacity": {"nvidia.com/gpu": str(capacity)}}


@pytest.mark.parametrize(
    ("kind", "other", "usual", "said"),
    [
        ("aws", {"InstanceType": "p5.4xlarge"}, {"InstanceType": "p5.48xlarge"}, "p5.4xlarge: no type of 8 or 4"),
        ("aws", {"InstanceType": "c7i.large"}, {"InstanceType": "p5.48xlarge"}, "c7i.large: no type of 8 or 4"),
        ("oci", {"lifecycle-state": "REPAIR"}, {"shape": "BM.GPU.H100.8"}, "REPAIR: n1"),
        ("oci", {"health": "UNHEALTHY"}, {"shape": "BM.GPU.H100.8"}, "UNHEALTHY: n1"),
        ("gcp", {"status": "REPAIRING"}, {"status": "RUNNING"}, "REPAIRING: n1"),
        ("gcp", {"guestAccelerators": []}, {}, "1 instances without accelerators are left out: n1"),
        ("kubernetes", gpus(0, 8), gpus(8, 8), "0 of 8 accelerators allocatable: n1"),
        ("kubernetes", gpus(7, 8), gpus(8, 8), "7 of 8 accelerators allocatable: n1"),
    ],
)
def test_other_and_broken_hosts_of_clouds_are_left_out_and_named(
    tmp_path: Path, kind: str, other: dict[str, Any], usual: dict[str, Any], said: str
) -> None:
    result = imported(
        tmp_path, kind, (listed(kind, usual, other),), "--accelerator", "h100", "-o", str(tmp_path / "t.yaml")
    )
    assert result.exit_code == 0, result.output
    (building,) = load_topology(tmp_path / "t.yaml").buildings
    assert (building.host_names, building.accelerators_per_host) == (("n0",), 8)
    assert said in " ".join(result.stderr.split())


def test_host_files_of_mpi(tmp_path: Path) -> None:
    result = imported(
        tmp_path, "hosts", ("n1:4\nn2 slots=4 max_slots=8\n",), "--accelerator", "h100", "-o", str(tmp_path / "t.yaml")
    )
    assert result.exit_code == 0, result.output
    (building,) = load_topology(tmp_path / "t.yaml").buildings
    assert (building.host_names, building.accelerators_per_host) == (("n1", "n2"), 4)


def test_host_lists() -> None:
    assert expand_hosts("n[08-10,3],gpu1") == ("n08", "n09", "n10", "n3", "gpu1")
    assert expand_hosts("r[1-2]n[1-2]") == ("r1n1", "r1n2", "r2n1", "r2n2")
    assert len(expand_hosts("n[1-1000]")) == 1000


@pytest.mark.slow
def test_from_a_config_and_a_topology_conf_to_a_folder_to_submit(tmp_path: Path) -> None:
    """A configuration and a topology.conf become a folder to submit.

    It takes three commands after `pip install .` and no YAML by hand. Every host of the folder is one of the cluster's.
    """
    config = Path(__file__).parent / "data" / "config.json"
    conf = Path(__file__).parent / "data" / "topology.conf"
    topology, build = tmp_path / "topology.yaml", tmp_path / "build"
    commands = [
        ["import", "slurm", str(conf), "--accelerator", "h100", "--trunk", "8x400G", "--km", "50", "-o", str(topology)],
        [
            "plan",
            "--model",
            str(config),
            "--topology",
            str(topology),
            "--tokens",
            "4M",
            "--seq",
            "8K",
            "--time-limit",
            "5",
            "--gap",
            "0.2",
        ],
    ]
    commands[1] += ["--set", "num_accelerators=768", "-o", str(build)]
    for command in commands:
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    real = set(expand_hosts("gpu[001-064,101-132]"))
    lines = [line.split() for line in (build / "torchrun" / "hosts.txt").read_text().splitlines() if line[0] != "#"]
    assert {line[0] for line in lines} == real
    assert set((build / "torchrun" / "slurm_hostfile").read_text().split()) == real
    assert "./submit.sh" in (build / "torchrun" / "SUBMIT.md").read_text()
    assert not re.search(r"east-h\d{5}", (build / "launch.json").read_text())

    (tmp_path / "hosts.yaml").write_text("east: new[1-64]\nwest: other[1-32]\n")
    emit = ["emit", str(build / "plan.json"), "--to", "torchrun", "-o", str(tmp_path / "late"), "--hosts"]
    assert CliRunner().invoke(app, [*emit, str(tmp_path / "hosts.yaml")]).exit_code == 0
    assert {line.split()[0] for line in (tmp_path / "late" / "torchrun" / "hosts.txt").read_text().splitlines()} > {
        "new1"
    }
    (tmp_path / "few.yaml").write_text("east: new[1-63]\nwest: other[1-32]\n")
    assert (
        "63 host names for 'east', of which the plan uses 64"
        in CliRunner().invoke(app, [*emit, str(tmp_path / "few.yaml")]).stderr
    )
