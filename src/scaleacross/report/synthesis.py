"""A synthesized collective: its time, its bound, and the links that carry most."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType

from scaleacross.report.format import add, columns, count, grid, percent, plural, rate, section
from scaleacross.spec.synthesis import SynthesisPhase, SynthesisStudy
from scaleacross.units import human_bytes, human_seconds

_SHOWN_LINKS = 8
_STATUS = {
    "optimal": "optimal for whole chunks of this size",
    "time_limit": "time limit: not proved",
}


def synthesis_report(study: SynthesisStudy) -> RenderableType:
    """Facts, phases, and the busiest links of each phase."""
    chunk_bytes = study.size_bytes / study.num_ranks / study.num_chunks
    facts = grid(
        [
            ("collective", f"{study.op} of {human_bytes(study.size_bytes)} on {study.network}"),
            (
                "ranks",
                f"{count(study.num_ranks)}, {plural(study.num_chunks, 'chunk')} of {human_bytes(chunk_bytes)} each",
            ),
            (
                "time",
                f"{human_seconds(study.time_s)} (algbw {rate(study.algorithm_bytes_per_s)}, busbw {rate(study.bus_bytes_per_s)})",
            ),
            ("no schedule below", f"{human_seconds(study.bound_s)} (gap {percent(study.gap)})"),
            ("search", f"{human_seconds(study.elapsed_s)} with {study.solver}"),
        ]
    )
    heads = ("phase", "messages", "time", "bound", "status")
    table = columns(heads, right=heads[1:4], flexible=("status",))
    for phase in study.phases:
        times = human_seconds(phase.time_s), human_seconds(phase.bound_s)
        add(table, phase.op, count(len(phase.messages)), *times, _STATUS[phase.status])
    return Group(facts, section("Phases", table), section("Busiest links", _links(study.phases[-1], chunk_bytes)))


def _links(phase: SynthesisPhase, chunk_bytes: float) -> RenderableType:
    """Return pairs of ranks of the last phase, by the bytes between them."""
    heads = ("from", "to", "messages", "bytes")
    table = columns(heads, right=heads)
    carried = Counter((message.source, message.destination) for message in phase.messages)
    for (source, destination), number in carried.most_common(_SHOWN_LINKS):
        add(table, str(source), str(destination), count(number), human_bytes(number * chunk_bytes))
    return table
