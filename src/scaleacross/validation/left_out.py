"""Predict rows whose *source* was left out whole: no row of it is used to fit a parameter.

One thing is not left out: the effects in the cost model were chosen with all sources in view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleacross.spec.progress import Progress, telling
from scaleacross.validation.fitting import Linearised, linearise, moved, refit, row_weights
from scaleacross.validation.mapping import Case, case_of
from scaleacross.validation.metrics import Errors, errors
from scaleacross.validation.predict import predict
from scaleacross.validation.score import Validation, measured_s

Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]


@dataclass(frozen=True)
class Apart:
    """Rows of several sources with linearised predictions, which give residuals with any of the sources left out.

    Attributes:
        cases: the rows as questions for the cost model.
        measured_s: seconds, (rows,).
        linear: linearised predictions of ``cases``, which every fit uses.
        base: log predicted seconds of every row at ``origin``, (rows,).
        origin: logs of the knobs fitted without the row's own source, (rows, knobs).
        fits: rows that knobs are fitted to, (rows,); the others are only predicted.
        memory: cache of residuals, by the sources left out.
    """

    cases: tuple[Case, ...]
    measured_s: Floats
    linear: Linearised
    base: Floats
    origin: Floats
    fits: Truths
    memory: dict[frozenset[str], Floats] = field(default_factory=dict, compare=False)

    @cached_property
    def source(self) -> NDArray[np.str_]:
        """Source of every row, (rows,)."""
        return self.of(lambda case: case.run.source)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Distinct sources, in the order of the file."""
        return tuple(dict.fromkeys(self.source.tolist()))

    @cached_property
    def weights(self) -> Floats:
        """``row_weights`` among the rows that knobs are fitted to, and separately among the others, (rows,)."""
        return _weights(self.cases, self.fits)

    @cached_property
    def _kinds_of(self) -> tuple[Truths, NDArray[np.intp]]:
        """Whether each source has each accelerator and precision, (sources, kinds); kind of every row, (rows,)."""
        names, of = np.unique(self.of(kind_of), return_inverse=True)
        has = np.zeros((len(self.sources), len(names)), dtype=bool)
        has[[self.sources.index(source) for source in self.source.tolist()], of] = True
        return has, of

    @cached_property
    def experts(self) -> Truths:
        """Whether the row's model has routed experts, (rows,)."""
        return np.array([case.profile.num_experts > 0 for case in self.cases])

    def of(self, value: Callable[[Case], object]) -> NDArray[np.str_]:
        """A property of every row as text, (rows,)."""
        return np.array([str(value(case)) for case in self.cases])

    def rows_of(self, source: str) -> NDArray[np.intp]:
        """Indices of the rows of a source."""
        return self._rows[source]

    @cached_property
    def _rows(self) -> Mapping[str, NDArray[np.intp]]:
        return {source: np.flatnonzero(self.source == source) for source in self.sources}

    @cached_property
    def _fitted(self) -> frozenset[str]:
        return frozenset(self.source[self.fits].tolist())

    def residuals(self, *without: str) -> Floats:
        """log(measured / predicted) of every row, with nothing fitted to the sources ``without``, (rows,)."""
        key = frozenset(without) & self._fitted
        if key not in self.memory:
            kept = self.fits & ~np.isin(self.source, list(key))
            values = refit(self.linear, np.log(self.measured_s), self.weights, kept)
            # the exact prediction at ``origin`` is corrected linearly, which is accurate for small changes of the knobs
            change = np.stack([values[name] for name in self.linear.generation]) - self.origin
            predicted = self.base + (self.linear.jacobian * change).sum(axis=1)
            self.memory[key] = np.log(self.measured_s) - predicted
        return self.memory[key]

    def own_residuals(self) -> Floats:
        """log(measured / predicted) of every row with its own source left out, (rows,)."""
        out = np.empty(len(self.cases))
        for source in self.sources:
            rows = self.rows_of(source)
            out[rows] = self.residuals(source)[rows]
        return out

    def fitted_alone(self) -> Apart:
        """Return only the rows that knobs are fitted to."""
        kept, linear = np.flatnonzero(self.fits), self.linear
        generation = tuple(linear.generation[row] for row in kept)
        start = {name: logs for name, logs in linear.start.items() if name in generation}
        alone = Linearised(linear.base[kept], linear.jacobian[kept], start, generation)
        cases = tuple(self.cases[row] for row in kept)
        return Apart(cases, self.measured_s[kept], alone, self.base[kept], self.origin[kept], self.fits[kept])

    def seen(self, *without: str) -> Truths:
        """Whether a source other than ``without`` has a step time of the row's accelerator and precision, (rows,)."""
        has, of = self._kinds_of
        others = np.array([source not in without for source in self.sources])
        return np.asarray(has[others].any(axis=0), dtype=bool)[of]

    def own_seen(self) -> Truths:
        """``seen`` of every row with its own source left out, (rows,)."""
        seen = {source: self.seen(source) for source in self.sources}
        return np.array([seen[source][row] for row, source in enumerate(self.source.tolist())])


