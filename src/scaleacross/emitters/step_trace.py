"""A simulated step as Chrome trace JSON, which Perfetto and chrome://tracing open.

The trace has a process for the critical path, then one per class of ranks (pipeline stage and building). Each has a
thread per stream: compute, tp/cp/ep, pp, dp. An arrow leads from every pipeline message to the receiver's next
computation. Counters show the use of every inter-building link and oversubscribed uplink. Format: "Trace Event Format"
of the Chromium project; times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from scaleacross.emitters.trace import events_json, lasts_us, named, us
from scaleacross.errors import InputError
from scaleacross.spec.simulation import Delivery, LinkUse, SimulatedRow, SimulatedStep, Span

STREAMS: Final = {"compute": 0, "optimizer": 0, "tp": 1, "cp": 1, "ep": 1, "pp": 2, "dp": 3}
STREAM_NAMES: Final = ("compute", "tp/cp/ep", "pp", "dp")
CONCURRENT: Final = 10
"""First thread number of transfers that run concurrently with computation. Each lane has its own thread, so spans never
cross.
"""
ARROW: Final = {"name": "message", "cat": "message"}
MAX_EVENTS: Final = 2_000_000


def step_trace_json(step: SimulatedStep) -> str:
    """Return the trace, one event per line.

    Raises:
        InputError: the step was simulated without its timeline, or has too many events for a viewer.
    """
    if not any(row.spans for row in step.rows):
        raise InputError("the simulated step holds no timeline: simulate with timeline=True")
    size = sum(len(row.spans) for row in step.rows)
    if size > MAX_EVENTS:
        raise InputError(
            f"the trace would have {size:,} events, more than the {MAX_EVENTS:,} that a viewer opens: fold it"
        )
    critical, links = len(step.rows), len(step.rows) + 1
    events = [event for number, row in enumerate(step.rows) for event in _row(number, row)]
    events += [event for number, one in enumerate(step.messages) for event in _arrival(number, one)]
    events += _critical(critical, step)
    events += [event for link in step.links for event in _counter(links, link)]
    if step.links:
        events.append(named("process_name", links, 0, "links"))
    return events_json(events)


def _row(process: int, row: SimulatedRow) -> Iterator[dict[str, Any]]:
    yield named("process_name", process, 0, f"{row.name}, {row.num_ranks} ranks")
    yield {"name": "process_sort_index", "ph": "M", "pid": process, "tid": 0, "args": {"sort_index": row.stage}}
    lanes: dict[int, list[float]] = {}
    used: set[int] = set()
    for span in sorted(row.spans, key=lambda one: one.start_s):
        thread = STREAMS[span.kind]
        if span.beside:  # the first lane of the stream that is free again
            ends = lanes.setdefault(thread, [])
            lane = next((index for index, end in enumerate(ends) if end <= span.start_s), len(ends))
            ends[lane : lane + 1] = [span.end_s]
            thread = CONCURRENT * (thread + 1) + lane
        used.add(thread)
        at = {"pid": process, "tid": thread, "ts": us(span.start_s)}
        yield {"name": _title(span), "cat": span.kind, "ph": "X", "dur": lasts_us(span.start_s, span.end_s), **at}
        if span.message is not None:
            yield {**ARROW, "ph": "s", "id": span.message, **at}
    for thread in sorted(used):
        concurrent = thread >= CONCURRENT
        name = STREAM_NAMES[thread // CONCURRENT - 1] + ", concurrent" if concurrent else STREAM_NAMES[thread]
        yield named("thread_name", process, thread, name)


def _arrival(number: int, one: Delivery) -> Iterator[dict[str, Any]]:
    """Yield the end of an arrow: it binds to the next slice of the receiver's computations."""
    yield {**ARROW, "ph": "f", "id": number, "pid": one.row, "tid": STREAMS["compute"], "ts": us(one.arrival_s)}


def _critical(process: int, step: SimulatedStep) -> Iterator[dict[str, Any]]:
    """Yield the critical path as a separate process. Each slice ends where the next begins."""
    spans = ((row, span) for row in step.rows for span in row.spans if span.critical)
    path = sorted((span.start_s, span.end_s, f"{row.name}: {_title(span)}") for row, span in spans)
    if not path:
        return
    yield named("process_name", process, 0, "critical path")
    yield {"name": "process_sort_index", "ph": "M", "pid": process, "tid": 0, "args": {"sort_index": -1}}
    for index, (start, end, title) in enumerate(path):
        over = min(end, path[index + 1][0]) if index + 1 < len(path) else end
        if us(over) > us(start):
            at = {"ph": "X", "pid": process, "tid": 0, "ts": us(start), "dur": lasts_us(start, over)}
            yield {"name": title, "cat": "critical path", **at}


def _title(span: Span) -> str:
    return span.label if span.kind == "compute" else f"{span.kind} {span.label}"


def _counter(process: int, link: LinkUse) -> Iterator[dict[str, Any]]:
    """Yield the used percentage of a link, from each moment on."""
    for time, rate in zip(link.time_s, link.rate_bytes_per_s, strict=True):
        used = {"used %": round(100 * rate / link.capacity_bytes_per_s, 2)}
        yield {"name": link.name, "ph": "C", "pid": process, "tid": 0, "ts": us(time), "args": used}
