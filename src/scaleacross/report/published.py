"""Published figures beside ours, and tables computed from published inputs."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.format import add, cell, columns, section
from scaleacross.spec.published import PublishedStudy


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
