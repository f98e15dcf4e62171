"""The flight recorder and its dumps, read by PyTorch's own ``fr_trace``."""

from __future__ import annotations

import json
import pickle
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

from scaleacross.errors import InputError
from scaleacross.runtime.faults import CollectiveTimeoutError
from scaleacross.runtime.trace import FlightRecorder, Record
from scaleacross.runtime.tracing import GroupCursor
from scaleacross.runtime.work import QueuedWork
from scaleacross.spec.launch import ProcessGroups
from scaleacross.spec.plan import PredictedCollective

PLANNED = ProcessGroups(
    axis="dp_shard",
    degree=2,
    level="campus",
    ranks=((0, 1),),
    levels=("campus",),
    collectives=(
        PredictedCollective(
            name="dp_shard all_gather",
            axis="dp_shard",
            op="all_gather",
            group_size=2,
            bytes_per_rank=1e6,
            per_step=1,
            level="campus",
            algorithm="ring",
            time_s=0.01,
        ),
    ),
)


def _issue(recorder: FlightRecorder, op: str = "all_reduce", count: int = 8, *, done: bool = True) -> Record:
    held = recorder.records()
    group = held[-1].group if held else recorder.group("world", range(recorder.world_size), "default_pg")
    record = recorder.begin(group, op, count, count, "float32", num_bytes=4 * count, algorithm="ring")
    record.start()
    if done:
        record.end()
    return record


def test_the_ring_keeps_the_last_records_in_order() -> None:
    recorder = FlightRecorder(0, 2, capacity=5)
    for _ in range(12):
        _issue(recorder)
    assert [one.record_id for one in recorder.records()] == [7, 8, 9, 10, 11]
    assert [one.sequence for one in recorder.records()] == [8, 9, 10, 11, 12]


def test_threads_share_the_ring_without_loss_or_double_numbers() -> None:
    recorder = FlightRecorder(0, 2, capacity=20_000)
    group = recorder.group("world", (0, 1))
    old, _ = sys.getswitchinterval(), sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(
                target=lambda: [recorder.begin(group, "all_reduce", 1, 1, "int8").end() for _ in range(2_000)],
                daemon=True,
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            recorder.records()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(old)
    held = recorder.records()
    assert [one.record_id for one in held] == list(range(16_000))
    assert [one.sequence for one in held] == list(range(1, 16_001))


def test_predictions_come_from_the_launch_file_in_proportion_to_near_sizes() -> None:
    recorder = FlightRecorder(0, 2)
    group = recorder.group("dp_shard.0", (0, 1), "dp_shard", PLANNED)

    def predicted(op: str, num_bytes: int) -> float | None:
        return recorder.begin(group, op, 1, 2, "float32", num_bytes=num_bytes).predicted_s

    assert predicted("all_gather", 1_000_000) == 0.01
    assert predicted("all_gather", 1_500_000) == pytest.approx(0.015)
    assert predicted("all_gather", 2_100_000) is None
    assert predicted("all_reduce", 1_000_000) is None


def test_a_dump_holds_cursors_predictions_and_only_plain_values(tmp_path: Path) -> None:
    recorder = FlightRecorder(1, 4)
    record = recorder.begin(recorder.group("dp", (0, 1), "dp_shard"), "all_gather", 4, 8, "bfloat16", predicted_s=0.5)
    record.start()
    record.expect(0, chunks_to_send=4, chunks_to_receive=4)
    record.sent(0, 100, 7)
    record.sent(0, 100, 8)
    record.received(0, 50, 9)
    record.await_result()
    path = recorder.dump(tmp_path)
    assert path == tmp_path / "trace_rank_1"
    content = pickle.loads(path.read_bytes())
    (entry,) = content["entries"]
    assert content["pg_config"] == {"dp": {"name": "dp", "desc": "dp_shard", "ranks": "[0, 1]"}}
    assert entry["state"] == "started" and entry["time_discovered_completed_ns"] is None
    assert entry["scaleacross"]["cursors"] == {"0": [2, 4, 1, 4, 200, 15, 50, 9]}
    assert entry["scaleacross"]["predicted_s"] == 0.5 and entry["scaleacross"]["awaited"] is True
    assert abs(entry["time_created_ns"] - time.time_ns()) < 60e9
    assert entry["profiling_name"] == "gloo:all_gather"
    assert json.loads(json.dumps(content)) == content | {"entries": [entry | {"process_group": ["dp", "dp_shard"]}]}
    assert [one.name for one in tmp_path.iterdir()] == ["trace_rank_1"]


def test_messages_under_way_at_once_count_once() -> None:
    """Concurrent messages count once.

    Ten that were posted together a second ago have taken a second, not ten.
    """
    record = _issue(FlightRecorder(0, 2), done=False)
    cursor = GroupCursor(record, (0, 1))
    for _ in range(10):
        cursor.sent(1, 1000, time.perf_counter_ns() - 10**9)
        cursor.received(1, 1000, time.perf_counter_ns() - 10**9)
    sent_chunks, _, received_chunks, _, sent_bytes, send_ns, received_bytes, receive_ns = record.cursors[1]
    assert (sent_chunks, received_chunks, sent_bytes, received_bytes) == (10, 10, 10_000, 10_000)
    assert 10**9 <= send_ns < 2 * 10**9 and 10**9 <= receive_ns < 2 * 10**9


def test_a_future_fails_with_its_work_and_leaves_open_who_waits() -> None:
    work = QueuedWork("all_reduce", [], 60.0)
    work.record = _issue(FlightRecorder(0, 2), done=False)
    future = work.get_future()
    assert work.record.awaited is None
    follows = future.then(lambda one: one.value())
    work.complete(CollectiveTimeoutError("the time limit is over"))
    for one in (future, follows, work.get_future()):
        with pytest.raises(RuntimeError, match="the time limit is over"):
            one.wait()


def test_a_failed_operation_stays_incomplete_with_its_reason(tmp_path: Path) -> None:
    recorder = FlightRecorder(0, 2)
    _issue(recorder, done=False).end(RuntimeError("peer 1 closed the connection"))
    (entry,) = pickle.loads(recorder.dump(tmp_path).read_bytes())["entries"]
    assert (entry["state"], entry["scaleacross"]["error"]) == ("started", "peer 1 closed the connection")


def test_a_group_made_again_counts_from_the_start(tmp_path: Path) -> None:
    recorder = FlightRecorder(0, 4)
    for ranks in ((0, 1), (0, 1), (0, 1, 2)):
        recorder.begin(recorder.group("0", ranks), "barrier", 0, 0, "int8")
    content = pickle.loads(recorder.dump(tmp_path).read_bytes())
    assert [(one["process_group"][0], one["collective_seq_id"]) for one in content["entries"]] == [
        ("0", 1),
        ("0#2", 1),
        ("0#3", 1),
    ]
    assert content["pg_config"]["0#3"]["ranks"] == "[0, 1, 2]"


def test_groups_and_ranks_are_checked() -> None:
    with pytest.raises(InputError, match="rank 0 is not in group 'tp'"):
        FlightRecorder(0, 4).group("tp", (1, 2))
    with pytest.raises(InputError, match="rank 4 of 4"):
        FlightRecorder(4, 4)