def kind_of(case: Case) -> tuple[str, str]:
    """Accelerator and precision of a row."""
    return case.topology.buildings[0].accelerator.name, case.job.precision


def apart(
    validation: Validation,
    judges: Validation | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Apart:
    """Predict the rows that ``validation`` used, once per parameter and once as rows of an unseen source.

    No parameter is fitted to the rows of ``judges``.
    """
    scored = (*validation.scored, *(judges.scored if judges else ()))
    cases = tuple(case_of(one.run) for one in scored)
    fits, tell = np.arange(len(cases)) < len(validation.scored), telling(report)
    linear = linearise(cases, lambda done: tell("timing measured runs with every parameter", done, len(cases)))
    return apart_from(cases, np.array([measured_s(case) for case in cases]), linear, fits)


def apart_from(cases: tuple[Case, ...], measured: Floats, linear: Linearised, fits: Truths | None = None) -> Apart:
    """Build an ``Apart`` from cases, their measured seconds, (rows,), and linearised predictions.

    ``fits`` is as in ``Apart``; None means all rows.
    """
    fits = np.ones(len(cases), dtype=bool) if fits is None else fits
    sources, weights = np.array([case.run.source for case in cases]), _weights(cases, fits)
    base, origin = linear.base.copy(), np.empty_like(linear.jacobian)
    for source in dict.fromkeys(sources.tolist()):
        values = refit(linear, np.log(measured), weights, fits & (sources != source))
        for row in np.flatnonzero(sources == source):
            origin[row] = values[linear.generation[row]]
            base[row] = np.log(predict(moved(cases[row], origin[row])).step_s)
    return Apart(cases, measured, linear, base, origin, fits)


def _weights(cases: tuple[Case, ...], fits: Truths) -> Floats:
    out = np.empty(len(cases))
    for rows in (np.flatnonzero(fits), np.flatnonzero(~fits)):
        out[rows] = row_weights([cases[row] for row in rows])
    return out


@dataclass(frozen=True)
class Class:
    """Rows with a common property, and the number of sources that they come from."""

    name: str
    sources: int
    errors: Errors


@dataclass(frozen=True)
class LeftOut:
    """Errors with every source left out whole.

    Attributes:
        overall, of_source, classes: errors of all rows, by source, and by what is known of the row's kind beforehand.
    """

    overall: Errors
    of_source: Mapping[str, Errors]
    classes: tuple[Class, ...]


FITTED: Final = "sources that parameters are fitted to"
JUDGES: Final = "sources that nothing is fitted to"
BEYOND: Final = 2.0
"""A row is beyond the measured scale if it has more than this times the accelerators of any other source's row."""


def left_out(rows: Apart) -> LeftOut:
    """Errors of ``rows`` with every source left out whole, by class."""
    residuals = rows.own_residuals()
    return LeftOut(
        overall=_errors(residuals, rows, np.ones(len(residuals), dtype=bool)),
        of_source={source: _errors(residuals, rows, np.asarray(rows.source == source)) for source in rows.sources},
        classes=tuple(
            Class(name, len({rows.cases[row].run.source for row in np.flatnonzero(chosen)}), found)
            for name, chosen in classes_of(rows)
            if (found := _errors(residuals, rows, chosen)).rows
        ),
    )


def classes_of(rows: Apart) -> Sequence[tuple[str, Truths]]:
    """(name, rows) of every class for which errors are reported."""
    seen, experts, beyond = rows.own_seen(), rows.experts, _beyond(rows)
    filled = np.array([bool(case.filled) for case in rows.cases])
    judges = () if rows.fits.all() else ((FITTED, rows.fits), (JUDGES, ~rows.fits))
    return (
        *judges,
        ("accelerator and precision seen", seen),
        ("accelerator and precision never seen", ~seen),
        ("dense", ~experts),
        ("experts", experts),
        ("seen, dense", seen & ~experts),
        ("never seen, or experts", ~seen | experts),
        ("every field stated", ~filled),
        ("fields filled in", filled),
        ("beyond the largest measured scale", beyond),
    )


def _beyond(rows: Apart) -> Truths:
    """Whether a row has more than BEYOND times the accelerators of every other source's rows of its kind, (rows,)."""
    out = []
    for case in rows.cases:
        others = [
            one.run.n_gpus for one in rows.cases if one.run.source != case.run.source and kind_of(one) == kind_of(case)
        ]
        out.append(bool(others) and case.run.n_gpus > BEYOND * max(others))
    return np.array(out)


def _errors(residuals: Floats, rows: Apart, chosen: Truths) -> Errors:
    return errors((rows.measured_s * np.exp(-residuals))[chosen], rows.measured_s[chosen])
