"""Errors with the catalogue's parameters, and with parameters that never saw the row's model or source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaleacross.validation.fitting import leave_out
from scaleacross.validation.knobs import KNOBS
from scaleacross.validation.left_out import Apart
from scaleacross.validation.metrics import Errors, errors

SEEN = 1e-4
"""If a parameter changes no row's log step time by more than this per unit, the rows did not determine it."""


@dataclass(frozen=True)
class Parameter:
    """A fitted parameter of one generation with its value in the catalogue."""

    generation: str
    name: str
    value: float
    unit: str
    prior: float
    meaning: str


@dataclass(frozen=True)
class CrossCheck:
    """Errors of the same rows in sample, with their model left out, and with their source left out of the fit.

    ``of_source``: errors with the model left out, by source.
    """

    in_sample: Errors
    by_model: Errors
    by_source: Errors
    of_source: Mapping[str, Errors]
    parameters: tuple[Parameter, ...]


def cross_check(rows: Apart) -> CrossCheck:
    """Refit without each model and each source in turn; rows that nothing is fitted to are left out."""
    rows = rows.fitted_alone()
    cases, measured, linear = rows.cases, rows.measured_s, rows.linear
    by_model = leave_out(linear, cases, measured, lambda case: case.run.model)
    by_source = leave_out(linear, cases, measured, lambda case: case.run.source)
    parameters = tuple(
        Parameter(generation, knob.name, float(np.exp(value)), knob.unit, knob.prior, knob.meaning)
        for generation, logs in linear.start.items()
        for column, (knob, value) in enumerate(zip(KNOBS, logs, strict=True))
        if np.abs(linear.jacobian[np.array(linear.generation) == generation, column]).max() > SEEN
    )
    sources = np.array([case.run.source for case in cases])
    return CrossCheck(
        in_sample=errors(np.exp(linear.base), measured),
        by_model=errors(by_model, measured),
        by_source=errors(by_source, measured),
        of_source={
            name: errors(by_model[sources == name], measured[sources == name])
            for name in dict.fromkeys(sources.tolist())
        },
        parameters=parameters,
    )
