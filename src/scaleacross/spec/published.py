"""Published figures, and what this package computes for them (``scaleacross reproduce``)."""

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
    """Further rows that are computed from published inputs; no publication states them."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class PublishedStudy(Spec):
    """Result of ``reproduce NAME``."""

    name: str
    figures: tuple[PublishedFigure, ...]
    tables: tuple[PublishedTable, ...] = ()
    notes: tuple[str, ...] = ()
