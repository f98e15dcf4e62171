"""Comparison of benchmark files with the catalogue: tables for people, figures for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType

from scaleacross.calibration.file_scores import HEADS, FileScore, Skipped
from scaleacross.calibration.kernels import Score
from scaleacross.report.accuracy import plain, signed
from scaleacross.report.format import add, cell, columns, count, section

SCORE_HEADS = ("rows", "median", "mean", "p90", "bias")
MAX_LABELS = 6
"""Labels listed for each reason; the others are counted."""


def score_report(scores: Sequence[FileScore]) -> RenderableType:
    """Return every file with its error per group and the rows that were not used."""
    return Group(*(part for one in scores for part in _parts(one)))


def score_data(scores: Sequence[FileScore]) -> dict[str, Any]:
    """Kind of file -> rows, used, skipped, errors overall and per group."""
    return {one.kind: _file_data(one) for one in scores}


def figures(score: Score) -> dict[str, Any]:
    """Return a score under the names that ``validate --json`` uses."""
    return {
        "rows": score.num_rows,
        "median_abs_error": score.median_abs_error,
        "mean_abs_error": score.mean_abs_error,
        "p90_abs_error": score.p90_abs_error,
        "bias": score.bias,
    }


def score_cells(score: Score) -> list[str]:
    """Return a score in the order of SCORE_HEADS."""
    shares = (plain(score.median_abs_error), plain(score.mean_abs_error), plain(score.p90_abs_error))
    return [count(score.num_rows), *shares, signed(score.bias)]


def skipped_table(skipped: Sequence[Skipped]) -> RenderableType:
    """Return the number of skipped rows per reason, with their labels."""
    table = columns(("rows", "skipped because", "of"), right=("rows",), flexible=("skipped because", "of"))
    for reason in dict.fromkeys(one.reason for one in skipped):
        same = [one for one in skipped if one.reason == reason]
        labels = list(dict.fromkeys(one.label for one in same if one.label))
        more = f" and {len(labels) - MAX_LABELS} more" if len(labels) > MAX_LABELS else ""
        add(table, count(sum(one.rows for one in same)), reason, ", ".join(labels[:MAX_LABELS]) + more)
    return table


def _parts(one: FileScore) -> Iterator[RenderableType]:
    used = one.overall.num_rows
    title = f"{one.kind}: predicted / measured − 1 with the catalogue's figures"
    yield section(title, cell(f"{', '.join(one.files)}: {count(used)} rows used, {count(one.rows - used)} skipped"))
    yield from map(cell, one.notes)
    if one.skipped:
        yield skipped_table(one.skipped)
    heads = HEADS[one.kind]
    table = columns((*heads, "entry", *SCORE_HEADS), right=SCORE_HEADS)
    for group in one.groups:
        add(table, *group.group, group.entry, *score_cells(group.score))
    add(table, "all", *[""] * len(heads), *score_cells(one.overall), style="bold")
    yield table


def _file_data(one: FileScore) -> dict[str, Any]:
    heads = HEADS[one.kind]
    return {
        **figures(one.overall),
        "rows": one.rows,
        "used": one.overall.num_rows,
        "skipped": one.rows - one.overall.num_rows,
        "groups": [
            {**dict(zip(heads, group.group, strict=True)), "entry": group.entry, **figures(group.score)}
            for group in one.groups
        ],
        "notes": list(one.notes),
        "skipped_rows": [vars(skipped) for skipped in one.skipped],
    }
