"""The catalogue's entries as a table."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from scaleacross.report.format import add, columns


def catalogue_report(entries: Iterable[tuple[str, str, str]]) -> RenderableType:
    """Return (kind, name, summary) rows; each kind is shown once."""
    table = columns(("kind", "name", "summary"), flexible=("summary",))
    previous = ""
    for kind, name, summary in entries:
        add(table, kind if kind != previous else "", name, summary)
        previous = kind
    return table
