"""Measure what one to three own runs are worth: fit random runs of a source left out, and predict its other rows.

``calibrate`` fits the knobs of a generation around the values that the catalogue ships. Here the same criterion runs on
linearised predictions, for every source as if it were a user's: nothing was fitted to it before. Rows are grouped by
what one team has: one accelerator, one framework, one model. A few runs of a group are drawn, and the rest of the group
is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleacross.validation.fitting import best_change
from scaleacross.validation.knobs import KNOBS
from scaleacross.validation.left_out import Apart, Floats, Truths

RUNS: Final = (1, 2, 3)
DRAWS: Final = 8
"""Number of random choices of runs per group of rows."""


@dataclass(frozen=True)
class Trial:
    """log(measured / predicted) of one source's rows before and after own runs were fitted, and which have experts."""

    source: str
    before: Floats
    after: Floats
    experts: Truths


def after_runs(rows: Apart, runs: int) -> list[Trial]:
    """One trial per source that has groups with more rows than ``runs``; DRAWS random choices per group."""
    random = np.random.default_rng(0)
    fleets = rows.of(lambda case: (case.run.framework, case.run.gpu, case.run.model))
    out = []
    for source in rows.sources:
        own, residuals = rows.rows_of(source), rows.residuals(source)
        before, after, experts = [], [], []
        for fleet in dict.fromkeys(fleets[own].tolist()):
            members = own[fleets[own] == fleet]
            if len(members) <= runs:
                continue
            for _ in range(DRAWS):
                drawn = random.choice(members, runs, replace=False)
                rest = np.setdiff1d(members, drawn)
                before.append(residuals[rest])
                after.append(residuals[rest] - rows.linear.jacobian[rest] @ _learned(rows, drawn, residuals))
                experts.append(rows.experts[rest])
        if before:
            out.append(Trial(source, np.concatenate(before), np.concatenate(after), np.concatenate(experts)))
    return out


def _learned(rows: Apart, drawn: NDArray[np.intp], residuals: Floats) -> Floats:
    """Change of the knobs' logs fitted to the drawn runs, (knobs,)."""
    nothing = np.zeros(len(KNOBS))
    return best_change(rows.linear.jacobian[drawn], residuals[drawn], np.ones(len(drawn)), nothing)
