"""Charts as separate files: SVG and PNG for a document, CSV for a spreadsheet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scaleacross.errors import InputError
from scaleacross.report.page.chart import Chart, whole_spec
from scaleacross.report.page.html import MISSING, can_draw
from scaleacross.spec.csv_table import csv_text

WIDTH: Final = 900
"""Width of a chart in a document, in pixels."""
PNG_SCALE: Final = 2.0
"""Pixels of a PNG per pixel of the chart; 2 is sharp in print."""


def picture_files(charts: Iterable[Chart]) -> dict[str, str | bytes]:
    """Return NAME.svg, NAME.png and NAME.csv of every chart.

    Raises:
        InputError: the charting library is not installed.
    """
    if not can_draw():
        raise InputError(f"--charts: {MISSING}")
    import vl_convert

    out: dict[str, str | bytes] = {}
    for chart in charts:
        spec = whole_spec(chart, WIDTH)
        out[f"{chart.name}.svg"] = vl_convert.vegalite_to_svg(spec)
        out[f"{chart.name}.png"] = vl_convert.vegalite_to_png(spec, scale=PNG_SCALE)
        out[f"{chart.name}.csv"] = csv_text(chart.rows)
    return out
