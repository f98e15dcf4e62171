"""Writes the traces of a run as Chrome trace JSON for Perfetto, with measured and predicted times.

Every rank is a process with two rows per group. *Measured* shows each operation from its start to its end. *Predicted*
shows the time that the plan predicts, from the same start. An operation that never ended is drawn up to the last event
of the job. Times are those of each rank's own host, in microseconds from the first event. Format: "Trace Event Format"
of the Chromium project.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from scaleacross.spec.trace import Operation, RankTrace, TraceGroup


def perfetto_json(traces: Iterable[RankTrace]) -> Iterator[str]:
    """Yield the JSON in pieces, one event per line, so that thousands of ranks need no second copy in memory."""
    held = list(traces)
    times = [
        time
        for trace in held
        for one in trace.operations
        for time in (one.created_ns, one.completed_ns)
        if time is not None
    ]
    first, last = min(times, default=0), max(times, default=0)
    separator = '{"traceEvents": [\n'
    for trace in held:
        rows = {group: 2 * number for number, group in enumerate(dict.fromkeys(one.group for one in trace.operations))}
        for event in (*_names(trace, rows), *_events(trace, rows, first, last)):
            yield separator + json.dumps(event)
            separator = ",\n"
    yield ("" if separator == ",\n" else separator) + "\n]}\n"


def _names(trace: RankTrace, rows: dict[TraceGroup, int]) -> Iterator[dict[str, Any]]:
    host = f" on {trace.host}" if trace.host else ""
    yield _named("process_name", trace.rank, 0, f"rank {trace.rank}{host}")
    for group, row in rows.items():
        yield _named("thread_name", trace.rank, row, f"{group.desc or group.name} measured")
        yield _named("thread_name", trace.rank, row + 1, f"{group.desc or group.name} predicted")


def _events(trace: RankTrace, rows: dict[TraceGroup, int], first: int, last: int) -> Iterator[dict[str, Any]]:
    for one in trace.operations:
        begin = one.started_ns or one.created_ns
        end = last if one.completed_ns is None and one.state != "completed" else (one.completed_ns or begin)
        label = f"{one.op} #{one.sequence}"
        measured = {
            "name": label if one.state == "completed" else f"{label} ({one.state}, never ended)",
            "cat": one.state,
        }
        at = {"ph": "X", "pid": trace.rank, "ts": (begin - first) / 1e3}
        row = rows[one.group]
        yield {**measured, **at, "tid": row, "dur": max(end - begin, 0) / 1e3, "args": _facts(one, end - begin)}
        if one.predicted_s is not None:
            yield {"name": label, "cat": "predicted", **at, "tid": row + 1, "dur": one.predicted_s * 1e6}


def _facts(one: Operation, duration_ns: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"bytes": one.num_bytes, "algorithm": one.algorithm, "queued_us": None}
    if one.started_ns is not None:
        facts["queued_us"] = (one.started_ns - one.created_ns) / 1e3
    if one.predicted_s is not None:
        facts["predicted_us"] = one.predicted_s * 1e6
        facts["measured_over_predicted"] = round(duration_ns / 1e9 / one.predicted_s, 3)
    if one.compression_ratio is not None:
        facts["compression_ratio"] = round(one.compression_ratio, 3)
    for peer, cursor in one.cursors.items():
        sent, received = (
            f"{cursor.sent_chunks}/{cursor.chunks_to_send}",
            f"{cursor.received_chunks}/{cursor.chunks_to_receive}",
        )
        facts[f"peer {peer}"] = f"sent {sent}, received {received} chunks"
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
