"""Tables that stay legible in little room: no word is broken, no name is cut short."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

READABLE = 20
"""Least width of a column with folding sentences that are longer than that."""
INDENT = "  "
BETWEEN = " · "


class FoldingTable(Table):
    """A table that becomes narrower where it must.

    It is shown whole where it fits, without its bars where only these are too wide, else as a few lines per row.
    Columns that may fold get at least the width of their longest word, so that rich never breaks one.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the widest of the three forms that fits ``options.max_width``."""
        room = options.max_width
        for shown in ([*self.columns], [column for column in self.columns if column.header]):
            if _least_width(shown) <= room:
                yield from _as_table(self, shown).__rich_console__(console, options)
                return
        yield from _stacked(self, room)


def _least_width(shown: list[Column]) -> int:
    """Return the cells of the columns, including padding and the space between two."""
    return sum(_least(column) + 2 for column in shown) - 1


def _least(column: Column) -> int:
    """Return the cells below which a column breaks a word, cuts a name or has one word per line."""
    texts = [str(column.header), *map(_plain, column.cells)]
    widest = max(cell_len(line) for text in texts for line in text.splitlines() or [""])
    if column.no_wrap:
        return widest
    word = max((cell_len(word) for text in texts for word in text.split()), default=0)
    return max(word, min(widest, READABLE))


def _as_table(table: Table, shown: list[Column]) -> Table:
    """Return a plain table of some of the columns, each at least as wide as it must be."""
    out = Table(box=table.box, show_edge=False, padding=(0, 1, 0, 0), header_style=table.header_style)
    for column in shown:
        out.add_column(
            column.header,
            justify=column.justify,
            no_wrap=column.no_wrap,
            overflow="fold",
            min_width=_least(column) if not column.no_wrap else None,
        )
    cells = [list(column.cells) for column in shown]
    for index, row in enumerate(table.rows):
        out.add_row(*(column[index] for column in cells), style=row.style, end_section=row.end_section)
    return out


def _stacked(table: Table, room: int) -> Iterator[Text]:
    """Yield every row as its first cell, then ``head value`` pairs that flow over indented lines."""
    cells = [list(column.cells) for column in table.columns]
    for index, row in enumerate(table.rows):
        first, *rest = (column[index] for column in cells)
        style = str(row.style or "")
        yield Text(_plain(first), style=f"{style} bold".strip(), overflow="fold")
        pairs = []
        for column, value in zip(table.columns[1:], rest, strict=True):
            if _plain(value).strip():
                pair = Text(f"{column.header} " if column.header else "", style="dim")
                pairs.append(pair.append_text(value.copy() if isinstance(value, Text) else Text(str(value))))
        for line in _flow(pairs, room - len(INDENT)):
            line.stylize(style)
            yield Text(INDENT).append_text(line)


def _flow(pairs: list[Text], room: int) -> Iterator[Text]:
    """Yield lines of pairs; a pair longer than a line folds between words."""
    line = Text()
    for pair in pairs:
        if line and cell_len(line.plain) + len(BETWEEN) + cell_len(pair.plain) <= room:
            line.append(BETWEEN, style="dim").append_text(pair)
            continue
        if line:
            yield line
        *folded, line = folded_at_words(pair, room)
        yield from folded
    if line:
        yield line


def folded_at_words(text: Text, room: int) -> list[Text]:
    """Return lines of at most ``room`` cells, broken between words only; a longer word has its own line.

    Styles are kept.
    """
    lines, start, end = [], 0, 0
    plain = text.plain
    at = 0
    while at < len(plain):
        stop = next((i for i in range(at, len(plain)) if plain[i].isspace()), len(plain))
        if end > start and cell_len(plain[start:stop]) > room:
            lines.append(text[start:end])
            start = at
        end = stop
        at = stop + 1
    lines.append(text[start:end])
    return lines


def _plain(value: object) -> str:
    return value.plain if isinstance(value, Text) else str(value)
