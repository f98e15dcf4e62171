"""Outputs of nccl-tests: how they name the operation, and what a fit over nodes prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps import read_measurements
from typer.testing import CliRunner

from scaleacross.cli import app
from scaleacross.errors import InputError


def output(nodes: int, every: int = 1) -> str:
    """A file of an older version, whose comments name no operation.

    It has eight ranks per node and some sizes from 1 KiB to 1 GiB.
    """
    ranks = [
        f"#  Rank {rank} Group  0 Pid  10 on  node{rank // 8} device  {rank % 8} [0x1b] NVIDIA H100 80GB HBM3\n"
        for rank in range(8 * nodes)
    ]
    times = [(1 << power, 30 + (1 << power) / 180e3) for power in range(10, 31, every)]
    timed = [f"{size} {size // 4} float sum -1 {time:.2f} 1 1 0 {time:.2f} 1 1 0\n" for size, time in times]
    return "".join([*ranks, *timed])


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("all_reduce_perf.log", "all_reduce"),
        ("h100_alltoall_perf_2n.txt", "all_to_all"),
        ("job7.reduce_scatter_perf", "reduce_scatter"),
        ("sendrecv_perf.log", None),
        ("all_reduce.log", None),
    ],
)
def test_the_operation_of_an_older_output_is_the_program_in_its_name(tmp_path: Path, name: str, op: str | None) -> None:
    path = tmp_path / name
    path.write_text(output(1))
    if op is None:
        with pytest.raises(InputError, match="says nothing about the operation"):
            read_measurements(path)
    else:
        assert {row.op for row in read_measurements(path)} == {op}
    assert {row.op for row in read_measurements(path, "all_gather")} == {"all_gather"}
    path.write_text("# Collective test starting: all_gather_perf\n" + output(1))
    assert {row.op for row in read_measurements(path)} == {"all_gather"}


def test_a_fit_over_nodes_prints_no_table_without_rows(tmp_path: Path) -> None:
    (tmp_path / "all_reduce_perf.log").write_text(output(2, every=4))
    result = CliRunner().invoke(app, ["calibrate", "--collectives", str(tmp_path / "all_reduce_perf.log")])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("error there") == 1
    assert "no fit of its own: 'infiniband-ndr400' with figures of the fits above" in result.stdout


@pytest.mark.parametrize(
    ("device", "link"),
    [("NVIDIA H100 80GB HBM3", "nvlink4"), ("NVIDIA A100-SXM4-80GB", "nvlink3")],
)
def test_one_node_is_held_against_the_scale_up_link_of_its_accelerator(tmp_path: Path, device: str, link: str) -> None:
    path = tmp_path / "all_reduce_perf.log"
    path.write_text(output(1).replace("NVIDIA H100 80GB HBM3", device))
    result = CliRunner().invoke(app, ["validate", "--collectives", str(path)])
    assert result.exit_code == 0, result.output
    assert f"{device}: its scale-up link {link} is taken; --network names another" in " ".join(result.stdout.split())
    named = CliRunner().invoke(app, ["validate", "--collectives", str(path), "--network", "nvlink5"])
    assert named.exit_code == 0 and "is taken" not in named.stdout
    fitted = CliRunner().invoke(app, ["calibrate", "--collectives", str(path)])
    assert fitted.exit_code == 0 and link in fitted.stdout, fitted.output


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_a_card_whose_link_is_not_known_asks_for_the_network(tmp_path: Path, command: str) -> None:
    path = tmp_path / "all_reduce_perf.log"
    path.write_text(output(1).replace("NVIDIA H100 80GB HBM3", "NVIDIA H200 NVL"))
    result = CliRunner().invoke(app, [command, "--collectives", str(path)])
    said = " ".join(result.stderr.split())
    assert result.exit_code == 2 and "NVIDIA H200 NVL" in said and "--network" in said
