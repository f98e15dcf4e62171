"""A simulated step on the terminal: its estimate, the differences and their causes, links, and a chart of the step."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from scaleacross.report.cost import COMPONENT_MEANING
from scaleacross.report.format import add, cell, columns, count, grid, percent, plural, rate, section
from scaleacross.report.schedule import IDLE
from scaleacross.spec.simulation import SimulatedRow, SimulatedStep, Span, SpanKind, StepDraws
from scaleacross.units import human_bytes, human_seconds

ACTION: Final = re.compile(r"\d*([FBIW])(\d+)")
"""Label of a computation: virtual stage, pass, micro-batch."""
LETTERS: Final = {"compute": "█", "tp": "t", "cp": "c", "ep": "e", "pp": "p", "dp": "d", "optimizer": "o"}
STYLES: Final = {
    "F": "cyan",
    "B": "green",
    "I": "green",
    "W": "yellow",
    "compute": "green",
    "tp": "cyan",
    "cp": "cyan",
    "ep": "cyan",
    "pp": "yellow",
    "dp": "magenta",
}
MAX_ROWS: Final = 40
NUM_LINKS: Final = 8
FOLDING: Final = {
    "exact": "the ranks of a class are alike",
    "rounded": "ranks of a class differ only far away from them; link loads are means over alike links",
    "none": "every rank was simulated",
}


def simulation_report(step: SimulatedStep, gantt: bool = False) -> RenderableType:
    """Return facts, components, causes of differences and links; ``gantt`` adds the chart."""
    parts = [_facts(step), _components(step)]
    if step.flags:
        causes = (f"{COMPONENT_MEANING[one.component]} ({_signed(one.share)}): {one.cause}" for one in step.flags)
        parts.append(section("Why they differ", *map(cell, causes)))
    if step.links:
        parts.append(_links(step))
    if gantt:
        parts.append(section("Step", StepChart(step)))
    return Group(*parts)


def step_draws_report(found: StepDraws) -> RenderableType:
    """Return the step time over draws, relative to the step without jitter."""
    order = ("p5", "p50", "p95", "mean")
    table = columns(("", *order), right=order)
    add(table, "step", *(human_seconds(found.step_s[name]) for name in order))  # type: ignore[index]
    add(table, "over steady", *(_signed(found.step_s[name] / found.steady_s - 1) for name in order))  # type: ignore[index]
    facts = [("what if", ", ".join(found.what_if)), ("steady", f"{human_seconds(found.steady_s)} without jitter")]
    return section(
        f"{found.plan_name}: {found.draws:,} draws of a step (seed {found.seed})", table, Text(), grid(facts)
    )


def _facts(step: SimulatedStep) -> RenderableType:
    classes = "1 class" if step.num_classes == 1 else f"{count(step.num_classes)} classes"
    simulated = f"{count(step.num_ranks)} ranks in {classes}"
    rows = [
        ("simulated", f"{step.plan_name}: {simulated}, {plural(step.num_tasks, 'task')}; {FOLDING[step.folding]}"),
        (
            "step",
            f"{human_seconds(step.step_s)}; its estimate is {human_seconds(step.predicted_step_s)} ({_signed(step.difference)})",
        ),
    ]
    if step.change:
        rows.append(("what if", step.change))
    return grid([*rows, *(("note", note) for note in step.notes)])


def _components(step: SimulatedStep) -> RenderableType:
    table = columns(("component", "plan", "simulated", "of the step", ""), right=("plan", "simulated", "of the step"))
    for one in step.differences:
        idle = not one.predicted_s and not one.simulated_s
        flag = Text("differs", style="yellow") if one.flagged else Text("")
        seconds = human_seconds(one.predicted_s), human_seconds(one.simulated_s)
        add(table, COMPONENT_MEANING[one.component], *seconds, _signed(one.share), flag, style="dim" if idle else "")
    table.add_section()
    seconds = human_seconds(step.predicted_step_s), human_seconds(step.step_s)
    add(table, "step", *seconds, _signed(step.difference), "", style="bold")
    return section("Estimated and simulated step time", table)


def _links(step: SimulatedStep) -> RenderableType:
    table = columns(("link", "capacity", "carried", "used"), right=("capacity", "carried", "used"), flexible=("link",))
    for link in step.links[:NUM_LINKS]:
        used = percent(link.mean_utilisation)
        add(table, link.name, rate(link.capacity_bytes_per_s), human_bytes(link.carried_bytes), used)
    more = len(step.links) - NUM_LINKS
    return section(
        "Inter-building links and oversubscribed uplinks",
        table,
        *([Text(f"and {more} more", style="dim")] if more > 0 else []),
    )


def _signed(fraction: float) -> str:
    return f"{fraction * 100:+.1f} %"


class StepChart:
    """A line per class of ranks over a time axis. A column shows what took most of its time; · is waiting."""

    def __init__(self, step: SimulatedStep) -> None:
        self.step = step

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lines that fill the width of ``console``."""
        rows = sorted(self.step.rows, key=lambda row: (row.stage, row.name))
        label = min(32, max(len(_label(row)) for row in rows) + 2)
        width = max(20, options.max_width - label)
        yield Text(" " * label + time_axis(self.step.step_s, width), style="dim", no_wrap=True)
        for row in rows[:MAX_ROWS]:
            line = Text(_label(row)[: label - 1].ljust(label), no_wrap=True)
            line.append_text(chart_line(row, self.step.step_s, width))
            yield line
        if len(rows) > MAX_ROWS:
            yield Text(f"{' ' * label}and {len(rows) - MAX_ROWS} more classes", style="dim")
        letters = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items())
        yield Text(
            f"{' ' * label}F forward, B backward, I input gradient, W weight gradient, then the micro-batch;",
            style="dim",
        )
        yield Text(f"{' ' * label}{letters}, {IDLE} waiting", style="dim")


