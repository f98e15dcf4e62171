"""A replayed step as Chrome trace JSON, which Perfetto and chrome://tracing open.

A process per class of ranks (pipeline stage and building), with a thread per stream: compute, tp/cp/ep, pp, dp; counters for what
is used of every trunk and oversubscribed uplink. Format: "Trace Event Format" of the Chromium project; times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from scaleacross.errors import InputError
from scaleacross.spec.simulation import LinkUse, SimulatedRow, SimulatedStep

STREAMS: Final = {"compute": 0, "optimizer": 0, "tp": 1, "cp": 1, "ep": 1, "pp": 2, "dp": 3}
STREAM_NAMES: Final = ("compute", "tp/cp/ep", "pp", "dp")
BESIDE: Final = (
    10  # threads of what runs beside computation are numbered from here, so that spans of a thread never cross
)
MAX_EVENTS: Final = 2_000_000


def step_trace_json(step: SimulatedStep) -> str:
    """The trace, one event per line.

    Raises:
        InputError: the step was simulated without its timeline, or is too large to be opened.
    """
    if not any(row.spans for row in step.rows):
        raise InputError("the replay holds no timeline: simulate with timeline=True")
    size = sum(len(row.spans) for row in step.rows)
    if size > MAX_EVENTS:
        raise InputError(
            f"the trace would have {size:,} events, more than the {MAX_EVENTS:,} that a viewer opens: fold it"
        )
    events = [event for number, row in enumerate(step.rows) for event in _row(number, row)]
    events += [event for link in step.links for event in _counter(len(step.rows), link)]
    if step.links:
        events.append(_named("process_name", len(step.rows), 0, "links"))
    return '{"traceEvents": [\n' + ",\n".join(json.dumps(event) for event in events) + "\n]}\n"


def _row(process: int, row: SimulatedRow) -> Iterator[dict[str, Any]]:
    yield _named("process_name", process, 0, f"{row.name}, {row.num_ranks} ranks")
    yield {"name": "process_sort_index", "ph": "M", "pid": process, "tid": 0, "args": {"sort_index": row.stage}}
    lanes: dict[int, list[float]] = {}
    used: set[int] = set()
    for span in sorted(row.spans, key=lambda one: one.start_s):
        thread = STREAMS[span.kind]
        if span.beside:  # the first lane of the stream that is free again
            ends = lanes.setdefault(thread, [])
            lane = next((index for index, end in enumerate(ends) if end <= span.start_s), len(ends))
            ends[lane : lane + 1] = [span.end_s]
            thread = BESIDE * (thread + 1) + lane
        used.add(thread)
        at = {"ph": "X", "pid": process, "tid": thread, "ts": _us(span.start_s), "dur": _us(span.end_s - span.start_s)}
        yield {"name": span.label if span.kind == "compute" else f"{span.kind} {span.label}", "cat": span.kind, **at}
    for thread in sorted(used):
        beside = thread >= BESIDE
        name = STREAM_NAMES[thread // BESIDE - 1] + " beside" if beside else STREAM_NAMES[thread]
        yield _named("thread_name", process, thread, name)


def _counter(process: int, link: LinkUse) -> Iterator[dict[str, Any]]:
    """The share of a link that is used, from each moment on."""
    for time, rate in zip(link.time_s, link.rate_bytes_per_s, strict=True):
        used = {"used %": round(100 * rate / link.capacity_bytes_per_s, 2)}
        yield {"name": link.name, "ph": "C", "pid": process, "tid": 0, "ts": _us(time), "args": used}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
