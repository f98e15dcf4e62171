"""Measured collectives as a table in nccl-tests' form."""

from __future__ import annotations

from rich.console import RenderableType

from scaleacross.report.format import add, cell, columns, section
from scaleacross.spec.runtime_bench import BenchResult
from scaleacross.units import human_bytes, human_seconds

HEADS = ("size", "count", "time", "algbw GB/s", "busbw GB/s", "#wrong", "gloo", "of gloo", "predicted", "error")
NOTE = "time: slowest rank, mean of the runs; predicted: on the plan's network, within 2x of a planned size"


def bench_report(result: BenchResult) -> RenderableType:
    """One row per size."""
    table = columns(HEADS, right=HEADS)
    for row in result.rows:
        add(
            table,
            human_bytes(row.size_bytes),
            f"{row.num_elements:,}",
            human_seconds(row.time_s),
            f"{row.algorithm_bytes_per_s / 1e9:.3f}",
            f"{row.bus_bytes_per_s / 1e9:.3f}",
            str(row.num_wrong),
            human_seconds(row.gloo_time_s),
            f"{row.time_s / row.gloo_time_s:.2f}x",
            "–" if row.predicted_s is None else human_seconds(row.predicted_s),
            _error(row.error_fraction),
        )
    groups = "1 group" if result.num_groups == 1 else f"{result.num_groups} groups"
    title = (
        f"{result.op} by {result.algorithm}, axis {result.axis}: {groups} of {result.num_ranks} ranks on {result.host}"
    )
    return section(f"{title}, {result.dtype}, {result.iterations} runs per size", table, cell(NOTE, "dim"))


def _error(fraction: float | None) -> str:
    """Return a percentage, or the ratio of times for errors of 900 % and more."""
    if fraction is None:
        return "–"
    return f"{fraction:+.0%}" if fraction < 9 else f"{1 + fraction:,.0f}x"
