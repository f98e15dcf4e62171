"""Published shares of useful time beside ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, percent

if TYPE_CHECKING:
    from scaleacross.api.published_goodput import PublishedRow


def published_goodput_report(rows: Sequence[PublishedRow]) -> RenderableType:
    """A line per published share, then notes and sources."""
    figures = ("published", "closed form", "simulated", "points off")
    table = columns(("setting", *figures), right=figures, flexible=("setting",))
    notes = []
    for row in rows:
        played = "–" if row.simulated is None else percent(row.simulated)
        off = f"{row.difference * 100:+.1f}"
        add(table, row.setting, percent(row.published), percent(row.closed_form), played, off)
        notes += [Text(f"• {row.setting}: {row.note}")] if row.note else []
    sources = dict.fromkeys(row.source for row in rows)
    return Group(table, *notes, *(Text(f"source: {source}") for source in sources))


def published_goodput_json(rows: Sequence[PublishedRow]) -> str:
    """The same as JSON, shares as fractions."""
    fields = ("setting", "source", "published", "closed_form", "simulated", "note")
    return json.dumps([{name: getattr(row, name) for name in fields} for row in rows], indent=2, ensure_ascii=False)
