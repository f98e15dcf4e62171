"""Weeks of a plan's training under failures, simulated."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scaleacross.api.problems import problem_of
from scaleacross.catalogue import load_plan
from scaleacross.cost_models.goodput import goodput_of
from scaleacross.cost_models.goodput.share import useful_share
from scaleacross.errors import InputError
from scaleacross.simulation.long_run import SECONDS_PER_DAY, long_run
from scaleacross.spec.goodput import LongRun, TracedFailure
from scaleacross.spec.plan import Plan
from scaleacross.spec.progress import Progress

RATES: Final = "rates"
COLUMNS: Final = ("time_hours", "cause", "host_swap")


def simulate_weeks(
    plan: Plan | str | Path,
    *,
    days: float,
    draws: int = 100,
    seed: int = 0,
    failures: str | Path = RATES,
    progress: Callable[[Progress], None] | None = None,
) -> LongRun:
    """Simulate ``days`` of a plan's training, failure by failure, over ``draws`` draws.

    Args:
        failures: ``rates`` draws them by the rates of the plan (Llama 3's where nothing states any); otherwise a CSV with columns
            time_hours, cause and host_swap (yes or no; may be left out).
        progress: called now and then.

    Raises:
        InputError: not a plan, no days or draws, too many failures, or a trace that is none.
    """
    found = plan if isinstance(plan, Plan) else load_plan(plan)
    stated = found.goodput or goodput_of(problem_of(found.job, ()), found.decision, found.cost.step_s)
    trace = None if str(failures) == RATES else read_trace(Path(failures))
    began = time.monotonic()

    def told(done: int, total: int) -> None:
        if progress is not None:
            progress(Progress("simulating failures", done, total, None, None, time.monotonic() - began))

    expected = useful_share(stated.model)[0] if trace is None else None
    run = long_run(stated.model, days=days, draws=draws, seed=seed, trace=trace, closed_form=expected, progress=told)
    per_share = found.cost.tokens_per_s * days * SECONDS_PER_DAY
    return run.model_copy(update={"tokens": {name: value * per_share for name, value in run.goodput_fraction.items()}})


def read_trace(path: Path) -> tuple[TracedFailure, ...]:
    """The failures of a CSV file, by time.

    Raises:
        InputError: the file cannot be read, lacks a column, or a line is wrong; with its line.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a trace of failures: {error}") from None
    if not rows:
        raise InputError(f"{path}: no failures: a trace has the columns {', '.join(COLUMNS)} and a line per failure")
    missing = {"time_hours"} - set(rows[0])
    unknown = {str(name) for name in rows[0]} - set(COLUMNS)
    if missing or unknown:
        raise InputError(
            f"{path}: columns {', '.join(map(str, rows[0]))}; a trace has {', '.join(COLUMNS)} (the last two may be left out)"
        )
    return tuple(sorted((_failure(path, line, row) for line, row in enumerate(rows, 2)), key=lambda one: one.time_s))


def _failure(path: Path, line: int, row: dict[str, str]) -> TracedFailure:
    swap = (row.get("host_swap") or "no").strip().lower()
    if swap not in ("yes", "no", "true", "false", "1", "0"):
        raise InputError(f"{path}:{line}: host_swap is '{swap}': write yes or no")
    try:
        hours = float(row["time_hours"])
        return TracedFailure(
            time_s=hours * 3600, cause=(row.get("cause") or "host").strip(), host_swap=swap in ("yes", "true", "1")
        )
    except (TypeError, ValueError):
        raise InputError(
            f"{path}:{line}: time_hours is '{row['time_hours']}': write hours since the start, ≥ 0"
        ) from None
