"""A validation as data for other programs: JSON, one CSV line per row, and a scatter plot in SVG."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

from scaleacross.report.format import GIB
from scaleacross.spec.csv_table import csv_text
from scaleacross.validation.score import Group, GroupBy, Scored, Validation

COLUMNS: Final = (
    *("id", "source", "model", "arch", "gpu", "n_gpus", "precision", "used", "reason", "measured_s", "predicted_s"),
    *("error", "constant_mfu_s", "constant_mfu_error", "compute_s", "bubble_s", "tp_s", "cp_s", "ep_s", "pp_s", "dp_s"),
    *("optimizer_s", "measured_mem_gib", "predicted_mem_gib", "fits", "schedule", "chunks", "micro_batch", "recompute"),
    *("shard", "filled", "fastest_plausible_s", "slowest_plausible_s"),
)


def as_json(
    validation: Validation | None, by: Sequence[GroupBy], benchmarks: Mapping[str, object] | None = None
) -> str:
    """Return overall and per group: rows, used, skipped, median, mean and p90 absolute error, bias, kendall_tau.

    ``benchmarks`` (kind of file -> figures) follow under their own keys.
    """
    data = {**(_runs_data(validation, by) if validation else {}), **(benchmarks or {})}
    return json_text(data)


def json_text(data: Mapping[str, object]) -> str:
    """Return ``data`` as JSON; null stands for a figure that does not exist."""
    return json.dumps(_finite(data), indent=2, ensure_ascii=False)


def _runs_data(validation: Validation, by: Sequence[GroupBy]) -> dict[str, object]:
    total = len(validation.scored) + len(validation.skipped)
    return {
        **_figures(validation.overall, total, len(validation.skipped)),
        "groups": {
            name: {
                group.name: _figures(group, *_counts(validation, name, group.name)) for group in validation.groups[name]
            }
            for name in by
        },
        "rankings": [vars(ranking) for ranking in validation.rankings],
        "noise_floor": vars(validation.noise),
        "memory": {**vars(validation.memory.errors), "predicted_not_to_fit": list(validation.memory.refused)},
        "constant_mfu": dict(validation.efficiencies),
        "skipped_rows": [{"id": run.id, "reason": reason} for run, reason in validation.skipped],
    }


def _counts(validation: Validation, by: GroupBy, name: str) -> tuple[int, int]:
    skipped = sum(str(getattr(run, by)) == name for run, _ in validation.skipped)
    return skipped + sum(str(getattr(row.run, by)) == name for row in validation.scored), skipped


def _figures(group: Group, rows: int, skipped: int) -> dict[str, object]:
    return {
        "rows": rows,
        "used": group.ours.rows,
        "skipped": skipped,
        "median_abs_error": group.ours.median_abs,
        "mean_abs_error": group.ours.mean_abs,
        "p90_abs_error": group.ours.p90_abs,
        "worst_error": group.ours.worst,
        "bias": group.ours.bias,
        "kendall_tau": group.kendall,
        "constant_mfu": {
            "median_abs_error": group.baseline.median_abs,
            "mean_abs_error": group.baseline.mean_abs,
            "p90_abs_error": group.baseline.p90_abs,
            "bias": group.baseline.bias,
        },
    }


def _finite(value: object) -> object:
    """Replace NaN and infinity by None, because JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def rows_csv(validation: Validation) -> str:
    """Return one line per row of the file, used or skipped, columns as in COLUMNS; errors are predicted / measured − 1."""
    skipped = [
        {**{name: getattr(run, name) for name in COLUMNS[:7]}, "used": 0, "reason": reason}
        for run, reason in validation.skipped
    ]
    return csv_text([*map(_line, validation.scored), *skipped], COLUMNS)


