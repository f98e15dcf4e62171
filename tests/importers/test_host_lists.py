"""Lists of hosts as users write them: quoted buildings and full names."""

from __future__ import annotations

from pathlib import Path

from importers.test_importers import LINK, imported
from scaleacross.catalogue import load_topology


def test_quoted_buildings_and_full_names_of_hosts_are_kept(tmp_path: Path) -> None:
    full = "-".join(["gpu"] * 20) + ".cluster.example.com"
    text = f"{full} \"New York\" r1\nb 'San Jose' r1  # spare\n"
    result = imported(tmp_path, "hosts", (text,), "--accelerator", "h100", *LINK, "-o", str(tmp_path / "t.yaml"))
    assert result.exit_code == 0, result.output
    names = {one.name: one.host_names for one in load_topology(tmp_path / "t.yaml").buildings}
    assert names == {"New-York": (full,), "San-Jose": ("b",)}
