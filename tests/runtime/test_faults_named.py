"""Seeded faults in real processes: our verdict and PyTorch's ``fr_trace`` name the same culprit."""

from __future__ import annotations

import random
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

from fault_runs import WORLD, run_fault
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.loader import read_dir

from scaleacross.diagnosis.read import find_dumps, read_dumps
from scaleacross.diagnosis.verdict import diagnosis
from scaleacross.spec.diagnosis import Fault

SEEDED = random.Random(8)


def root_of(directory: Path) -> tuple[str, Fault]:
    found = diagnosis(*read_dumps(find_dumps([directory])))
    assert found.root is not None and found.others == (), found
    return found.verdict, found.root


def fr_trace_culprits(directory: Path) -> set[int]:
    """Ranks that ``fr_trace`` names.

    It assumes that the first dump is right, so the dumps come in order of rank.
    """
    flags = ("just_print_entries", "verbose", "allow_incomplete_ranks", "selected_ranks", "pg_filters")
    settings = Namespace(trace_dir=str(directory), prefix=None, mismatch_cap=10, **dict.fromkeys(flags))
    details, version = read_dir(settings)
    ordered: dict[str, Any] = dict(sorted(details.items()))
    try:
        database = build_db(ordered, settings, version)
    except AssertionError as error:
        assert "Missing dump files from ranks" in str(error)
        return {rank for rank in range(WORLD) if str(rank) in str(error).partition("{")[2]}
    named: set[int] = set()
    for one in database.collectives:
        named |= set(one.missing_ranks or ()) | set(one.mismatch_collectives or ())
    return named


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ("outside", "stuck_outside"),
        ("size", "size_mismatch"),
        ("dtype", "dtype_mismatch"),
        ("type", "type_mismatch"),
        ("dead", "process_dead"),
        ("not_started", "stuck_before"),
    ],
)
def test_fr_trace_names_the_same_culprit(tmp_path: Path, fault: str, verdict: str) -> None:
    culprit = SEEDED.randint(1, WORLD - 1)
    run_fault(fault, culprit, tmp_path)
    ours, root = root_of(tmp_path)
    assert (ours, root.ranks) == (verdict, (culprit,)), root
    # A late rank learns that the others gave up before it enters a call that they disagree on.
    assert WORLD - 1 - verdict.endswith("mismatch") <= root.num_victims <= WORLD - 1
    assert fr_trace_culprits(tmp_path) == {culprit}


def test_a_deadlock_is_a_circle_and_fr_trace_names_its_ranks(tmp_path: Path) -> None:
    run_fault("deadlock", 1, tmp_path)
    verdict, root = root_of(tmp_path)
    assert (verdict, set(root.ranks), root.num_victims) == ("deadlock", {1, 2}, 2)
    assert {1, 2} <= fr_trace_culprits(tmp_path)


@pytest.mark.parametrize("fault", ["stuck_link", "slow_link"])
def test_a_link_is_named_by_its_ends(tmp_path: Path, fault: str) -> None:
    """``fr_trace`` knows no links and no durations."""
    run_fault(fault, 2, tmp_path)
    verdict, root = root_of(tmp_path)
    assert (verdict, root.link) == (fault, (1, 2) if fault == "stuck_link" else (2, 3)), root


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    run_fault("slow_rank", 3, tmp_path)
    verdict, root = root_of(tmp_path)
    assert (verdict, root.ranks) == ("slow_rank", (3,)), root
    assert root.lost_s is not None and root.lost_s > 1.0


def test_the_command_of_pytorch_reads_our_dumps(tmp_path: Path) -> None:
    run_fault("outside", 2, tmp_path)
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "Not all ranks joining collective, sequence number: 4" in result.stdout + result.stderr
    assert "missing ranks: {2}" in result.stdout + result.stderr
