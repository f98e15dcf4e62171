"""Compute the constants of intervals from residuals of sources that were left out whole, and test such intervals.

A future run belongs to a future source, so sources are exchangeable, not rows. Every source has the same weight, and a
configuration of it counts once however often it is reported. Rows of another class are first put on the scale of a
dense model on a known accelerator.

The interval is made in two steps. The first is the quantiles of all rows. They alone are too narrow, because a future
source has an offset of its own. The second is a factor. For each source, quantiles are made of the others; they must
grow by this factor to hold COVERAGE of that source's rows. This is cross-conformal prediction (Vovk 2015, arXiv
1208.0806) over sources instead of rows.

The test is nested. The interval of a source comes from residuals of the others, each with itself *and* that source left
out, and so does its factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from scaleacross.cost_models.step_interval import spread_ratio
from scaleacross.errors import InputError
from scaleacross.spec.base import Provenance
from scaleacross.spec.step_errors import SeenSteps, StepErrors
from scaleacross.validation.few_runs import RUNS, Trial, after_runs
from scaleacross.validation.left_out import Apart, Floats, LeftOut, kind_of, left_out
from scaleacross.validation.metrics import Errors, errors, weighted_quantile

COVERAGE: Final = 0.8
"""Share of measured step times between the 10th and the 90th percentile."""
MIN_SOURCES: Final = 4
"""With each of them left out in turn, three remain, from which quantiles are computed."""
NARROWEST: Final = 0.005
"""Least size of either end of an interval, so that it holds the prediction even if all sources are off to one side."""
ASSUMED: Final = StepErrors(
    low_log=-1.0,
    high_log=1.0,
    median_log=0.0,
    unseen_ratio=2.0,
    experts_ratio=2.0,
    drift_per_doubling=0.0,
    calibrated_fraction=(1.0,),
    paired_log={"dense": 1.0, "experts": 1.0},
    seen=(),
)
"""Ratios between classes are assumed: too few sources have experts, or share their kind with no other, for a fit.

Left out, both kinds of rows have 2 to 4 times the median error of the rest. All other values here are replaced by fits.
"""


def limits(rows: Apart, *without: str) -> tuple[float, float]:
    """Lower and upper end of x = log(measured / predicted), on the scale of a dense model on a known accelerator.

    ``without`` names sources that must not influence the result.

    Raises:
        InputError: fewer than MIN_SOURCES sources.
    """
    sources = [source for source in rows.sources if source not in without]
    if len(sources) < MIN_SOURCES:
        raise InputError(
            f"intervals need {MIN_SOURCES} sources besides the one that is left out; there are {len(sources)}: "
            "name every publication in the column 'source'"
        )
    low, high = _quantiles(rows, *without)
    parts = []
    for source in sources:
        x, w = _of_source(rows, source, *without)
        parts.append((scores(x, *_quantiles(rows, source, *without)), w))
    grown, w = (np.concatenate(each) for each in zip(*parts, strict=True))
    # each source is scored on quantiles that have not seen it, so its own offset shows
    grow = weighted_quantile(grown, w, COVERAGE)
    return grow * low, grow * high


def _quantiles(rows: Apart, *without: str) -> tuple[float, float]:
    """Lower and upper quantile of x between which COVERAGE of the rows lie."""
    x, w = _every(rows, *without)
    low, high = (weighted_quantile(x, w, (1 + end * COVERAGE) / 2) for end in (-1, 1))
    return min(low, -NARROWEST), max(high, NARROWEST)


def _every(rows: Apart, *without: str) -> tuple[Floats, Floats]:
    """x of all rows, and their weights: every source but ``without`` has a total weight of 1."""
    parts = [_of_source(rows, source, *without) for source in rows.sources if source not in without]
    x, w = (np.concatenate(each) for each in zip(*parts, strict=True))
    return x, w


def _of_source(rows: Apart, source: str, *without: str) -> tuple[Floats, Floats]:
    """x of a source's rows, predicted without it and ``without``, and their weights, which add up to 1."""
    own, weights = rows.rows_of(source), rows.weights
    x: Floats = rows.residuals(source, *without)[own] / ratios(rows, source, *without)[own]
    return x, weights[own] / weights[own].sum()


def scores(x: Floats, low: float, high: float) -> Floats:
    """Factor by which the interval (low < 0, high > 0) must grow to contain x, (rows,)."""
    return np.asarray(np.maximum(x / high, x / low), dtype=np.float64)


def ratios(rows: Apart, *without: str) -> Floats:
    """Width of every row's interval over that of a dense model on a known accelerator, (rows,).

    Sources in ``without`` count as unseen.
    """
    classes = np.array([[spread_ratio(ASSUMED, seen=a, experts=b) for b in (False, True)] for a in (False, True)])
    return np.asarray(classes[rows.seen(*without).astype(int), rows.experts.astype(int)], dtype=np.float64)


