"""torchft's Manager over our process group: a replica is lost, the others form anew, and no step is committed twice."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")
pytest.importorskip("torchft", reason="torchft is not installed (pip install torchft-nightly)")

import torchft_cases


def test_replicas_of_torchft_go_on_over_our_group(tmp_path: Path) -> None:
    job = torchft_cases.Job(tmp_path, own=True, pace_s=0.02)
    try:
        for replica in "012":
            job.start(replica)
        job.until(lambda: any(line[1] and line[2] == 3 for line in job.lines("0")))
        job.processes["2"].kill()
        job.processes["2"].join()
        job.until(lambda: [line[2] for line in job.lines("0") if line[1]][-5:] == [2] * 5)
        (tmp_path / "stop").write_text("")
        job.until(lambda: all(isinstance(job.lines(replica)[-1], dict) for replica in "01"))
    finally:
        job.close()
    committed = [[line for line in job.lines(replica) if isinstance(line, list) and line[1]] for replica in "01"]
    for lines in committed:
        steps = [line[0] for line in lines]
        assert steps == sorted(set(steps)), "a step is committed twice"
