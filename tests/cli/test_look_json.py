"""show and catalogue print facts as JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from scaleacross.catalogue import load_accelerator, load_network, load_topology, load_workload
from scaleacross.cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--json"])


@pytest.mark.parametrize(
    ("kind", "name", "load"),
    [
        ("topology", "one_building", load_topology),
        ("accelerator", "h100-sxm", load_accelerator),
        ("network", "nvlink4", load_network),
    ],
)
def test_show_prints_what_was_read(kind: str, name: str, load: object) -> None:
    done = run("show", kind, name)
    assert done.exit_code == 0, done.output
    assert callable(load)
    read = load(name)
    assert type(read).model_validate(json.loads(done.stdout)) == read
    assert json.loads(done.stdout)["provenance"]


def test_show_counts_a_workload() -> None:
    done = run("show", "workload", "llama3.1-8b", "--sequence-length", "4096")
    found, profile = json.loads(done.stdout), load_workload("llama3.1-8b").profile()
    assert found["parameters"] == profile.total_parameters == 8_030_261_248
    assert found["model_flop_per_token"] == profile.model_flop_per_token(4096)
    assert sum(layer["parameters"] * layer["number"] for layer in found["layers"]) == found["parameters"]
    flop = sum(layer["forward_flop_per_token"] * layer["number"] for layer in found["layers"])
    assert 3 * flop == pytest.approx(found["model_flop_per_token"])


def test_catalogue_lists_kinds_names_and_summaries() -> None:
    rows = json.loads(run("catalogue").stdout)
    assert {"accelerators", "networks", "topologies", "workloads"} <= {row["kind"] for row in rows}
    assert all(row.keys() == {"kind", "name", "summary"} for row in rows)
    assert "h100-sxm" in {row["name"] for row in rows}


def test_the_file_and_its_figures_are_one_or_the_other() -> None:
    done = run("show", "one_building", "--yaml")
    assert done.exit_code == 2 and "give one" in done.stderr
