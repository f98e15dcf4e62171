"""A calibration as tables and JSON: errors of every fit in sample and on held-out rows, unused rows, and notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType

from scaleacross.calibration.kernels import Score
from scaleacross.calibration.result import Calibration, FittedEntry, Residual
from scaleacross.report.accuracy import plain, signed
from scaleacross.report.accuracy_files import json_text
from scaleacross.report.benchmark_scores import figures, skipped_table
from scaleacross.report.format import add, cell, columns, count, section

ERROR_HEADS = ("rows", "free", "base", "in sample", "bias", "left out", "error there")


def calibration_report(calibration: Calibration) -> RenderableType:
    """Everything a person needs to judge the fits."""
    return Group(*_sections(calibration))


def calibration_json(calibration: Calibration) -> str:
    """Entries with their errors, rows that were not used, and notes."""
    return json_text(
        {
            "entries": [_entry_data(entry) for entry in calibration.entries],
            "skipped_rows": [vars(one) for one in calibration.skipped],
            "notes": list(calibration.notes),
        }
    )


def _sections(calibration: Calibration) -> Iterator[RenderableType]:
    yield cell(
        "predicted / measured − 1, median / 90th percentile; 'free' parameters are fitted, 'base' is before the fit"
    )
    for entry in calibration.entries:
        if not entry.residuals:
            yield section(entry.name, cell(f"no fit of its own: '{entry.base}' with figures of the fits above"))
            continue
        table = columns(("fit", *ERROR_HEADS), right=("rows", "free", "bias"))
        for residual in entry.residuals:
            for cells in _lines(residual):
                add(table, *cells)
        yield section(entry.name, table)
    if calibration.skipped:
        yield section("rows that no fit used", skipped_table(calibration.skipped))
    if calibration.notes:
        yield section("to know", *(cell(f"- {note}") for note in calibration.notes))


def _lines(residual: Residual) -> Iterator[list[str]]:
    """Yield one line per way of leaving out; the fit itself is on the first."""
    own = residual.in_sample
    free = "" if residual.fitted == ("curves",) else str(len(residual.fitted))
    first = [residual.what, count(own.num_rows), free, _pair(residual.base), _pair(own), signed(own.bias)]
    for number, (what, score) in enumerate(residual.left_out.items() or [("nothing", None)]):
        yield [*(first if number == 0 else [""] * len(first)), what, _pair(score)]


def _pair(score: Score | None) -> str:
    return f"{plain(score.median_abs_error).removesuffix(' %')} / {plain(score.p90_abs_error)}" if score else "–"


def _entry_data(entry: FittedEntry) -> dict[str, Any]:
    return {
        "file": entry.path,
        "name": entry.name,
        "base": entry.base,
        "from_base": list(entry.kept),
        "fits": [
            {
                "what": residual.what,
                "fitted": list(residual.fitted),
                "base": figures(residual.base) if residual.base else None,
                "in_sample": figures(residual.in_sample),
                "left_out": {what: figures(score) for what, score in residual.left_out.items()},
            }
            for residual in entry.residuals
        ],
    }
