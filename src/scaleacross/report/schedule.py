"""A pipeline step on the terminal: a Gantt chart as wide as the window, and its totals."""

from __future__ import annotations

from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from scaleacross.report.format import count, percent, plural
from scaleacross.spec.timeline import PipelineTimeline, TimelineRow
from scaleacross.units import human_bytes, human_seconds

IDLE: Final = "·"
STYLES: Final = {"F": "black on cyan", "B": "black on green", "I": "black on green", "W": "black on yellow"}
MAX_RANKS_LISTED: Final = 16  # peaks are listed one by one up to here


def schedule_report(timeline: PipelineTimeline) -> RenderableType:
    """Gantt chart and totals."""
    return Group(Text(_title(timeline), style="bold"), Gantt(timeline), Text(), *_totals(timeline))


class Gantt:
    """A line per rank. A cell shows kind and micro-batch if it is wide enough; · is idle."""

    def __init__(self, timeline: PipelineTimeline) -> None:
        self.timeline = timeline

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lines that fill the width of ``console``."""
        label = len(str(self.timeline.num_ranks - 1)) + 6
        width = max(20, options.max_width - label)
        for rank, row in enumerate(self.timeline.rows):
            line = Text(f"rank {rank}".ljust(label), no_wrap=True)
            line.append_text(bars(row, self.timeline, width))
            yield line
        legend = "F forward, B backward, I input gradient, W weight gradient, then the micro-batch; · idle"
        if self.timeline.num_chunks > 1:
            legend += "; small letters: odd chunks"
        yield Text(" " * label + legend, style="dim")


def bars(row: TimelineRow, timeline: PipelineTimeline, width: int) -> Text:
    """Return ``row`` in ``width`` columns of equal time; cells too short for a column are left out."""
    out, at, step_s = Text(), 0, timeline.step_s
    for cell, start, end in zip(row.actions, row.start_s, row.end_s, strict=True):
        first, last = round(start / step_s * width), round(end / step_s * width)
        if last <= max(first, at):
            continue
        out.append(IDLE * max(0, first - at), style="dim")
        # rounding may overlap two cells; the later one then begins where the earlier one ends
        first = max(first, at)
        label = cell.lstrip("0123456789")
        style, odd = STYLES[label[0]], int(cell[: -len(label)]) // timeline.num_ranks % 2
        label = label.lower() if odd else label
        text = label if len(label) <= last - first else label[0]
        out.append(text.ljust(last - first, "─"), style=style)
        at = last
    out.append(IDLE * (width - at), style="dim")
    return out


def _title(timeline: PipelineTimeline) -> str:
    copies = f", {timeline.num_copies} copies of the model" if timeline.num_copies > 1 else ""
    ranks, chunks = plural(timeline.num_ranks, "rank"), plural(timeline.num_chunks, "chunk")
    placed = f"{chunks} per rank, stages in a {timeline.placement}{copies}"
    return f"{timeline.schedule}: {ranks}, m = {count(timeline.num_microbatches)} micro-batches, {placed}"


def _totals(timeline: PipelineTimeline) -> list[Text]:
    peaks = [row.peak_in_flight for row in timeline.rows]
    listed = f" ({' '.join(map(str, peaks))})" if len(peaks) <= MAX_RANKS_LISTED and len(set(peaks)) > 1 else ""
    rows = [
        ("step", human_seconds(timeline.step_s)),
        ("bubble", f"{percent(timeline.bubble_fraction)} of all ranks' time"),
        ("peak in flight", f"{plural(max(peaks), 'chunk activation')}{listed}"),
        ("messages", _messages(timeline)),
    ]
    if timeline.note:
        rows.append(("note", timeline.note))
    return [Text(f"{name:<16}{value}") for name, value in rows]


def _messages(timeline: PipelineTimeline) -> str:
    busiest = max(timeline.messages_per_cut, default=0)
    text = f"{count(len(timeline.messages))} per step, {count(busiest)} over the busiest cut per direction"
    if timeline.message_bytes is not None:
        text += f" ({human_bytes(busiest * timeline.message_bytes)} of {human_bytes(timeline.message_bytes)} each)"
    return text
