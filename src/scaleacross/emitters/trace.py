"""A pipeline timeline as Chrome trace JSON, which Perfetto and chrome://tracing open: a row per rank, messages as arrows.

Format: "Trace Event Format" of the Chromium project; complete events ``X`` for computation, async events ``b``/``e`` for messages
on their link, flow events ``s``/``f`` from the sender to the receiver. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from scaleacross.spec.timeline import PipelineTimeline, TimelineMessage

TRACE_FILE = "trace.json"
_KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
_COMPUTATION, _LINKS = 0, 1  # process ids of the two groups of rows


def trace_json(timeline: PipelineTimeline) -> str:
    """Return the trace, one event per line."""
    events: list[dict[str, Any]] = [
        named("process_name", _COMPUTATION, 0, f"{timeline.schedule}: computation"),
        named("process_name", _LINKS, 0, f"{timeline.schedule}: messages"),
        *(named("thread_name", _COMPUTATION, rank, f"rank {rank}") for rank in range(timeline.num_ranks)),
    ]
    for rank, row in enumerate(timeline.rows):
        for cell, start, end in zip(row.actions, row.start_s, row.end_s, strict=True):
            kind = next(letter for letter in cell if letter.isalpha())
            at = {"ph": "X", "pid": _COMPUTATION, "tid": rank, "ts": us(start), "dur": lasts_us(start, end)}
            events.append({"name": cell, "cat": _KINDS[kind], **at})
    for number, message in enumerate(timeline.messages):
        events += _message_events(number, message)
    return events_json(events)


def _message_events(number: int, message: TimelineMessage) -> list[dict[str, Any]]:
    """Return an async event on the row of the link, and a flow from the end of the sending cell to the receiver's row."""
    link = f"rank {message.source} to {message.target}"
    flow = {"name": "message", "cat": "message", "id": number, "pid": _COMPUTATION}
    on_link = {"name": f"{link}: {message.action}", "cat": link, "id": number, "pid": _LINKS, "tid": message.source}
    return [
        {"ph": "b", "ts": us(message.sent_s), **on_link},
        {"ph": "e", "ts": us(message.arrival_s), **on_link},
        # a flow binds to the slice that encloses its time stamp, so it leaves just before the cell ends
        {"ph": "s", "ts": us(message.sent_s) - 0.001, "tid": message.source, **flow},
        # it binds to the next cell of the receiver
        {"ph": "f", "ts": us(message.arrival_s), "tid": message.target, **flow},
    ]


def named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """Return the event that names a process or thread."""
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def us(seconds: float) -> float:
    """Return microseconds, rounded to the nanosecond."""
    return round(seconds * 1e6, 3)


def lasts_us(start_s: float, end_s: float) -> float:
    """Return the microseconds between rounded ends, so that slices that follow one another never overlap."""
    return round(us(end_s) - us(start_s), 3)


def events_json(events: Iterable[dict[str, Any]]) -> str:
    """Return a trace of ``events``, one per line."""
    return '{"traceEvents": [\n' + ",\n".join(json.dumps(event) for event in events) + "\n]}\n"
