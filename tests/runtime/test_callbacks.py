"""Callbacks of futures may communicate and wait for it without blocking the thread that runs collectives."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from rank_pool import RankPool, join_job

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import callback_cases as cases

from scaleacross.runtime import work as work_module
from scaleacross.runtime.callbacks import Callbacks
from scaleacross.runtime.faults import CollectiveTimeoutError
from scaleacross.runtime.work import QueuedWork

SIZE = 3
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(SIZE)
    ranks.run(join_job)
    yield ranks
    ranks.close()


def test_callbacks_that_communicate_end(pool: RankPool) -> None:
    total = float(sum(range(1, SIZE + 1)))
    assert pool.run(cases.chained, SIZE, limit_s=LIMIT_S) == [(total * SIZE * SIZE, total)] * SIZE


def test_power_sgd_of_torch_ends_with_equal_weights(pool: RankPool) -> None:
    weights = pool.run(cases.compressed_by_power_sgd, SIZE, limit_s=LIMIT_S)
    assert weights == [weights[0]] * SIZE


def test_the_time_limit_counts_from_the_call(pool: RankPool) -> None:
    for outcomes in pool.run(cases.queued_behind_a_late_one, SIZE)[:-1]:
        assert all("the time limit is over" in text for _, text, _ in outcomes)


def test_a_callback_that_fails_fails_its_future_only(pool: RankPool) -> None:
    for text, value in pool.run(cases.callback_that_fails, SIZE):
        assert "no such bucket" in text
        assert value == SIZE


def test_every_waiting_job_has_a_thread_of_its_own_and_idle_ones_are_used_again() -> None:
    callbacks, gates = Callbacks(), [threading.Event() for _ in range(5)]
    names: list[str] = []

    def job(index: int) -> None:
        if index + 1 < len(gates):
            callbacks.run(lambda: job(index + 1))
            assert gates[index + 1].wait(LIMIT_S)
        names.append(threading.current_thread().name)
        gates[index].set()

    callbacks.run(lambda: job(0))
    assert gates[0].wait(LIMIT_S)
    assert len(names) == len(gates)


def test_a_work_whose_group_never_runs_it_ends_with_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "OVERTIME_S", 0.2)
    work = QueuedWork("all_reduce by ring in group g", [], 0.1)
    assert work.deadline > time.monotonic() - LIMIT_S
    with pytest.raises(CollectiveTimeoutError, match="the thread of the group is held up"):
        work.wait()
