"""Errors, intervals and the effect of own runs with whole sources left out: tables for a terminal, and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from typing import Final

from rich.console import Group, RenderableType

from scaleacross.report.accuracy import plain, signed
from scaleacross.report.format import add, cell, columns, section
from scaleacross.validation.metrics import Errors
from scaleacross.validation.step_errors import SourcesLeftOut

MEANING: Final = (
    "Where a row is predicted, no row of its source was fitted. Which effects the model has "
    "was chosen with all sources in view: that is not undone."
)
FEW: Final = "Intervals and own runs need five sources or more; this file has fewer."
ERRORS: Final = ("rows", "median", "mean", "p90", "bias")

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, heads and rows of cells; the first column is a name."""


def left_out_report(found: SourcesLeftOut) -> RenderableType:
    """Every table, for a terminal."""
    parts: list[RenderableType] = []
    for title, heads, rows in left_out_tables(found):
        table = columns(heads, right=heads[1:], flexible=heads[:1])
        for row in rows:
            add(table, *row, style="bold" if row[0] == "all" else "")
        parts += [section(title), table]
    return Group(*parts, cell(MEANING), *(() if found.coverage else (cell(FEW),)))


def left_out_tables(found: SourcesLeftOut) -> Iterator[Table]:
    """Yield errors by class and by source, coverage of intervals, and the effect of own runs."""
    errors = found.errors
    classes = [(one.name, str(one.sources), *figures(one.errors)) for one in errors.classes]
    all_rows = ("all", str(len(errors.of_source)), *figures(errors.overall))
    yield "every source left out whole, by class", ("class", "sources", *ERRORS), [*classes, all_rows]
    of_source = [(name, *figures(one)) for name, one in errors.of_source.items()]
    yield "every source left out whole, by source", ("source", *ERRORS), of_source
    if found.slopes:
        heads = ("source", "groups", "median", "lowest", "highest")
        yield "measured over predicted, change per doubling of accelerators at equal degrees", heads, _slopes(found)
    if found.coverage:
        yield "80 % intervals made of the other sources", ("source", "rows", "inside", "from", "to"), _coverage(found)
        yield (
            "random own runs of a model on one cluster, its other rows",
            ("source", "own runs", "median before", "after", "p90 before", "after", "in interval"),
            _own_runs(found),
        )


def figures(found: Errors) -> tuple[str, ...]:
    """Return the cells of ERRORS."""
    sizes = (plain(one) for one in (found.median_abs, found.mean_abs, found.p90_abs))
    return (str(found.rows), *sizes, signed(found.bias))


def _slopes(found: SourcesLeftOut) -> list[tuple[str, ...]]:
    every = tuple(slope for of_source in found.slopes.values() for slope in of_source)
    return [
        (name, str(len(each)), *(f"{100 * one:+.2f} %" for one in (median(each), min(each), max(each))))
        for name, each in (*found.slopes.items(), ("all", every))
    ]


def _coverage(found: SourcesLeftOut) -> list[tuple[str, ...]]:
    rows = [
        (name, str(one.rows), plain(one.inside), signed(_factor(one.low_log)), signed(_factor(one.high_log)))
        for name, one in found.coverage.items()
    ]
    number = sum(one.rows for one in found.coverage.values())
    return [*rows, ("all", str(number), plain(covered(found)), "", "")]


def covered(found: SourcesLeftOut) -> float:
    """Return the fraction of all rows inside their intervals."""
    number = sum(one.rows for one in found.coverage.values())
    return sum(one.inside * one.rows for one in found.coverage.values()) / number


def _factor(log: float) -> float:
    """Return the relative distance of an interval's end from the prediction."""
    return math.expm1(log)


def _own_runs(found: SourcesLeftOut) -> list[tuple[str, ...]]:
    out = []
    for runs, each in found.after_runs.items():
        for one in each:
            out.append((one.source, str(runs), *_change(one.before, one.after), plain(one.inside)))
        out.append(("all", str(runs), *_change(*found.together[runs]), ""))
    return out


def _change(before: Errors, after: Errors) -> tuple[str, ...]:
    sizes = (before.median_abs, after.median_abs, before.p90_abs, after.p90_abs)
    return tuple(plain(one) for one in sizes)


def left_out_data(found: SourcesLeftOut) -> dict[str, object]:
    """Return the tables as plain data.

    Errors are relative. Ends of intervals are log(measured / predicted) of a known dense model.
    """
    errors = found.errors
    return {
        "overall": asdict(errors.overall),
        "by_source": {name: asdict(one) for name, one in errors.of_source.items()},
        "by_class": {one.name: {"sources": one.sources, **asdict(one.errors)} for one in errors.classes},
        "drift_per_doubling": {name: list(each) for name, each in found.slopes.items()},
        "covered": covered(found) if found.coverage else None,
        "coverage": {name: asdict(one) for name, one in found.coverage.items()},
        "after_runs": {
            str(runs): {
                "before": asdict(found.together[runs][0]),
                "after": asdict(found.together[runs][1]),
                "sources": [asdict(one) for one in each],
            }
            for runs, each in found.after_runs.items()
        },
    }
