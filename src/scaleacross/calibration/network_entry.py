"""Write a link technology with fitted curves as a catalogue file, with the source and the errors of the fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from scaleacross.calibration.collective_data import Measurement
from scaleacross.calibration.collectives import SIZE_CLASSES, CurveError, fit_curves, held_out, score
from scaleacross.calibration.result import taken_over
from scaleacross.errors import InputError
from scaleacross.spec.base import Provenance
from scaleacross.spec.network import CURVE_OPS, CollectiveCurve, NetworkTechnology
from scaleacross.units import user_keys

_BANDWIDTH: Final = "bandwidth_gbyte_per_s"
_CURVES: Final = "curves.time_us"
_POINTS_PER_LINE: Final = 8


def fitted_network(
    base: NetworkTechnology,
    name: str,
    rows: Sequence[Measurement],
    source: str,
    date: str,
) -> NetworkTechnology:
    """Return ``base`` under a new name, with curves fitted to ``rows`` in place of its own.

    Operations that ``rows`` lack keep the curves of ``base``, and the source says so.

    Args:
        source: origin of the measurements; in-sample and held-out errors are written after it.
        date: date of the fit, as it is to be printed.

    Raises:
        InputError: no operation has two sizes.
    """
    curves = fit_curves(rows)
    if not curves:
        raise InputError("no curve can be fitted: an operation needs two sizes at least for one number of ranks")
    stated = {
        key: provenance
        for key, provenance in taken_over(base.provenance, base.name, name).items()
        if not key.startswith("curves.")
    }
    others = kept_curves(base, rows)
    kept = (
        f"; curves of {', '.join(dict.fromkeys(curve.op for curve in others))} are those of {base.name}"
        if others
        else ""
    )
    stated[_CURVES] = Provenance(source=f"{source}; {residuals(curves, rows, date)}{kept}", status="fitted")
    curves = tuple(sorted((*curves, *others), key=lambda curve: (CURVE_OPS.index(curve.op), curve.num_ranks)))
    return NetworkTechnology.model_validate(base.model_dump() | {"name": name, "curves": curves, "provenance": stated})


def network_text(entry: NetworkTechnology, comment: str = "") -> str:
    """Return ``entry`` as a catalogue file with its bandwidth in GB/s; ``comment`` is a line above it."""
    bandwidth = user_keys("bandwidth_bytes_per_s")
    stated = {_BANDWIDTH if key in bandwidth else key: one for key, one in entry.provenance.items()}
    lines = [
        "# yaml-language-server: $schema=../schemas/network.schema.json",
        *([f"# {comment}"] if comment else []),
        f"name: {entry.name}",
        f"{_BANDWIDTH}: {entry.bandwidth_bytes_per_s / 1e9:.6g}",
        f"efficiency_fraction: {entry.efficiency_fraction:.6g}",
        *(
            f"{key}: {value}"
            for key in ("congestion_control", "load_balancing")
            if (value := getattr(entry, key)) != "none"
        ),
        *_curve_lines(entry.curves),
        "provenance:",
        *(f"  {key}: {{source: {json.dumps(one.source)}, status: {one.status}}}" for key, one in stated.items()),
    ]
    return "\n".join(lines) + "\n"


def kept_curves(base: NetworkTechnology, rows: Sequence[Measurement]) -> tuple[CollectiveCurve, ...]:
    """Curves of ``base`` for operations that ``rows`` lack."""
    measured = {row.op for row in rows}
    return tuple(curve for curve in base.curves if curve.op not in measured)


def residuals(curves: Sequence[CollectiveCurve], rows: Sequence[Measurement], date: str) -> str:
    """One line of text: median absolute errors by size class, in sample and on sizes left out.

    Sizes are left out of all systems at once.
    """
    fitted, unseen = (
        ", ".join(f"{label} {_pooled(errors, label):.1%}" for label in SIZE_CLASSES if _has(errors, label))
        for errors in (score(curves, rows), held_out(as_one_system(rows)))
    )
    return f"fitted {date} to {len(rows)} times; median error {fitted}; on sizes left out {unseen}"


def as_one_system(rows: Sequence[Measurement]) -> list[Measurement]:
    """Return ``rows`` without their systems: systems that share a technology share its curves."""
    return [replace(row, system="") for row in rows]


def _pooled(errors: Sequence[CurveError], label: str) -> float:
    return median(abs(error) for one in errors if one.op == "all" and one.size_class == label for error in one.errors)


def _has(errors: Sequence[CurveError], label: str) -> bool:
    return any(one.size_class == label for one in errors)


def _curve_lines(curves: Sequence[CollectiveCurve]) -> Iterator[str]:
    yield "curves: # bytes: microseconds"
    for curve in curves:
        yield f"  - op: {curve.op}"
        yield f"    num_ranks: {curve.num_ranks}"
        points = [f"{size}: {time_s * 1e6:.4g}" for size, time_s in curve.time_s.items()]
        chunks = [points[at : at + _POINTS_PER_LINE] for at in range(0, len(points), _POINTS_PER_LINE)]
        pieces = [", ".join(chunk) for chunk in chunks]
        yield "    time_us: {" + (",\n      ".join(pieces)) + "}"
