"""Unmodified DDP, FSDP2, HSDP and pipelining train on backend ``scaleacross`` with the losses of gloo."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from rank_pool import RankPool

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import fault_cases as cases
from launch_configs import small_launch

STEPS = 8  # bf16 is slow on CPUs without instructions for it
MESHES = {
    "ddp": {"dp_replicate": 4},
    "fsdp2": {"dp_shard": 4, "algorithm": "hierarchical"},
    "hsdp": {"dp_replicate": 2, "dp_shard": 2},
    "pipeline_x_data": {"pp": 2, "dp_shard": 2},
}


@pytest.fixture(scope="module")
def pool():  # type: ignore[no-untyped-def]
    ranks = RankPool(4)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("name", MESHES)
def test_losses_are_those_of_gloo(name: str, pool: RankPool, tmp_path: Path) -> None:
    path = tmp_path / "launch.json"
    losses = []
    for backend in ("gloo", "cpu:scaleacross"):
        path.write_text(small_launch(**MESHES[name], port=_free_port()).model_dump_json(), encoding="utf-8")
        losses.append(pool.run(cases.train, backend, str(path), STEPS))
    plain, planned = losses
    assert len(plain[0][0]) == STEPS
    assert plain[0][0][-1] < 0.75 * plain[0][0][0], "the model did not learn"
    for rank in range(4):
        assert planned[rank][0] == pytest.approx(plain[rank][0], rel=2e-4)
        assert planned[rank][1][0] > STEPS * 1e5, "the planned collectives did not run"
        assert plain[rank][1] == (0, 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_tensor_parallel_layers(pool: RankPool, tmp_path: Path) -> None:
    path = tmp_path / "launch.json"
    path.write_text(small_launch(dp_shard=4).model_dump_json(), encoding="utf-8")
    for worst, moved in pool.run(cases.tensor_parallel, str(path), _free_port()):
        assert worst < 1e-4
        assert moved[0] > 0, "the planned collectives did not run"


def test_asynchronous_works_go_on_while_the_caller_computes(pool: RankPool, tmp_path: Path) -> None:
    results = pool.run(cases.works_go_on_alone, _free_port(), str(tmp_path))
    assert results[1:] == [[False, True, True]] * 3, "rank 0 joins only after the others have gone on"
    assert results[0][1:] == [True, True]


def test_the_trace_holds_what_gloo_runs(pool: RankPool, tmp_path: Path) -> None:
    records = pool.run(cases.uncovered, _free_port(), str(tmp_path))
    planned, left = ("all_reduce", "direct", "completed"), ("broadcast", "transport", "completed")
    assert records[0] == [planned, left, ("send", "transport", "completed")]
    assert records[1] == [planned, left, ("recv", "transport", "completed")]
    assert records[3] == [planned, left]


def test_a_dropped_group_leaves_no_thread(pool: RankPool, tmp_path: Path) -> None:
    assert pool.run(cases.threads_of_a_dropped_group, _free_port(), str(tmp_path)) == [[]] * 4
