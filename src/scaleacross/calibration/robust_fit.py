"""Fit a few bounded parameters to many measured times by relative errors, with limited influence of outliers.

Minimises Σ ρ(log predicted(x) − log measured), ρ(r) = 2·s²·(√(1 + (r/s)²) − 1). It is quadratic below the scale s and
linear beyond it, so the fit follows the median rather than a few odd kernels. The method is Levenberg-Marquardt with
numerical derivatives and iteratively reweighted rows, in coordinates in which every parameter is unbounded. It needs
numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Predict = Callable[[Mapping[str, float]], Floats]

STEP: Final = 1e-4
"""Step of a coordinate for numerical derivatives."""
TRUST: Final = 1.0
"""Largest change of a coordinate in one iteration."""
MAX_ITERATIONS: Final = 80
SPAN: Final = 7.0
"""Coordinates stay within ±SPAN.

A fraction then lies within 0.001 and 0.999, a positive figure within a factor of 1,100 of its start. At the lower end a
positive figure is 0: the rows do not show that term.
"""


@dataclass(frozen=True)
class Parameter:
    """One free figure: its starting value, and the coordinate that keeps it in range.

    ``fraction``: logit, within (0, 1). ``positive``: logarithm of x / ``start``. ``above_one``: logarithm of x − 1.
    """

    name: str
    start: float
    kind: Literal["fraction", "positive", "above_one"]

    def coordinate(self, value: float) -> float:
        """The unbounded coordinate of ``value``."""
        if self.kind == "fraction":
            return float(np.log(value / (1.0 - value)))
        if self.kind == "positive":
            return float(np.log(value / self.start))
        return float(np.log(value - 1.0))

    def value(self, coordinate: float) -> float:
        """The figure at an unbounded coordinate."""
        if self.kind == "fraction":
            return float(1.0 / (1.0 + np.exp(-coordinate)))
        if self.kind == "positive":
            return 0.0 if coordinate <= -SPAN else float(self.start * np.exp(coordinate))
        return float(1.0 + np.exp(coordinate))


@dataclass(frozen=True)
class Fitted:
    """The best figures found and the loss there."""

    values: dict[str, float]
    loss: float


def fit_times(
    predict: Predict,
    measured_s: Floats,
    parameters: Sequence[Parameter],
    *,
    scale: float,
    leash: float = 0.0,
) -> Fitted:
    """Fit ``parameters`` so that ``predict`` comes nearest to ``measured_s``.

    Args:
        predict: maps the figures to seconds, (rows,).
        scale: s of the module's ρ.
        leash: adds (leash · distance from the start)² per coordinate, so that figures that the rows do not show keep
            their start.
    """
    target = np.log(measured_s)

    def residuals(at: Floats) -> Floats:
        return np.log(predict(_values(parameters, at))) - target

    def total(at: Floats, errors: Floats) -> float:
        return _loss(errors, scale) + leash**2 * float(np.sum((at - start) ** 2))

    start = np.array([parameter.coordinate(parameter.start) for parameter in parameters])
    here, errors, damping = start, residuals(start), 1e-3
    loss = total(here, errors)
    for _ in range(MAX_ITERATIONS):
        slopes = np.stack([(residuals(here + STEP * unit) - errors) / STEP for unit in np.eye(len(here))], axis=1)
        # weight of a row: ρ'(r) / (2·r) = 1 / √(1 + (r/s)²)
        weighted = slopes / np.sqrt(1.0 + (errors / scale) ** 2)[:, None]
        curvature = slopes.T @ weighted + leash**2 * np.eye(len(here))
        slope = weighted.T @ errors + leash**2 * (here - start)
        before = loss
        while damping < 1e8:
            # the trace keeps the system solvable when a figure has no effect on any row
            lifted = curvature + np.diag(damping * np.diag(curvature) + 1e-9 * np.trace(curvature))
            move = np.clip(np.linalg.solve(lifted, -slope), -TRUST, TRUST)
            there = np.clip(here + move, -SPAN, SPAN)
            tried = residuals(there)
            if (new := total(there, tried)) < loss:
                here, errors, loss, damping = there, tried, new, max(damping / 5, 1e-7)
                break
            damping *= 4
        if before - loss < 1e-6 * before:
            break
        # high damping of this iteration must not slow the next ones
        damping = min(damping, 1e3)
    return Fitted(_values(parameters, here), loss)


def _values(parameters: Sequence[Parameter], at: Floats) -> dict[str, float]:
    return {parameter.name: parameter.value(x) for parameter, x in zip(parameters, at, strict=True)}


def _loss(errors: Floats, scale: float) -> float:
    return float(np.sum(2.0 * scale**2 * (np.sqrt(1.0 + (errors / scale) ** 2) - 1.0)))
