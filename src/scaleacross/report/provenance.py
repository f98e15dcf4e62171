"""Figures with their source and status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, section
from scaleacross.spec.base import Provenance, SourcedSpec, Spec

STATUS_STYLE = {"datasheet": "green", "paper": "green", "measured": "green", "fitted": "yellow", "assumed": "red"}


def provenance_counts(spec: Spec) -> Text:
    """Return the number of figures by status in ``spec``, each figure once: ``12 datasheet, 3 assumed``."""
    number = Counter[str](status for _, _, status in set(_origins(spec)))
    if not number:
        return Text("no figure states its source", style="red")
    return Text(", ").join(
        Text(f"{number[status]} {status}", style=STATUS_STYLE[status]) for status in STATUS_STYLE if number[status]
    )


def sources(provenance: Mapping[str, Provenance]) -> RenderableType:
    """Every stated figure with its status and source."""
    table = columns(("figure", "status", "source"), flexible=("source",))
    for figure, origin in provenance.items():
        add(table, figure, Text(origin.status, style=STATUS_STYLE[origin.status]), origin.source)
    return section("Sources", table)


def _origins(spec: Spec) -> Iterator[tuple[str, str, str]]:
    """Yield (owner, figure, status) of ``spec`` and all specs in it; equal entries for a technology used twice."""
    if isinstance(spec, SourcedSpec):
        owner = str(getattr(spec, "name", None) or getattr(spec, "between", ""))
        yield from ((owner, figure, origin.status) for figure, origin in spec.provenance.items())
    for field in type(spec).model_fields:
        value = getattr(spec, field)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Spec):
                yield from _origins(part)
