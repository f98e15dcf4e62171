"""topology.yaml of SLURM states several topologies: the cluster's default is imported, the others are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaleacross.catalogue import load_topology
from scaleacross.cli import app

FLAT = "- {topology: plain, flat: true, cluster_default: %s}\n"
TREE = "- topology: small\n  cluster_default: %s\n  tree: {switches: [{switch: s1, nodes: 'n[1-2]'}]}\n"
BLOCKS = "- topology: large\n  cluster_default: %s\n  block: {blocks: [{block: b1, nodes: 'n[1-8]'}]}\n"


@pytest.mark.parametrize(
    ("default", "taken", "hosts", "left"),
    [
        ("small", "small", 2, "plain, large"),
        ("large", "large", 8, "plain, small"),
        ("plain", "small", 2, "plain, large"),
    ],
)
def test_the_default_topology_is_taken(tmp_path: Path, default: str, taken: str, hosts: int, left: str) -> None:
    names = {"plain": FLAT, "small": TREE, "large": BLOCKS}
    text = "".join(one % str(name == default).lower() for name, one in names.items())
    (tmp_path / "topology.yaml").write_text(text)
    result = CliRunner().invoke(
        app,
        ["import", "slurm", str(tmp_path / "topology.yaml"), "--accelerator", "h100", "-o", str(tmp_path / "t.yaml")],
    )
    assert result.exit_code == 0, result.output
    assert load_topology(tmp_path / "t.yaml").buildings[0].hosts == hosts
    assert f"topology '{taken}' of topology.yaml is taken; left out: {left}" in " ".join(result.stderr.split())


def test_blocks_beside_switches_are_taken_and_the_switches_named(tmp_path: Path) -> None:
    blocks, switches = "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\n", "SwitchName=s1 Nodes=n[1-8]\n"
    said = "blocks of topology.conf are taken (topology/block); left out: 1 lines with SwitchName"
    for text, racks, note in ((blocks, 2, False), (switches + blocks, 2, True), (switches, 1, False)):
        (tmp_path / "topology.conf").write_text(text)
        result = CliRunner().invoke(
            app,
            [
                "import",
                "slurm",
                str(tmp_path / "topology.conf"),
                "--accelerator",
                "h100",
                "-o",
                str(tmp_path / "t.yaml"),
            ],
        )
        assert result.exit_code == 0, result.output
        building = load_topology(tmp_path / "t.yaml").buildings[0]
        assert building.hosts // building.hosts_per_rack == racks
        assert (said in " ".join(result.stderr.split())) is note
