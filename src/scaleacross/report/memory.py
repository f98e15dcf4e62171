"""Memory per pipeline stage against capacity."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from scaleacross.report.format import GIB, add, columns, gib, interval, percent, section
from scaleacross.spec.plan import StageMemory

# part -> (letter in the bar, colour); letters keep the bar readable without colour
PARTS = {
    "parameters": ("P", "blue"),
    "gradients": ("G", "cyan"),
    "optimizer": ("O", "magenta"),
    "activations": ("A", "yellow"),
    "buffers": ("B", "green"),
    "reserved": ("R", "white"),
}
BAR_WIDTH = 24
MAX_ROWS = 16


def memory(stages: Sequence[StageMemory]) -> RenderableType:
    """One row per run of equal stages: GiB by part, total against capacity, stacked bar."""
    heads = ("stage", "layers", *(letter for letter, _ in PARTS.values()), "total", "of", "used", "")
    table = columns(heads, right=heads[:-1])
    for run in elide(collapse(stages)):
        if run is None:
            add(table, "…", style="dim")
            continue
        one = run[0]
        used = one.total_bytes / one.capacity_bytes
        parts = (gib(_part(one, part)) for part in PARTS)
        over = used > 1
        total = Text(gib(one.total_bytes), style="bold red" if over else "bold")
        stages_shown = interval(one.stage, run[-1].stage)
        add(
            table,
            stages_shown,
            str(one.num_layers),
            *parts,
            total,
            gib(one.capacity_bytes),
            percent(used),
            stacked_bar(one),
        )
    legend = Text("  ").join(Text(f"{letter} {part}", style=colour) for part, (letter, colour) in PARTS.items())
    return section("Memory per accelerator, GiB", table, Text(), legend)


def collapse(stages: Sequence[StageMemory]) -> list[list[StageMemory]]:
    """Return runs of neighbouring stages that are equal at the precision shown (0.1 GiB)."""
    return [list(run) for _, run in groupby(stages, key=_shown)]


def elide(runs: Sequence[list[StageMemory]], limit: int = MAX_ROWS) -> list[list[StageMemory] | None]:
    """Return at most ``limit`` runs: the ends and the fullest one stay, None marks what was left out."""
    if len(runs) <= limit:
        return list(runs)
    fullest = max(range(len(runs)), key=lambda i: runs[i][0].total_bytes / runs[i][0].capacity_bytes)
    # room for both ends and the fullest run between them
    side = (limit - 1) // 2
    kept = sorted({*range(side), fullest, *range(len(runs) - side, len(runs))})
    out: list[list[StageMemory] | None] = []
    for previous, index in zip([-1, *kept], kept, strict=False):
        if index > previous + 1:
            out.append(None)
        out.append(runs[index])
    return out


def stacked_bar(stage: StageMemory, width: int = BAR_WIDTH) -> Text:
    """Return the parts as letters over ``width`` cells = capacity, dots for free memory, ``!`` for excess."""
    text, filled, drawn = Text(), 0.0, 0
    for part, (letter, colour) in PARTS.items():
        filled += _part(stage, part) / stage.capacity_bytes * width
        end = min(round(filled), width)
        text.append(letter * (end - drawn), style=colour)
        drawn = end
    text.append("·" * (width - drawn), style="dim")
    if stage.total_bytes > stage.capacity_bytes:
        text.append("!", style="bold red")
    return text


def _part(stage: StageMemory, part: str) -> float:
    return float(getattr(stage, f"{part}_bytes"))


def _shown(stage: StageMemory) -> tuple[float, ...]:
    figures = (stage.capacity_bytes, *(_part(stage, part) for part in PARTS))
    return (stage.num_layers, *(round(figure / GIB, 1) for figure in figures))
