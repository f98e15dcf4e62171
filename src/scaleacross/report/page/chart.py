"""A chart as data: a Vega-Lite specification, a note on how to read it, and its rows as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Row = Mapping[str, Any]
SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
INK, FAINT, ACCENT = "#1b1f24", "#8a929c", "#b3261e"
LONG_LABEL: Final = 20
"""Longest name of a bar, in characters, that is written beside it; longer ones are above, because a phone has no room
beside.
"""
TEXT_ROOM: Final = 130
"""Pixels kept free after the longest bar for the text at its end."""
PALETTE: Final = ("#1f5a96", "#f2b134", "#7fb7d9", "#8c2d19", "#4c9f70", "#5b5f97", "#c9cdd2", "#e08e79")
"""Colours of neighbours differ in lightness too, so that they are distinct without colour."""


@dataclass(frozen=True)
class Chart:
    """One figure of a page.

    Attributes:
        name: name in links and files, e.g. ``memory``.
        title: heading.
        note: one or two sentences on how to read it.
        spec: Vega-Lite, without width and schema; its width is that of the page.
        rows: rows of the table below the chart and of its CSV.
    """

    name: str
    title: str
    note: str
    spec: Mapping[str, Any]
    rows: Sequence[Row]


def whole_spec(chart: Chart, width: int | None = None) -> dict[str, Any]:
    """Return the complete Vega-Lite specification; ``width`` None: that of the page."""
    return {
        "$schema": SCHEMA,
        "width": "container" if width is None else width,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {
            "font": "system-ui, sans-serif",
            "view": {"stroke": None},
            "axis": {
                "grid": False,
                "labelColor": INK,
                "titleColor": INK,
                "labelLimit": 170,
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
            },
            "axisX": {"tickCount": {"expr": "max(3, width / 90)"}, "labelOverlap": True},
            "legend": {"orient": "top", "columns": 3, "labelLimit": 220, "labelFontSize": 12, "title": None},
            "text": {"fontSize": 12},
            "range": {"category": list(PALETTE)},
        },
        **chart.spec,
    }


def values(rows: Sequence[Row]) -> dict[str, Any]:
    """Return rows as Vega-Lite's inline data."""
    return {"values": list(rows)}


def field(name: str, kind: str, title: str | None = None, **more: Any) -> dict[str, Any]:
    """Return an encoding channel; ``kind`` is q, o or n."""
    kinds = {"q": "quantitative", "o": "ordinal", "n": "nominal"}
    return {"field": name, "type": kinds[kind], "title": title, **more}


def tips(**names: str) -> list[dict[str, Any]]:
    """Return tooltips from title -> field."""
    return [{"field": name, "title": title} for title, name in names.items()]


def height_of(rows: int, each: int = 26) -> int:
    """Return the height in pixels of a chart with a bar per row."""
    return max(60, rows * each)


def room_for(pixels: int) -> dict[str, Any]:
    """Return an x scale that ends ``pixels`` before the chart does, at any width of the page."""
    return {"range": [0, {"expr": f"max(40, width - {pixels})"}], "nice": False}


def bars(rows: Sequence[Row], label: str, value: str, title: str, text: str) -> dict[str, Any]:
    """Return horizontal bars in the order of ``rows``, each with its ``text`` at the end."""
    order = [row[label] for row in rows]
    y = field(label, "n", None, sort=order, axis={"ticks": False, "domain": False})
    x = field(value, "q", title, scale=room_for(TEXT_ROOM))
    bar: dict[str, Any] = {"type": "bar", "color": PALETTE[0], "height": {"band": 0.7}}
    end: dict[str, Any] = {"type": "text", "align": "left", "dx": 4, "color": INK}
    layers = [{"mark": bar}, {"mark": end, "encoding": {"text": {"field": text}}}]
    each = 26
    if max((len(str(row[label])) for row in rows), default=0) > LONG_LABEL:  # above the bars, where nothing cuts them
        each, y["axis"] = 40, None
        bar |= {"height": 13, "yOffset": 7}
        end |= {"yOffset": 7}
        names = {"type": "text", "align": "left", "color": INK, "dy": -10}
        layers.append({"mark": names, "encoding": {"x": {"value": 0}, "text": {"field": label}}})
    return {
        "height": height_of(len(rows), each),
        "data": values(rows),
        "encoding": {"y": y, "x": x},
        "layer": layers,
    }
