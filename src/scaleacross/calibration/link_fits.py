"""Fit the curves of one link technology to a user's collectives: check, fit, and measure errors on sizes left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaleacross.calibration.collective_data import Measurement
from scaleacross.calibration.collectives import SIZE_CLASSES, CurveError, held_out, score
from scaleacross.calibration.file_scores import Skipped
from scaleacross.calibration.kernels import Score, score_of
from scaleacross.calibration.levels import MIN_SIZES
from scaleacross.calibration.network_entry import as_one_system, fitted_network, kept_curves
from scaleacross.calibration.plausible import check_collectives
from scaleacross.calibration.result import Residual
from scaleacross.errors import InputError
from scaleacross.spec.network import NetworkTechnology


@dataclass(frozen=True)
class LinkFit:
    """Result of ``fit_link``.

    ``residuals`` has one entry per size class, ``skipped`` the rows of too few sizes, ``kept_ops`` operations with
    curves of the base.
    """

    technology: NetworkTechnology
    residuals: tuple[Residual, ...]
    skipped: tuple[Skipped, ...]
    kept_ops: tuple[str, ...]


def fit_link(base: NetworkTechnology, name: str, rows: Sequence[Measurement], source: str, date: str) -> LinkFit:
    """Return ``base`` under ``name`` with curves fitted to ``rows``.

    Raises:
        InputError: no operation has MIN_SIZES sizes for one number of ranks, or times that cannot be of this link.
    """
    check_collectives(name, rows, base)
    used, skipped = _enough(rows)
    if not used:
        most = max(skipped, key=lambda one: one.rows)
        raise InputError(
            f"curves of {name}: an operation needs {MIN_SIZES} sizes for one number of ranks, so that every second one can be "
            f"left out; {most.label or 'the file'}: {most.reason}: measure more sizes (nccl-tests: -b 1K -e 1G -f 2)"
        )
    entry = fitted_network(base, name, used, source, date)
    before, fitted, unseen = score(base.curves, used), score(entry.curves, used), held_out(as_one_system(used))
    residuals = []
    for label in SIZE_CLASSES:
        in_sample, left_out = _pooled(fitted, label), _pooled(unseen, label)
        if in_sample is not None:
            sizes = {"sizes": left_out} if left_out else {}
            residuals.append(Residual(f"collectives {label}", ("curves",), _pooled(before, label), in_sample, sizes))
    kept = tuple(dict.fromkeys(curve.op for curve in kept_curves(base, used)))
    return LinkFit(entry, tuple(residuals), tuple(skipped), kept)


def _enough(rows: Sequence[Measurement]) -> tuple[list[Measurement], list[Skipped]]:
    """Split rows into those of groups with MIN_SIZES sizes and the others."""
    used, skipped = [], []
    for key in dict.fromkeys((row.system, row.op, row.num_ranks) for row in rows):
        group = [row for row in rows if (row.system, row.op, row.num_ranks) == key]
        sizes = len({row.size_bytes for row in group})
        if sizes >= MIN_SIZES:
            used += group
        else:
            skipped.append(
                Skipped(key[0], len(group), f"{sizes} sizes of {key[1]} among {key[2]}; {MIN_SIZES} are needed")
            )
    return used, skipped


def _pooled(errors: Sequence[CurveError], label: str) -> Score | None:
    """Errors of one size class over all systems and operations; None where there is none."""
    pooled = [error for one in errors if one.op == "all" and one.size_class == label for error in one.errors]
    return score_of(np.array(pooled)) if pooled else None
