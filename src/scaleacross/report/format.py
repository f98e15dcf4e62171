"""Format numbers, bars and cells: the only place that turns SI quantities into text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich import box
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from scaleacross.report.folding import FoldingTable

GIB = 2.0**30
LABEL_STYLE = "bold"
FULL, PARTS = "█", " ▏▎▍▌▋▊▉"


def count(number: float) -> str:
    """A whole number with thousands separated: 16,384."""
    return f"{number:,.0f}"


def large(number: float) -> str:
    """Return four digits with a decimal prefix: 405.9 B parameters, 2.535 T FLOP."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.4g} {prefix}"
    return f"{number:.4g}"


def plural(number: int, noun: str) -> str:
    """``1 chunk``, ``2 chunks``."""
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")


def percent(fraction: float) -> str:
    """Return a fraction as a percentage: 43.0 %. A small positive one is shown as < 0.1 %, not as 0."""
    return "< 0.1 %" if 0 < fraction < 0.0005 else f"{fraction * 100:.1f} %"


def rate(bytes_per_s: float) -> str:
    """A bandwidth per direction, decimal prefix: 50 GB/s, 1.2 TB/s."""
    for factor, prefix in ((1e15, "PB/s"), (1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_s >= factor:
            return f"{bytes_per_s / factor:.4g} {prefix}"
    return f"{bytes_per_s:.4g} B/s"


def gib(num_bytes: float) -> str:
    """Bytes as GiB with one decimal, without the unit (it is in the column's head)."""
    return f"{num_bytes / GIB:.1f}"


def bar(fraction: float, width: int) -> str:
    """Return ``fraction`` of ``width`` cells as block characters, in eighths of a cell; clipped to [0, 1]."""
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return FULL * whole + (PARTS[rest] if rest else "")


def run_lengths(values: Iterable[int]) -> str:
    """Return consecutive equal numbers counted: ``7, 8 × 14, 7``."""
    runs = [(value, len(list(group))) for value, group in groupby(values)]
    return ", ".join(f"{value} × {length}" if length > 1 else str(value) for value, length in runs)


def interval(first: int, last: int) -> str:
    """A range of indices, both ends included: ``0`` or ``1–14``."""
    return str(first) if first == last else f"{first}–{last}"


def cell(value: str | Text, style: str = "") -> Text:
    """Return user-supplied text made safe for a terminal: no markup is read, control characters are shown as �."""
    if isinstance(value, Text):
        return value
    return Text("".join(c if c.isprintable() or c == "\n" else "�" for c in value), style=style)


def grid(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Return a table of label and value, for facts that need no head."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=LABEL_STYLE, no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, cell(value))
    return table


def columns(heads: Sequence[str], right: Sequence[str] = (), flexible: Sequence[str] = ()) -> Table:
    """Return an empty table in the common style. ``right`` heads are over numbers; ``flexible`` columns may fold.

    Columns without a head hold bars and remarks; they are the first to be left out where there is no room
    (``folding``).
    """
    table = FoldingTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for head in heads:
        fold = head in flexible
        justify: JustifyMethod = "right" if head in right else "left"
        table.add_column(head, justify=justify, no_wrap=not fold, overflow="fold")
    return table


def section(title: str, *parts: RenderableType) -> RenderableType:
    """Return ``parts`` under a title, after an empty line."""
    return Group(Text(), cell(title, style=LABEL_STYLE), *parts)


def add(table: Table, *values: str | Text, style: str = "") -> None:
    """Append a row of safe cells."""
    table.add_row(*(cell(value) for value in values), style=style)
