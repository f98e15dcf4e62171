"""The HTML page: heading, facts, charts with their tables, all in one file that fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Final

from scaleacross.errors import InputError
from scaleacross.report.page.chart import Chart, Row, whole_spec

REPORT_FILE: Final = "report.html"
MISSING: Final = "it is drawn by Vega-Lite: pip install 'scaleacross[report]'"
MAX_TABLE_ROWS: Final = 200


def can_draw() -> bool:
    """Return whether the charting library is installed (the extra ``report``)."""
    return find_spec("vl_convert") is not None


def page(
    title: str,
    facts: Sequence[tuple[str, str]],
    charts: Sequence[Chart],
    made_by: str,
    sections: Mapping[str, str] | None = None,
) -> str:
    """Return the text of the whole file.

    Args:
        title: heading.
        facts: label and text, the first lines of the report.
        charts: charts in the order shown.
        made_by: program and version, for the footer.
        sections: name and text of further sections of the report.

    Raises:
        InputError: the charting library is not installed.
    """
    links = " ".join(f'<a href="#{chart.name}">{escape(chart.title)}</a>' for chart in charts)
    told = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in facts)
    figures = "".join(map(_figure, charts))
    texts = "".join(
        f'<details><summary>{escape(name)}</summary><pre class="scroll">{escape(text)}</pre></details>'
        for name, text in (sections or {}).items()
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_file('report.css')}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<dl>{told}</dl>\n<nav>{links}</nav>\n{figures}\n{texts}\n"
        f"<footer>Made by {escape(made_by)}. This file needs no network.</footer>\n"
        f"<script>(() => {{{_library()}}})();</script>\n<script>\n{_file('draw.js')}</script>\n</body>\n</html>\n"
    )


def _file(name: str) -> str:
    """Return a style or script that every page has."""
    return files(__package__).joinpath("files", name).read_text(encoding="utf-8")


def _library() -> str:
    """Return the scripts of Vega, Vega-Lite and vega-embed as one text that is safe inside an HTML file."""
    if not can_draw():
        raise InputError(f"{REPORT_FILE}: {MISSING}")
    return _scripts()


@cache
def _scripts() -> str:
    """Return the scripts; the result is cached, because vl-convert takes seconds to bundle them."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script")


def _figure(chart: Chart) -> str:
    spec = json.dumps(whole_spec(chart), ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace(
        "</", "<\\/"
    )
    return (
        f'<figure id="{chart.name}"><figcaption><h2>{escape(chart.title)}</h2><p>{escape(chart.note)}</p></figcaption>'
        f'<div class="chart" id="{chart.name}-chart" role="img" aria-label="{escape(chart.title)}: {escape(chart.note)}"></div>'
        f'<script type="application/json" id="{chart.name}-chart-spec">{spec}</script>{_table(chart.rows)}</figure>\n'
    )


def _table(rows: Sequence[Row]) -> str:
    if not rows or len(rows) > MAX_TABLE_ROWS:
        return ""
    heads = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(_cell(row.get(name, '')) for name in heads)}</tr>" for row in rows)
    return f'<details><summary>The figures</summary><div class="scroll"><table><tr>{head}</tr>{body}</table></div></details>'


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (
            f'<td class="number">{value:,.4g}</td>'
            if isinstance(value, float)
            else f'<td class="number">{value:,}</td>'
        )
    return f"<td>{escape(str(value))}</td>"