def _line(row: Scored) -> dict[str, object]:
    run, predicted = row.run, row.prediction
    cost, decision = predicted.cost.cost, predicted.decision
    parts = {f"{axis}_s": f"{seconds:.6g}" for axis, seconds in cost.exposed_s.items()}
    return {
        **{name: getattr(run, name) for name in COLUMNS[:7]},
        **parts,
        "used": 1,
        "measured_s": f"{row.measured_s:.6g}",
        "predicted_s": f"{predicted.step_s:.6g}",
        "error": f"{row.error:.4f}",
        "constant_mfu_s": f"{row.baseline_s:.6g}",
        "constant_mfu_error": f"{row.baseline_s / row.measured_s - 1:.4f}",
        "compute_s": f"{cost.compute_s:.6g}",
        "bubble_s": f"{cost.bubble_s:.6g}",
        "optimizer_s": f"{cost.optimizer_s:.6g}",
        "measured_mem_gib": run.mem_gib,
        "predicted_mem_gib": f"{predicted.memory_bytes / GIB:.2f}",
        "fits": int(predicted.fits),
        "schedule": decision.pipeline.schedule,
        "chunks": decision.pipeline.num_chunks,
        "micro_batch": decision.pipeline.micro_batch_sequences,
        "recompute": decision.recompute,
        "shard": decision.shard,
        "filled": " ".join(row.filled),
        "fastest_plausible_s": f"{predicted.plausible_s[0]:.6g}",
        "slowest_plausible_s": f"{predicted.plausible_s[1]:.6g}",
    }


WIDTH, HEIGHT, MARGIN = 900, 720, 70
PALETTE: Final = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e")


def scatter_svg(validation: Validation, by: GroupBy = "source") -> str:
    """Return predicted over measured step time on logarithmic axes, one colour per group; dashed lines at ±10 %."""
    rows = validation.scored
    seconds = [value for row in rows for value in (row.measured_s, row.prediction.step_s)]
    low, high = math.log10(min(seconds) / 1.3), math.log10(max(seconds) * 1.3)

    def x(value: float) -> float:
        return MARGIN + (math.log10(value) - low) / (high - low) * (WIDTH - MARGIN - 20)

    def y(value: float) -> float:
        return HEIGHT - MARGIN - (math.log10(value) - low) / (high - low) * (HEIGHT - MARGIN - 20)

    ends = (10**low, 10**high)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in _ticks(low, high):
        across = f'x1="{x(ends[0]):.1f}" y1="{y(tick):.1f}" x2="{x(ends[1]):.1f}" y2="{y(tick):.1f}"'
        along = f'x1="{x(tick):.1f}" y1="{y(ends[0]):.1f}" x2="{x(tick):.1f}" y2="{y(ends[1]):.1f}"'
        parts += [f'<line {across} stroke="#ddd"/>', f'<line {along} stroke="#ddd"/>']
        parts.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{MARGIN - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for factor, dash in ((1.0, ""), (1.1, ' stroke-dasharray="4 4"'), (1 / 1.1, ' stroke-dasharray="4 4"')):
        line = (
            f'x1="{x(ends[0]):.1f}" y1="{y(ends[0] * factor):.1f}" x2="{x(ends[1]):.1f}" y2="{y(ends[1] * factor):.1f}"'
        )
        parts.append(f'<line {line} stroke="#555"{dash}/>')
    for index, group in enumerate(validation.groups[by]):
        colour = PALETTE[index % len(PALETTE)]
        for row in rows:
            if str(getattr(row.run, by)) == group.name:
                title = escape(
                    f"{row.run.id} {row.run.model} on {row.run.n_gpus} {row.run.gpu}: {row.error * 100:+.1f} %"
                )
                at = f'cx="{x(row.measured_s):.1f}" cy="{y(row.prediction.step_s):.1f}"'
                parts.append(f'<circle {at} r="4" fill="{colour}" fill-opacity="0.7"><title>{title}</title></circle>')
        top = 40 + 20 * index
        parts.append(f'<circle cx="{MARGIN + 20}" cy="{top - 4}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{MARGIN + 32}" y="{top}">{escape(group.name[:60])}</text>')
    middle = (WIDTH + MARGIN) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 22}" text-anchor="middle">measured step time, s</text>')
    turned = f'transform="translate(20 {HEIGHT / 2}) rotate(-90)"'
    parts.append(f'<text {turned} text-anchor="middle">predicted step time, s</text>')
    return "\n".join([*parts, "</svg>", ""])


def _ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(low), math.ceil(high) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    return [tick for tick in ticks if low <= math.log10(tick) <= high]


def accuracy_files(validation: Validation, by: Sequence[GroupBy]) -> dict[str, str]:
    """Return name -> text of rows.csv, scatter.svg and accuracy.json."""
    return {
        "rows.csv": rows_csv(validation),
        "scatter.svg": scatter_svg(validation, by[0]),
        "accuracy.json": as_json(validation, by) + "\n",
    }
