"""What the catalogue holds."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from scaleacross.report.format import add, columns


def catalogue_report(entries: Iterable[tuple[str, str, str]]) -> RenderableType:
    """(kind, name, summary) rows, the kind shown once."""
    table = columns(("kind", "name", "summary"), flexible=("summary",))
    previous = ""
    for kind, name, summary in entries:
        add(table, kind if kind != previous else "", name, summary)
        previous = kind
    return table
