"""Writes a rank's records as a file of PyTorch's flight recorder, for its ``fr_trace`` and ``scaleacross diagnose``.

Field names are those of format 2.10. ``fr_trace`` accepts a fixed set of names: the library before the colon is
``gloo``. It counts the ranks of a send or receive within the group.
"""

from __future__ import annotations

import os
import pickle
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleacross.spec.trace import DUMP_PREFIX, EXTRA_KEY, FORMAT_VERSION

if TYPE_CHECKING:
    from scaleacross.runtime.trace import FlightRecorder, Record

LIBRARY: Final = "gloo"


def write_dump(recorder: FlightRecorder, directory: Path) -> Path:
    """Write the file of ``recorder``'s rank into ``directory``, all or nothing; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    data = pickle.dumps(dump_content(recorder), protocol=4)
    target = directory / f"{DUMP_PREFIX}{recorder.rank}"
    # a name that no reader of the folder takes for a dump
    partial = directory / f".{os.getpid()}-{recorder.rank}.partial"
    try:
        partial.write_bytes(data)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def dump_content(recorder: FlightRecorder) -> dict[str, Any]:
    """Return plain containers and scalars as in format 2.10. Only groups with a record appear."""
    records = recorder.records()
    used = {record.group.number: record.group for record in records}
    notes_waits = any(
        record.awaited for record in records
    )  # a program that never says what it awaits tells nothing by silence
    return {
        "version": FORMAT_VERSION,
        "comm_lib_version": "scaleacross",
        "pg_config": {
            group.name: {"name": group.name, "desc": group.desc, "ranks": str(list(group.ranks))}
            for group in used.values()
        },
        "pg_status": {str(number): _status(records, number) for number in used},
        "entries": [_entry(recorder, record, notes_waits) for record in records],
        "rank": recorder.rank,
        "world_size": recorder.world_size,
        "host_name": socket.gethostname(),
    }


def _status(records: list[Record], number: int) -> dict[str, int]:
    """Return the last sequence number of each state in one group, -1 if there is none."""
    own = [one for one in records if one.group.number == number and one.pair is None]
    return {
        "last_enqueued_collective": max((one.sequence for one in own), default=-1),
        "last_started_collective": max((one.sequence for one in own if one.started_ns is not None), default=-1),
        "last_completed_collective": max((one.sequence for one in own if one.completed_ns is not None), default=-1),
    }


def _entry(recorder: FlightRecorder, record: Record, notes_waits: bool) -> dict[str, Any]:
    group, state = record.group, record.state
    pair = record.pair
    name = f"{LIBRARY}:{record.op}"
    if pair is not None:
        source, target = group.ranks.index(pair[0]), group.ranks.index(pair[1])
        name += f" {source}->{target}" if record.op == "send" else f" {target}<-{source}"
    return {
        "frames": [],
        "record_id": record.record_id,
        "pg_id": group.number,
        "process_group": (group.name, group.desc),
        "collective_seq_id": record.sequence if pair is None else 0,
        "p2p_seq_id": 0 if pair is None else record.sequence,
        "op_id": record.record_id + 1,
        "profiling_name": name,
        "time_created_ns": recorder.wall_ns(record.created_ns),
        "input_sizes": [[record.num_inputs]],
        "input_dtypes": [record.dtype],
        "output_sizes": [[record.num_outputs]],
        "output_dtypes": [record.dtype],
        "state": state,
        "time_discovered_started_ns": recorder.wall_ns(record.started_ns),
        "time_discovered_completed_ns": recorder.wall_ns(record.completed_ns),
        "retired": state == "completed",
        "is_p2p": pair is not None,
        EXTRA_KEY: {
            "op": record.op,
            "algorithm": record.algorithm,
            "bytes": record.num_bytes,
            "predicted_s": record.predicted_s,
            "compression_ratio": record.compression_ratio,
            "awaited": record.awaited if notes_waits else None,
            "error": record.error,
            "cursors": {str(peer): list(cursor) for peer, cursor in record.cursors.copy().items()},
        },
    }
