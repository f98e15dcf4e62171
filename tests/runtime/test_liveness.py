"""A rank that is stopped, dead, unreachable or not yet there is named on every rank, also if others are between."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from rank_pool import RankPool, join_job

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import liveness_cases as cases
import torch.distributed as dist

from scaleacross.errors import InputError
from scaleacross.runtime import liveness
from scaleacross.runtime.liveness import ABSENT, DEAD, GAVE_UP, LATE, STOPPED, UNREACHABLE, Found, Status, ask_at, find

SIZE, LIMIT_S = 4, 60.0
WAITING = [Status(5, True, ((rank - 1) % 9,)) for rank in range(9)]
"""A ring in collective 5 in which everybody waits for the rank before."""


@pytest.mark.parametrize("wrong", [DEAD, STOPPED, UNREACHABLE, ABSENT, Status(5, False), Status(3, False)])
def test_the_chain_leads_every_rank_to_the_one_that_does_not_wait(wrong: Status | str) -> None:
    answers: list[Status | str] = [*WAITING[:3], wrong, *WAITING[4:]]
    for rank in (0, 1, 2, 4, 5, 8):
        found = find(rank, 5, WAITING[rank].waits_for, lambda peer: answers[peer])
        assert found is not None
        assert (found.rank, found.word) == (3, wrong if isinstance(wrong, str) else LATE)
        assert found.path[0] == rank and found.path[-1] == 3


def test_ranks_that_are_at_work_are_nobodys_fault() -> None:
    assert find(1, 5, (0,), lambda peer: Status(5, True)) is None
    assert find(1, 5, (0,), lambda peer: Status(6, False)) is None
    assert find(1, 5, (0,), lambda peer: WAITING[peer]) is None  # a whole ring that waits: data is under way


def test_a_dead_rank_goes_before_one_that_is_late_and_reasons_are_passed_on() -> None:
    assert find(0, 5, (1, 2), {1: Status(5, False), 2: DEAD}.__getitem__) == Found(2, DEAD, (0, 2))
    gave_up = find(0, 5, (1,), {1: Status(5, True, (), "rank 2 is dead")}.__getitem__)
    assert gave_up == Found(1, GAVE_UP, (0, 1), "rank 2 is dead")


def test_one_in_an_earlier_collective_waits_for_somebody_there() -> None:
    answers = {1: Status(4, True, (2,)), 2: Status(4, False)}
    found = find(0, 5, (1,), answers.__getitem__)
    assert found is not None and (found.rank, found.word) == (2, LATE)
    assert found.text([f"rank {rank}" for rank in range(3)]) == (
        "rank 2 is not here yet: it has not come to this collective (rank 0 waits for rank 1, which waits for rank 2)"
    )


def test_a_connection_that_is_reset_is_no_death() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reset = struct.pack("ii", 1, 0)

        def refuse() -> None:
            connection, _ = listener.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            connection.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        assert ask_at("127.0.0.1", listener.getsockname()[1], b"?", LIMIT_S) == STOPPED
        thread.join()


def test_what_the_kernel_of_a_host_tells_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert ask_at("127.0.0.1", port, b"?", 0.2) == STOPPED  # the kernel accepted it, and nobody responds
    assert ask_at("127.0.0.1", port, b"?", LIMIT_S) == DEAD

    def silence(*_: object, **__: object) -> socket.socket:
        raise TimeoutError("timed out")

    monkeypatch.setattr(liveness.socket, "create_connection", silence)
    assert ask_at("127.0.0.1", port, b"?", 0.2) == UNREACHABLE


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_a_heartbeat_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SCALEACROSS_HEARTBEAT_S", text)
    with pytest.raises(InputError, match=r"SCALEACROSS_HEARTBEAT_S=.*a number of seconds above 0"):
        liveness.seconds_of("SCALEACROSS_HEARTBEAT_S", 1.0)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(SIZE, {"SCALEACROSS_HEARTBEAT_S": "1", "SCALEACROSS_PATIENCE_S": "5"})
    ranks.run(join_job)
    yield ranks
    ranks.close()


def hang(pool: RankPool, wrong: int, folder: Path, limit_s: float, signal_: int | None) -> Sequence[tuple[str, str]]:
    """Messages of the others about rank ``wrong``, which gets the signal if there is one."""
    for rank in range(SIZE):
        pool.post(rank, cases.ready_to_hang, SIZE, wrong, str(folder), limit_s)
    store = dist.FileStore(f"{folder}/hang-{wrong}", SIZE)
    store.wait([f"ready-{rank}" for rank in range(SIZE)], timedelta(seconds=LIMIT_S))
    process = pool._processes[wrong]
    assert process.pid is not None
    if signal_ is not None:
        os.kill(process.pid, signal_)
    others = [pool.take(rank) for rank in range(SIZE) if rank != wrong]
    if signal_ != signal.SIGKILL:
        store.set("go on", "1")
        os.kill(process.pid, signal.SIGCONT)
        pool.take(wrong)
    return others


def test_a_rank_that_never_comes_is_named_by_all(pool: RankPool, tmp_path: Path) -> None:
    for kind, text in hang(pool, 2, tmp_path, 6.0, None):
        assert kind in ("CollectiveTimeoutError", "PeerLostError")
        assert "rank 2 is not here yet: it has not come to this collective" in text


@pytest.mark.parametrize("wrong", [0, 1, 3])  # rank 0 serves the store, which does not respond then
def test_a_stopped_rank_is_named_by_all(pool: RankPool, tmp_path: Path, wrong: int) -> None:
    for kind, text in hang(pool, wrong, tmp_path, 120.0, signal.SIGSTOP):
        assert kind == "PeerLostError"
        assert f"rank {wrong} is stopped: its host answers, the process does not" in text


def test_an_unreachable_rank_is_named_by_all(pool: RankPool, tmp_path: Path) -> None:
    for rank, (kind, text) in enumerate(pool.run(cases.cut_off, SIZE, 1, str(tmp_path), 120.0)):
        assert rank == 1 or kind == "PeerLostError"
        assert rank == 1 or "rank 1 is unreachable: its host does not answer" in text


def test_a_killed_rank_is_named_by_all(pool: RankPool, tmp_path: Path) -> None:
    for kind, text in hang(pool, 0, tmp_path, 300.0, signal.SIGKILL):
        assert kind == "PeerLostError"
        assert "rank 0" in text and "the time limit is over" not in text