def _label(row: SimulatedRow) -> str:
    return f"{row.name} ×{count(row.num_ranks)}"


def time_axis(step_s: float, width: int) -> str:
    """Return ``width`` columns with the time at the left edge of every quarter, and at the end of the step."""
    end = human_seconds(step_s)
    out = [" "] * width
    for quarter in range(4):
        mark = f"|{human_seconds(step_s * quarter / 4) if quarter else '0'}"
        at = width * quarter // 4
        if at + len(mark) < width - len(end) - 1:
            out[at : at + len(mark)] = mark
    out[width - len(end) - 1 :] = f"{end}|"
    return "".join(out)


def chart_line(row: SimulatedRow, step_s: float, width: int) -> Text:
    """Return ``row`` in ``width`` columns of equal time: computations by pass and micro-batch, or by letter."""
    out = Text()
    for span, run in groupby(_busiest(row, step_s, width)):
        length = len(list(run))
        if span is None:
            out.append(IDLE * length, style="dim")
            continue
        action = ACTION.match(span.label) if span.kind == "compute" else None
        style = STYLES.get(action[1] if action else span.kind, "dim")
        if action is None:
            out.append(LETTERS[span.kind] * length, style=style)
        else:
            cell_text = f"{action[1]}{action[2]}"
            out.append((cell_text if len(cell_text) <= length else action[1]).ljust(length, "─"), style=style)
    return out


def busiest_kinds(row: SimulatedRow, step_s: float, width: int) -> list[SpanKind | None]:
    """Return the activity that took most of each of ``width`` equal parts of the step; None: mostly waiting."""
    return [None if span is None else span.kind for span in _busiest(row, step_s, width)]


def _busiest(row: SimulatedRow, step_s: float, width: int) -> list[Span | None]:
    """Return the longest span of the kind that took most of each of ``width`` equal parts; None: mostly waiting."""
    spent: list[dict[SpanKind, float]] = [{} for _ in range(width)]
    longest: list[dict[SpanKind, tuple[float, Span]]] = [{} for _ in range(width)]
    for span in row.spans:
        # concurrent transfers are not exposed, so the chart leaves them out
        if span.beside:
            continue
        first, last = span.start_s / step_s * width, span.end_s / step_s * width
        for column in range(int(first), min(width, int(last) + 1)):
            part = min(last, column + 1) - max(first, column)
            if part > 0:
                spent[column][span.kind] = spent[column].get(span.kind, 0.0) + part
                if part > longest[column].get(span.kind, (0.0,))[0]:
                    longest[column][span.kind] = part, span
    return [
        # a column that is busy for less than half of its time counts as waiting
        max_of[max(parts, key=parts.__getitem__)][1] if sum(parts.values()) >= 0.5 else None
        for parts, max_of in zip(spent, longest, strict=True)
    ]
