"""Charts as files of their own: SVG and PNG for a document, CSV for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Final

from scaleacross.errors import InputError
from scaleacross.report.page.chart import Chart, whole_spec
from scaleacross.report.page.html import MISSING, can_draw

WIDTH: Final = 900
"""Pixels of a chart in a document."""
PNG_SCALE: Final = 2.0
"""Pixels of a PNG per pixel of the chart: sharp in print."""


def picture_files(charts: Iterable[Chart]) -> dict[str, str | bytes]:
    """NAME.svg, NAME.png and NAME.csv of every chart.

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
        out[f"{chart.name}.csv"] = chart_csv(chart)
    return out


def chart_csv(chart: Chart) -> str:
    """The figures of a chart, one row each; a cell is blank where a row has no such figure."""
    heads = list(dict.fromkeys(name for row in chart.rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, heads, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(chart.rows)
    return out.getvalue()
