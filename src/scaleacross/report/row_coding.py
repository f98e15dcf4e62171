"""Measured codecs as a table: merged vectors per table and bound, ratio and rates per encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns, count, percent, rate
from scaleacross.spec.exchange_codec import CodecFigures

NOTE = (
    "Every element was checked against its bound. Rates: numpy on one core of this machine. Merged: distinct vectors that the "
    "bound makes equal to others. A job's compression reads the CSV of -o as measured."
)


def codec_report(found: Sequence[CodecFigures], num_bytes: Mapping[str, int]) -> RenderableType:
    """Return a line per table, bound and encoder; the highest ratio of each bound is bold."""
    heads = ("table", "bytes", "bound", "merged", "encoder", "ratio", "encode", "decode")
    table = columns(heads, right=heads[1:4] + heads[5:])
    best: dict[tuple[str, float | None], float] = {}
    for one in found:
        key = one.table, one.bound_fraction
        best[key] = max(best.get(key, 0.0), one.ratio)
    last: tuple[object, ...] = ()
    for one in found:
        key = one.table, one.bound_fraction
        first = key != last
        named = (one.table, count(num_bytes[one.table])) if first and one.table not in last else ("", "")
        bound = (f"{one.bound_fraction or 0:.3g}", percent(one.merged_fraction or 0.0)) if first else ("", "")
        style = "bold" if one.ratio == best[key] else ""
        figures = f"{one.ratio:,.1f}x", rate(one.encode_bytes_per_s), rate(one.decode_bytes_per_s)
        add(table, *named, *bound, one.encoder, *figures, style=style)
        last = key
    return Group(table, Text(NOTE))
