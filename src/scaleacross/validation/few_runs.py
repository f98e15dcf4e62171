"""What one to three own runs are worth: random runs of a source that was left out, and errors on its other rows.

``calibrate`` fits the knobs of a generation around the values that the catalogue ships. Here the same criterion runs on linear
predictions, for every source as if it were a user's: nothing of it was fitted before. A fleet is what one team has:
one accelerator, one framework. A few of its runs of a model are drawn, the rest of that model's rows are then predicted.
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
"""Random choices of runs per model of a fleet."""


@dataclass(frozen=True)
class Trial:
    """log(measured / predicted) of the rows of one source without and with own runs fitted, and which of them have experts."""

    source: str
    before: Floats
    after: Floats
    experts: Truths


def after_runs(rows: Apart, runs: int) -> list[Trial]:
    """A trial per source that has models with more rows than ``runs``, DRAWS random choices each."""
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
    """Change of the knobs that the drawn runs call for, (knobs,)."""
    nothing = np.zeros(len(KNOBS))
    return best_change(rows.linear.jacobian[drawn], residuals[drawn], np.ones(len(drawn)), nothing)