@dataclass(frozen=True)
class Coverage:
    """Share of measured step times inside their intervals; ``low_log`` and ``high_log`` are for a known dense model."""

    rows: int
    inside: float
    low_log: float
    high_log: float


def coverage(rows: Apart) -> dict[str, Coverage]:
    """Coverage of every source by intervals that have not seen it."""
    out = {}
    for source in rows.sources:
        low, high = limits(rows, source)
        x, _ = _of_source(rows, source)
        out[source] = Coverage(len(x), float(((low <= x) & (x <= high)).mean()), low, high)
    return out


def step_errors(rows: Apart, quoted: str) -> StepErrors:
    """Compute the constants from ``rows``; ``quoted`` names the file, its digest and the date in their provenance.

    Raises:
        InputError: fewer than MIN_SOURCES sources.
    """
    low, high = limits(rows)
    # more own runs never widen an interval, whatever the random draws gave
    fractions = np.minimum.accumulate([1.0, *(narrower(after_runs(rows, runs), low, high) for runs in RUNS)])[1:]
    fitted = {
        "low_log": f"{quoted}: quantiles of {len(rows.sources)} sources, each left out whole",
        "high_log": f"{quoted}: quantiles of {len(rows.sources)} sources, each left out whole",
        "median_log": f"{quoted}: median of {len(rows.sources)} sources, each left out whole and with the same weight",
        "drift_per_doubling": f"{quoted}: median slope of log(measured / predicted) within groups that differ in scale alone",
        "calibrated_fraction": f"{quoted}: 80 % quantile of errors after over before 1, 2, 3 random runs of a source left out",
        "paired_log": f"{quoted}: mean of the sources' mean differences between pairs of configurations of one model",
    }
    assumed = "assumed: errors left out are 2 to 4 times as large there, in too few sources for a fit"
    origins = {key: Provenance(source=source, status="fitted") for key, source in fitted.items()}
    origins |= {key: Provenance(source=assumed, status="assumed") for key in ("unseen_ratio", "experts_ratio")}
    return StepErrors(
        low_log=_rounded(low),
        high_log=_rounded(high),
        median_log=_rounded(weighted_quantile(*_every(rows), 0.5)),
        unseen_ratio=ASSUMED.unseen_ratio,
        experts_ratio=ASSUMED.experts_ratio,
        drift_per_doubling=_rounded(max(0.0, drift(rows))),
        calibrated_fraction=tuple(_rounded(float(one)) for one in fractions),
        paired_log={key: _rounded(size) for key, size in paired(rows).items()},
        seen=_seen(rows),
        provenance=origins,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def narrower(trials: list[Trial], low: float, high: float) -> float:
    """Ratio of an interval's width after own runs were fitted to that before, at most 1.

    It is the 80 % quantile of scores after, over that before. A score is the factor that (low, high) needs to reach a
    residual. Sources have equal weight.
    """
    if not trials:
        return 1.0
    weights = np.concatenate([np.full(len(one.before), 1 / len(one.before)) for one in trials])
    after, before = (
        weighted_quantile(np.concatenate([scores(_scaled(x, one), low, high) for x, one in each]), weights, COVERAGE)
        for each in ([(one.after, one) for one in trials], [(one.before, one) for one in trials])
    )
    return min(1.0, after / before)


def _scaled(x: Floats, trial: Trial) -> Floats:
    """x of a trial's rows on the scale of dense models; their accelerator counts as known."""
    return x / np.where(trial.experts, ASSUMED.experts_ratio, 1.0)


@dataclass(frozen=True)
class Learned:
    """Errors of a source before and after own runs of a model were fitted.

    ``inside``: share of its rows in the interval narrowed by those runs.
    """

    source: str
    before: Errors
    after: Errors
    inside: float


def learned(rows: Apart, trials: list[Trial]) -> tuple[Learned, ...]:
    """Effect of own runs by source; the interval of a source is made of the other sources."""
    out = []
    for one in trials:
        low, high = limits(rows, one.source)
        fraction = narrower([other for other in trials if other.source != one.source], low, high)
        inside = float((scores(_scaled(one.after, one), low, high) <= fraction).mean())
        out.append(Learned(one.source, _as_errors(one.before), _as_errors(one.after), inside))
    return tuple(out)


@dataclass(frozen=True)
class SourcesLeftOut:
    """Errors to expect for a source that nobody has seen.

    Attributes:
        errors: with every source left out whole.
        coverage: of every source by intervals made of the others; empty with too few sources.
        after_runs: number of own runs -> their effect by source; empty with too few sources.
        together: number of own runs -> errors of all sources' rows before and after.
        slopes: source -> change of log(measured / predicted) per doubling of accelerators, of every group that differs
            in scale.
    """

    errors: LeftOut
    coverage: Mapping[str, Coverage]
    after_runs: Mapping[int, tuple[Learned, ...]]
    together: Mapping[int, tuple[Errors, Errors]]
    slopes: Mapping[str, tuple[float, ...]]


def sources_left_out(rows: Apart) -> SourcesLeftOut:
    """Errors with every source left out whole, and the performance of intervals and own runs there."""
    if len(rows.sources) <= MIN_SOURCES:
        return SourcesLeftOut(left_out(rows), {}, {}, {}, slopes(rows))
    trials = {runs: found for runs in RUNS if (found := after_runs(rows, runs))}
    return SourcesLeftOut(
        errors=left_out(rows),
        coverage=coverage(rows),
        after_runs={runs: learned(rows, found) for runs, found in trials.items()},
        together={runs: _together(found) for runs, found in trials.items()},
        slopes=slopes(rows),
    )


def _together(trials: list[Trial]) -> tuple[Errors, Errors]:
    """Errors of all trials' rows before and after own runs."""
    before, after = (np.concatenate(each) for each in zip(*((one.before, one.after) for one in trials), strict=True))
    return _as_errors(before), _as_errors(after)


def _as_errors(x: Floats) -> Errors:
    return errors(np.exp(-x), np.ones(len(x)))


def _fleet(rows: Apart, row: int) -> tuple[object, ...]:
    """Key of rows that one team could have run one after the other on the same accelerators."""
    run = rows.cases[row].run
    return run.source, run.framework, run.model, run.layers, run.gpu, run.precision, run.seq


def paired(rows: Apart) -> dict[str, float]:
    """Mean absolute difference of x between two configurations of one model on one machine, dense and with experts.

    Raises:
        InputError: no source has two configurations of one dense model on one machine.
    """
    residuals, experts = rows.own_residuals(), rows.experts
    groups: dict[tuple[object, ...], list[int]] = {}
    for row, case in enumerate(rows.cases):
        groups.setdefault((*_fleet(rows, row), case.run.n_gpus), []).append(row)
    sizes: dict[str, dict[str, list[float]]] = {"dense": {}, "experts": {}}
    for members in groups.values():
        for a, b in combinations(members, 2):
            if rows.cases[a].run.configuration != rows.cases[b].run.configuration:
                kind, source = "experts" if experts[a] else "dense", rows.cases[a].run.source
                sizes[kind].setdefault(source, []).append(abs(float(residuals[a] - residuals[b])))
    found = {kind: [float(np.mean(one)) for one in of.values()] for kind, of in sizes.items() if of}
    if "dense" not in found:
        raise InputError(
            "no source has two configurations of one dense model on one cluster: comparisons have no errors"
        )
    dense = float(np.mean(found["dense"]))
    return {"dense": dense, "experts": float(np.mean(found.get("experts", [ASSUMED.experts_ratio * dense])))}


def slopes(rows: Apart) -> dict[str, tuple[float, ...]]:
    """Change of x per doubling of accelerators by source, one per group of rows that differ only in scale and batch.

    Rows of one group have one ``source_ref``: other tables and releases were measured with other software.
    """
    residuals = rows.own_residuals()
    groups: dict[tuple[object, ...], list[int]] = {}
    for row, case in enumerate(rows.cases):
        run = case.run
        same = (run.source_ref, run.tp, run.cp, run.pp, run.vpp, run.ep, run.mbs)
        groups.setdefault((*_fleet(rows, row), *same), []).append(row)
    found: dict[str, tuple[float, ...]] = {}
    for members in groups.values():
        doublings = np.log2([rows.cases[row].run.n_gpus for row in members])
        if np.ptp(doublings) >= 1:
            source = rows.cases[members[0]].run.source
            found[source] = (*found.get(source, ()), float(np.polyfit(doublings, residuals[members], 1)[0]))
    return found


def drift(rows: Apart) -> float:
    """Median of all ``slopes``; 0 without any."""
    every = [slope for of_source in slopes(rows).values() for slope in of_source]
    return float(np.median(every)) if every else 0.0


def _seen(rows: Apart) -> tuple[SeenSteps, ...]:
    out = []
    for name, precision in sorted({kind_of(case) for case in rows.cases}):
        own = [case.run for case in rows.cases if kind_of(case) == (name, precision)]
        sources, largest = len({run.source for run in own}), max(run.n_gpus for run in own)
        out.append(
            SeenSteps.model_validate(
                {"accelerator": name, "precision": precision, "rows": len(own), "sources": sources, "largest": largest}
            )
        )
    return tuple(out)
