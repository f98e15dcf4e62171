"""Finding and reading dumps: ours, PyTorch's, and malicious ones."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from scaleacross.diagnosis import read
from scaleacross.diagnosis.read import find_dumps, read_dumps
from scaleacross.errors import InputError
from scaleacross.spec.trace import EXTRA_KEY


def entry(**changes: Any) -> dict[str, Any]:
    """An entry as PyTorch 2.13 writes it."""
    one = {
        "frames": [{"name": "step", "filename": "train.py", "line": 3}],
        "record_id": 0,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    return {**one, **changes}


def dump(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A dump of one rank of two."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": config, "entries": list(entries), **changes}


def write(directory: Path, rank: int, content: Any, form: str = "pickle") -> Path:
    path = directory / (f"trace_rank_{rank}" + ("" if form == "pickle" else ".json"))
    path.write_bytes(pickle.dumps(content, 2) if form == "pickle" else json.dumps(content).encode())
    return path


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_dump_of_pytorch_is_read(tmp_path: Path, form: str) -> None:
    done = entry(record_id=1, collective_seq_id=2, state="scheduled", retired=True)
    write(tmp_path, 1, dump(entry(), done), form)
    (trace,), unreadable = read_dumps(find_dumps([tmp_path]))
    first, second = trace.operations
    assert (trace.rank, trace.complete_from_start, unreadable) == (1, True, [])
    assert (first.op, first.sequence, first.state, first.input_sizes) == ("all_reduce", 1, "scheduled", ((4,),))
    assert first.group.ranks == (0, 1) and first.group is second.group and first.awaited is None
    assert second.state == "completed"  # gloo retires an operation without recording its end


def test_sends_and_receives_count_on_their_pair_and_name_ranks_of_the_job(tmp_path: Path) -> None:
    config = {"7": {"name": "7", "desc": "pp", "ranks": "[2, 5]"}}
    sends = [
        entry(record_id=number, process_group=("7", "pp"), profiling_name=name, is_p2p=True, p2p_seq_id=9)
        for number, name in enumerate(["nccl:send 0->1", "nccl:recv 0<-1", "nccl:send 0->1", "nccl:coalesced"])
    ]
    write(tmp_path, 2, dump(*sends, pg_config=config))
    ((trace,), _) = read_dumps(find_dumps([tmp_path]))
    assert [(one.op, one.pair, one.sequence) for one in trace.operations] == [
        ("send", (2, 5), 1),
        ("recv", (5, 2), 1),
        ("send", (2, 5), 2),
    ]


def test_groups_without_ranks_get_those_that_use_them(tmp_path: Path) -> None:
    for rank in (0, 3):
        write(tmp_path, rank, dump(entry(), pg_config={"": {"name": "", "desc": "", "ranks": "[0]"}}))
    traces, _ = read_dumps(find_dumps([tmp_path]))
    assert traces[0].operations[0].group.ranks == (0, 3)
    assert traces[0].operations[0].group is traces[1].operations[0].group


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "the dump is of type list, dict is needed"),
        ({"entries": []}, "version is of type NoneType, str is needed"),
        (dump(version="3.0"), "version is '3.0'; versions 2.x are read"),
        (dump(entries={}), "entries is of type dict, list is needed"),
        (dump(entry(record_id=-1)), r"entries\[0\].record_id is no whole number from 0"),
        (dump(entry(state="lost")), r"entries\[0\].state is 'lost'; known are scheduled, started, completed"),
        (dump(entry(process_group="0")), r"entries\[0\].process_group is no pair"),
        (dump(entry(input_sizes=[["4"]])), r"sizes of entries\[0\] hold something else"),
        (dump(entry(profiling_name="nccl:send 0->9")), "peers '0->9' in a group of 2 ranks"),
        (dump(entry(profiling_name="nccl:send zero")), "'send' with peers 'zero'"),
        (dump(pg_config={"0": {"name": "0", "ranks": "__import__('os')"}}), "Expecting value"),
        (dump(pg_config={"0": {"name": "0", "ranks": '["a"]'}}), "no list of ranks"),
    ],
)
def test_wrong_fields_are_named_and_the_other_dumps_read(tmp_path: Path, content: Any, reason: str) -> None:
    write(tmp_path, 0, dump(entry()))
    write(tmp_path, 1, content)
    traces, (bad,) = read_dumps(find_dumps([tmp_path]))
    assert [trace.rank for trace in traces] == [0] and bad.rank == 1
    with pytest.raises(ValueError, match=reason):
        raise ValueError(bad.reason)


@pytest.mark.parametrize(("form", "reason"), [("pickle", "ends in the middle"), ("json", "JSON ends in the middle")])
def test_a_truncated_file_is_named(tmp_path: Path, form: str, reason: str) -> None:
    write(tmp_path, 0, dump(entry()))
    path = write(tmp_path, 1, dump(entry()), form)
    path.write_bytes(path.read_bytes()[:-40])
    _, (bad,) = read_dumps(find_dumps([tmp_path]))
    assert bad.file == str(path) and reason in bad.reason


def test_a_hostile_pickle_is_refused(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "witness"),)

    write(tmp_path, 0, dump(entry()))
    (tmp_path / "trace_rank_1").write_bytes(pickle.dumps(Runs()))
    _, (bad,) = read_dumps(find_dumps([tmp_path]))
    assert "GLOBAL" in bad.reason and not (tmp_path / "witness").exists()


def test_pipes_devices_and_giants_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 0, dump())
    os.mkfifo(tmp_path / "trace_rank_1")
    (tmp_path / "trace_rank_2").symlink_to("/dev/zero")
    monkeypatch.setattr(read, "MAX_DUMP_BYTES", 2**20)
    (tmp_path / "trace_rank_3").write_bytes(b"\x80\x02" + bytes(2**20))
    (tmp_path / "trace_rank_4").touch()
    (tmp_path / "trace_rank_5.json").write_text("[" * 100_000)
    _, bad = read_dumps(find_dumps([tmp_path]))
    reasons = [one.reason.partition(",")[0] for one in bad]
    assert reasons[:4] == ["no regular file", "no regular file", "larger than 1 MiB", "the file is empty"]
    assert [one.rank for one in bad] == [1, 2, 3, 4, 5]


def test_what_refers_to_itself_costs_no_more_than_its_size(tmp_path: Path) -> None:
    shape: list[Any] = [1]
    shapes = [shape] * 2_000
    write(tmp_path, 0, dump(*[entry(record_id=number, input_sizes=shapes) for number in range(2_000)]))
    ((trace,), _) = read_dumps(find_dumps([tmp_path]))
    assert len({id(one.input_sizes) for one in trace.operations}) == 1


def test_our_fields_are_read_and_wrong_ones_left_out(tmp_path: Path) -> None:
    ours = {"op": "all_to_allv", "algorithm": "ring", "bytes": 16, "predicted_s": 0.5, "awaited": True}
    good = entry(**{EXTRA_KEY: {**ours, "cursors": {"1": [1, 2, 3, 4, 5, 6, 7, 8]}}})
    wrong = {"bytes": "16", "predicted_s": float("inf"), "awaited": 1, "cursors": {"1": [1], "x": [0] * 8}}
    write(tmp_path, 0, dump(good, entry(record_id=1, **{EXTRA_KEY: wrong})))
    ((trace,), _) = read_dumps(find_dumps([tmp_path]))
    first, second = trace.operations
    assert (first.op, first.algorithm, first.num_bytes, first.predicted_s, first.awaited) == tuple(ours.values())
    assert (first.cursors[1].sent_chunks, first.cursors[1].receive_ns) == (1, 8)
    assert (second.num_bytes, second.predicted_s, second.awaited, second.cursors) == (None, None, None, {})


def test_two_dumps_of_a_rank_and_no_dump_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no dump found; a dump's name ends in its rank"):
        find_dumps([tmp_path])
    with pytest.raises(InputError, match="no such file or directory"):
        find_dumps([tmp_path / "nowhere"])
    write(tmp_path, 0, dump())
    write(tmp_path, 0, dump(), "json")
    (tmp_path / "notes.txt").write_text("not a dump")
    _, (second,) = read_dumps(find_dumps([tmp_path]))
    assert "a second dump of rank 0" in second.reason
    (tmp_path / "trace_rank_0").write_text("x")
    (tmp_path / "trace_rank_0.json").unlink()
    with pytest.raises(InputError, match=r"none of 1 dumps can be read; .*does not begin like a pickle"):
        read_dumps(find_dumps([tmp_path]))
