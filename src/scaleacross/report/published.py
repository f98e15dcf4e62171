"""Published figures next to ours, and tables computed from published inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.format import add, cell, columns, percent, section
from scaleacross.spec.published import PublishedStudy

if TYPE_CHECKING:
    from scaleacross.api.published_goodput import PublishedRow


def published_report(study: PublishedStudy) -> RenderableType:
    """A line per figure, then tables, notes and sources."""
    table = columns(
        ("figure", "published", "computed", "off", "note"), right=("published", "computed", "off"), flexible=("note",)
    )
    for one in study.figures:
        off = one.computed / one.published - 1 if one.published else 0.0
        add(table, one.what, _shown(one.published, one.unit), _shown(one.computed, one.unit), f"{off:+.1%}", one.note)
    parts: list[RenderableType] = [section(study.name, table)]
    for own in study.tables:
        computed = columns(own.heads, flexible=own.heads[-1:])
        for row in own.rows:
            add(computed, *row)
        parts.append(section(own.title, computed))
    sources = dict.fromkeys(one.source for one in study.figures)
    lines = [cell(f"• {note}") for note in study.notes] + [cell(f"source: {source}") for source in sources]
    return Group(*parts, Text(), *lines)


def _shown(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "%" else f"{value:.2f}x" if unit == "x" else f"{value:.3g} {unit}".strip()


def published_goodput_report(rows: Sequence[PublishedRow]) -> RenderableType:
    """A line per published share, then notes and sources."""
    figures = ("published", "closed form", "simulated", "points off")
    table = columns(("setting", *figures), right=figures, flexible=("setting",))
    notes = []
    for row in rows:
        simulated = "–" if row.simulated is None else percent(row.simulated)
        off = f"{row.difference * 100:+.1f}"
        add(table, row.setting, percent(row.published), percent(row.closed_form), simulated, off)
        notes += [Text(f"• {row.setting}: {row.note}")] if row.note else []
    sources = dict.fromkeys(row.source for row in rows)
    return Group(table, *notes, *(Text(f"source: {source}") for source in sources))


def published_goodput_json(rows: Sequence[PublishedRow]) -> str:
    """Return the rows as JSON, shares as fractions."""
    fields = ("setting", "source", "published", "closed_form", "simulated", "note")
    return json.dumps([{name: getattr(row, name) for name in fields} for row in rows], indent=2, ensure_ascii=False)
