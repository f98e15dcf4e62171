"""Published figures beside ours."""

from __future__ import annotations

from pydantic import Field

from scaleacross.spec.base import Spec


class PublishedFigure(Spec):
    """One published figure, and what this package computes from published inputs only."""

    what: str
    published: float
    computed: float
    unit: str = Field(default="", description="x: a ratio; %: a share as a fraction; else as written")
    source: str
    note: str = Field(default="", description="what is theirs and what is computed")


class PublishedTable(Spec):
    """Rows computed from published inputs that nobody published."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class PublishedStudy(Spec):
    """What ``reproduce NAME`` shows."""

    name: str
    figures: tuple[PublishedFigure, ...]
    tables: tuple[PublishedTable, ...] = ()
    notes: tuple[str, ...] = ()
