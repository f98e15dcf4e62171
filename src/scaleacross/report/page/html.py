"""The page: heading, facts, charts with their tables; everything in one file, and nothing fetched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.util import find_spec
from typing import Any, Final

from scaleacross.errors import InputError
from scaleacross.report.page.chart import Chart, Row, whole_spec

REPORT_FILE: Final = "report.html"
MISSING: Final = "it is drawn by Vega-Lite: pip install 'scaleacross[report]'"
MAX_TABLE_ROWS: Final = 200
STYLE: Final = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; font: 16px/1.45 system-ui, sans-serif; color: #1b1f24; background: #fff; }
h1 { font-size: 1.5rem; margin: 0.5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0; }
nav { margin: 0.75rem 0 1.25rem; line-height: 1.9; }
nav a { margin-right: 0.9rem; }
a { color: #1f5a96; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1rem; margin: 0; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 0 0 2rem; padding-top: 1rem; border-top: 1px solid #d5d9de; }
figcaption p { margin: 0.2rem 0 0.6rem; color: #4a525b; }
.chart { width: 100%; } .chart svg { max-width: 100%; }
details { margin-top: 0.4rem; } summary { cursor: pointer; color: #1f5a96; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { padding: 0.15rem 0.7rem 0.15rem 0; text-align: left; border-bottom: 1px solid #e6e9ec; white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
footer { color: #4a525b; font-size: 0.85rem; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 0.4rem; } }
@media print { body { max-width: none; } figure { break-inside: avoid; } nav, details { display: none; } }
"""
DRAW: Final = """
(async () => {
  for (const holder of document.querySelectorAll(".chart")) {
    const spec = JSON.parse(document.getElementById(holder.id + "-spec").textContent);
    await vegaEmbed(holder, spec, {renderer: "svg", actions: false, tooltip: {theme: "light"}});
    await new Promise(done => setTimeout(done, 0));
  }
  document.body.dataset.drawn = "yes";
})();
"""


def can_draw() -> bool:
    """Whether the charting library is installed (the extra ``report``)."""
    return find_spec("vl_convert") is not None


def page(title: str, facts: Sequence[tuple[str, str]], charts: Sequence[Chart], made_by: str) -> str:
    """The whole file.

    Args:
        title: heading.
        facts: label and text, the first lines of the report.
        charts: in the order in which they are shown.
        made_by: program and version, for the foot.

    Raises:
        InputError: the charting library is not installed.
    """
    links = " ".join(f'<a href="#{chart.name}">{escape(chart.title)}</a>' for chart in charts)
    told = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in facts)
    figures = "".join(map(_figure, charts))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<dl>{told}</dl>\n<nav>{links}</nav>\n{figures}\n"
        f"<footer>Made by {escape(made_by)}. This file needs no network.</footer>\n"
        f"<script>(() => {{{_library()}}})();</script>\n<script>{DRAW}</script>\n</body>\n</html>\n"
    )


def _library() -> str:
    """The scripts of Vega, Vega-Lite and vega-embed, as one text that may stand in an HTML file."""
    if not can_draw():
        raise InputError(f"{REPORT_FILE}: {MISSING}")
    return _scripts()


@cache
def _scripts() -> str:
    """The scripts, remembered: vl-convert takes seconds to bundle them."""
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
