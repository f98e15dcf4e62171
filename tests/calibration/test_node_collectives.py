"""Collectives over several nodes are compared with the planner's estimate on the machine that a file names.

They are also fitted.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps import read_measurements

from scaleacross.api import calibrate, score_files
from scaleacross.errors import InputError

HEAD = "op,n_gpus,n_nodes,size_bytes,time_us,system,gpu,fabric\n"
SIZES = [2**power for power in range(12, 33, 2)]


def sweep(tmp_path: Path, latency_us: float, bytes_per_us: float, gpu: str = "NVIDIA B200", nodes: int = 4) -> Path:
    """All-reduces of eight ranks a node that take a latency and a rate."""
    path = tmp_path / "sweep.csv"
    rows = [
        f"all_reduce,{8 * nodes},{nodes},{size},{latency_us + size / bytes_per_us},mine,{gpu},InfiniBand NDR400\n"
        for size in SIZES
    ]
    path.write_text(HEAD + "".join(rows))
    return path


def test_rows_over_nodes_are_scored_by_the_estimate_on_their_machine(tmp_path: Path) -> None:
    """Rows over nodes are scored by the estimate on their machine.

    The true latency of 375 µs is in no catalogue, so estimates are much too fast below 1 MiB. They are close if bytes
    decide (400 Gb/s a rank).
    """
    (score,) = score_files(collectives=sweep(tmp_path, 375.0, 180e3))
    by_size = {group.group[2]: group for group in score.groups}
    assert {group.group[:2] for group in score.groups} == {("mine", "all_reduce")}
    assert {group.entry for group in score.groups} == {"infiniband-ndr400"}
    assert by_size["< 1 MiB"].score.bias < -0.8
    assert abs(by_size[">= 64 MiB"].score.bias) < 0.2


def test_a_fit_finds_latency_and_rate_and_writes_a_topology(tmp_path: Path) -> None:
    found = calibrate(collectives=sweep(tmp_path, 375.0, 180e3))
    topology, network = found.entries
    assert (topology.path, network.path) == ("topologies/mine-nodes.yaml", "networks/infiniband-ndr400-rack.yaml")
    (residual,) = topology.residuals
    assert residual.base is not None and residual.base.median_abs_error > 0.5
    assert residual.left_out["sizes"].median_abs_error < 0.05


def test_few_sizes_and_unknown_machines_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="several nodes: no machine is known for gpu 'TPU v5p'"):
        score_files(collectives=sweep(tmp_path, 10.0, 1e5, gpu="TPU v5p"))
    path = sweep(tmp_path, 10.0, 1e5)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(InputError, match="a fit needs 4 sizes"):
        calibrate(collectives=path)


def test_nodes_have_equally_many_ranks(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_text(HEAD + "all_reduce,10,4,1024,10,mine,B200,\n")
    with pytest.raises(InputError, match=r"odd.csv:2: 10 ranks on 4 nodes; every node has equally many"):
        read_measurements(path)
