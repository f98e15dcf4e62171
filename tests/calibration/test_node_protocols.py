"""Estimates of collectives over nodes agree with published nccl-tests.

Only one constant was fitted to these sources. ``data/node_collectives.csv`` has 284 times of 2 to 8 nodes from seven
clusters. Each is the faster of out of place and in place, as the page prints them (column source).

Runs that the source calls slow are left out. So are runs with changed NCCL settings and runs over SHARP, TCP or RCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sweeps import read_measurements

from scaleacross.api import score_files
from scaleacross.calibration.collective_data import Measurement
from scaleacross.schedules.collective import protocols

FILE = Path(__file__).parent / "data" / "node_collectives.csv"
SMALL, LARGE = ("< 1 MiB", "1-64 MiB"), (">= 64 MiB",)
REDUCTIONS = ("all_reduce", "all_gather", "reduce_scatter")


def median_error(classes: Sequence[str], ops: Sequence[str] = REDUCTIONS) -> float:
    (score,) = score_files(collectives=FILE)
    groups = [group for group in score.groups if group.group[1] in ops and group.group[2] in classes]
    errors = [group.score.median_abs_error for group in groups for _ in range(group.score.num_rows)]
    return float(np.median(errors))


def of(op: str, system: str, num_nodes: int) -> dict[int, Measurement]:
    rows = read_measurements(FILE)
    return {row.size_bytes: row for row in rows if (row.op, row.system, row.num_nodes) == (op, system, num_nodes)}


def test_small_messages_over_nodes_are_estimated_within_the_bar() -> None:
    assert median_error(SMALL) < 0.15


def test_large_messages_over_nodes() -> None:
    """Large messages are within 7 %. Two clusters of five do not reach 0.9 of their ports."""
    assert median_error(LARGE) < 0.09


def test_an_all_to_all_of_few_bytes_waits_for_its_handshakes() -> None:
    assert median_error(SMALL[:1], ("all_to_all",)) < 0.1


@pytest.mark.xfail(
    reason="half of the port is reached by NCCL's defaults, 0.75 with other settings; the price is all", strict=True
)
def test_large_all_to_alls_over_nodes() -> None:
    assert median_error(LARGE, ("all_to_all",)) < 0.07


def test_constants_are_those_that_nccl_gives_for_nodes_of_eight_h100() -> None:
    """Constants are NCCL's for nodes of eight H100, in µs, as meta-pytorch/autoparallel states them.

    They are rings of LL, LL128 and Simple over 2 and 32 nodes, and trees over 4.
    """
    for nodes, expected in ((2, (23.3, 44.6, 70.0)), (32, (314.3, 563.6, 1204.0))):
        found = [way.fixed_s * 1e6 for way in protocols.ring_ways(1, 8 * nodes, nodes, 4e11, 1.0)]
        assert found == pytest.approx(expected, rel=0.02)
    trees = [way.fixed_s * 1e6 for way in protocols.tree_ways(32, 4, 2.0, 4e11, 1.0)]
    assert trees == pytest.approx((35.2, 65.5, 120.4), rel=0.01)
    assert protocols.switched_s(1.0, 0.0, 4, 2.0, 4e11, 1.0) == pytest.approx(81e-6, rel=0.01)


def test_two_nodes_send_every_byte_of_a_tree_once() -> None:
    assert [protocols.tree_share(nodes) for nodes in (2, 3, 4, 64)] == [1.0, 1.5, 2.0, 2.0]
    two = of("all_reduce", "Vultr HGX B200", 2)[2**34]
    assert two.size_bytes / two.time_s > 0.9 * 8 * 50e9  # more than a ring's 8/15 of eight ports
