"""Predict every row of a file, then compare: rows used and skipped, errors per group, ranking, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from scaleacross.errors import InputError
from scaleacross.validation.baseline import constant_mfu, step_flop
from scaleacross.validation.mapping import Case, case_of
from scaleacross.validation.metrics import (
    Errors,
    NoiseFloor,
    errors,
    kendall_tau,
    noise_floor,
    regret,
    spearman,
)
from scaleacross.validation.notes import counts_causal_half
from scaleacross.validation.predict import Prediction, predict
from scaleacross.validation.runs import Run

GroupBy = Literal["source", "gpu", "model", "arch"]
GROUPINGS: Final[tuple[GroupBy, ...]] = get_args(GroupBy)
MIN_RANKED: Final = 4
"""Least number of distinct configurations of one model on the same machines for a ranking."""


@dataclass(frozen=True)
class Scored:
    """One row that was used, with its prediction and baseline."""

    run: Run
    prediction: Prediction
    measured_s: float
    baseline_s: float
    filled: tuple[str, ...]

    @property
    def error(self) -> float:
        """predicted / measured − 1."""
        return self.prediction.step_s / self.measured_s - 1


@dataclass(frozen=True)
class Ranking:
    """Agreement of the predicted and measured order of the configurations of one model on the same machines."""

    name: str
    rows: int
    slowest_over_fastest: float
    kendall: float
    spearman: float
    regret: float


@dataclass(frozen=True)
class Group:
    """Errors of rows that share a property, ours and the baseline's."""

    name: str
    ours: Errors
    baseline: Errors
    kendall: float


@dataclass(frozen=True)
class MemoryScore:
    """Errors of predicted peak memory, and rows that ran although they are predicted not to fit."""

    errors: Errors
    refused: tuple[str, ...]


@dataclass(frozen=True)
class Validation:
    """Result for a whole file."""

    scored: tuple[Scored, ...]
    skipped: tuple[tuple[Run, str], ...]
    efficiencies: Mapping[str, float]
    overall: Group
    groups: Mapping[GroupBy, tuple[Group, ...]]
    rankings: tuple[Ranking, ...]
    noise: NoiseFloor
    memory: MemoryScore


def validate_runs(runs: Sequence[Run]) -> Validation:
    """Predict and score ``runs``.

    Raises:
        InputError: no row can be used; the message counts the reasons.
    """
    if not runs:
        raise InputError("no runs: below the line of column names a runs file has one measured run per line")
    cases, skipped = usable_cases(runs)
    predictions = [predict(case) for case in cases]  # predictions come first: no measured value is read before them
    measured = np.array([measured_s(case) for case in cases])
    if not cases:
        reasons = sorted({reason for _, reason in skipped})
        raise InputError(f"none of {len(runs)} rows can be used: {'; '.join(reasons[:3])}")
    baseline, efficiencies = constant_mfu(cases, measured)
    scored = tuple(
        Scored(case.run, prediction, float(time), float(constant), case.filled)
        for case, prediction, time, constant in zip(cases, predictions, measured, baseline, strict=True)
    )
    rankings = _rankings(scored)
    by = {name: _groups(scored, rankings, _key(name)) for name in GROUPINGS}
    return Validation(
        scored=scored,
        skipped=tuple(skipped),
        efficiencies=efficiencies,
        overall=_groups(scored, rankings, lambda _: "all")[0],
        groups=by,
        rankings=tuple(ranking for ranking, _ in rankings),
        noise=noise_floor(list(_by(scored, lambda row: row.run.configuration, lambda row: row.measured_s).values())),
        memory=_memory(scored),
    )


def measured_s(case: Case) -> float:
    """Measured step time of a row, s, or the time that its stated TFLOP/s imply."""
    run = case.run
    if run.step_time_s is not None:
        return run.step_time_s
    flop = step_flop(case, causal=counts_causal_half(run), recompute=False)
    return flop / (run.n_gpus * (run.tflops_per_gpu or float("nan")) * 1e12)


def usable_cases(runs: Sequence[Run], ask: Callable[[Run], Case] = case_of) -> tuple[list[Case], list[tuple[Run, str]]]:
    """Apply ``ask`` to the rows; returns its results and the rows that are skipped, with the reason.

    Skipped are rows that ``ask`` cannot express, that are unreadable, or that state no time.
    """
    cases: list[Case] = []
    skipped: list[tuple[Run, str]] = []
    for run in runs:
        try:
            if run.unreadable:
                raise InputError(run.unreadable)
            if run.step_time_s is None and run.tflops_per_gpu is None and not run.exclude_from_fit:
                raise InputError("neither step_time_s nor tflops_per_gpu is stated")
            cases.append(ask(run))
        except InputError as error:
            skipped.append((run, str(error)))
    return cases, skipped


def _key(name: GroupBy) -> Callable[[Scored], str]:
    return lambda row: str(getattr(row.run, name))


def _by(
    scored: Sequence[Scored], key: Callable[[Scored], object], value: Callable[[Scored], float]
) -> dict[object, list[float]]:
    out: dict[object, list[float]] = {}
    for row in scored:
        out.setdefault(key(row), []).append(value(row))
    return out


def _groups(
    scored: Sequence[Scored], rankings: Sequence[tuple[Ranking, Scored]], key: Callable[[Scored], str]
) -> tuple[Group, ...]:
    out = []
    for name in dict.fromkeys(key(row) for row in scored):
        rows = [row for row in scored if key(row) == name]
        taus = [ranking.kendall for ranking, first in rankings if key(first) == name]
        times = [row.measured_s for row in rows]
        out.append(
            Group(
                name=name,
                ours=errors([row.prediction.step_s for row in rows], times),
                baseline=errors([row.baseline_s for row in rows], times),
                kendall=float(np.nanmean(taus)) if taus else float("nan"),
            )
        )
    return tuple(out)


def _rankings(scored: Sequence[Scored]) -> list[tuple[Ranking, Scored]]:
    """Rankings by time per sequence, each with one of its rows; repeated configurations count by their median."""
    out = []
    groups: dict[tuple[object, ...], list[Scored]] = {}
    for row in scored:
        run = row.run
        key = (run.source, run.model, run.layers, run.gpu, run.n_gpus, run.seq, run.precision)
        groups.setdefault(key, []).append(row)
    for rows in groups.values():
        run = rows[0].run
        times = _by(rows, lambda row: row.run.configuration, lambda row: row.measured_s / row.run.gbs)
        if len(times) < MIN_RANKED:
            continue
        guesses = _by(rows, lambda row: row.run.configuration, lambda row: row.prediction.step_s / row.run.gbs)
        measured = np.array([np.median(group) for group in times.values()])
        predicted = np.array([np.median(group) for group in guesses.values()])
        name = f"{run.model}, {run.n_gpus} {run.gpu.split(' ', 1)[0]}, {run.precision}"
        ranking = Ranking(
            name=name,
            rows=len(times),
            slowest_over_fastest=float(measured.max() / measured.min()),
            kendall=kendall_tau(predicted, measured),
            spearman=spearman(predicted, measured),
            regret=regret(predicted, measured),
        )
        out.append((ranking, rows[0]))
    return out


def _memory(scored: Sequence[Scored]) -> MemoryScore:
    stated = [row for row in scored if row.run.mem_gib is not None]
    predicted = [row.prediction.memory_bytes / 2**30 for row in stated]
    refused = tuple(row.run.id for row in scored if not row.prediction.fits)
    return MemoryScore(errors(predicted, [row.run.mem_gib or float("nan") for row in stated]), refused)
