"""Simulate weeks of a plan's training under failures (``simulate --days``)."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from scaleacross.api.problems import problem_of
from scaleacross.api.simulating import JITTERS, simulate, step_draws
from scaleacross.catalogue import load_plan
from scaleacross.cost_models.goodput import goodput_of
from scaleacross.cost_models.goodput.share import useful_share
from scaleacross.errors import InputError, unreadable
from scaleacross.simulation.long_run import SECONDS_PER_DAY, long_run
from scaleacross.simulation.what_if import SYNC
from scaleacross.spec.goodput import LongRun, SlowSpell, TracedFailure
from scaleacross.spec.placement import strides
from scaleacross.spec.plan import Plan
from scaleacross.spec.progress import Progress, telling
from scaleacross.workloads.problem import Problem

RATES: Final = "rates"
COLUMNS: Final = ("time_hours", "cause", "host_swap", "unit")
STEP_DRAWS: Final = 20
"""Steps simulated for the paces of a long run. Slow hosts stay slow, so all draws of the run share these steps."""
STRAGGLING: Final = 3
"""Pipeline ranks on which a slow accelerator is tried: the first, the last and one between."""


def simulate_weeks(
    plan: Plan | str | Path,
    *,
    days: float,
    draws: int = 100,
    seed: int = 0,
    failures: str | Path = RATES,
    what_if: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
) -> LongRun:
    """Simulate ``days`` of a plan's training, failure by failure, in ``draws`` independent draws.

    Args:
        plan: a Plan or the path of one.
        days: days of wall time per draw.
        draws: number of draws.
        seed: seed of the draws.
        failures: ``rates`` draws them by the plan's rates (Llama 3's where nothing states any). Otherwise a CSV with
            columns time_hours, cause, host_swap (yes or no) and unit (the fault unit that is hit, from 0; empty:
            drawn). Only the first is required.
        what_if: disturbances that last the whole time, as for one step. With ``host-jitter`` every draw uses one of
            STEP_DRAWS steps, because slow hosts stay slow. With ``jitter`` all draws use the mean of STEP_DRAWS steps,
            because every step is drawn anew.
        progress: called now and then.

    Raises:
        InputError: not a plan, no days or draws, too many failures, or an invalid trace or what-if.
    """
    found = plan if isinstance(plan, Plan) else load_plan(plan)
    if any(one.startswith(SYNC) for one in what_if):
        raise InputError(
            f"what-if {SYNC}=… is of one step: tokens of replicas that drift apart are not worth as much as those counted here"
        )
    problem = problem_of(found.job, ())
    stated = found.goodput or goodput_of(problem, found.decision, found.cost.step_s)
    trace = None if str(failures) == RATES else read_trace(Path(failures))
    model = stated.model.model_copy(update={"slow_spells": slow_spells(found, problem, what_if)})
    paces = _paces(found, what_if, max(min(draws, STEP_DRAWS), 1), seed, progress)
    told = partial(telling(progress), "simulating failures")
    expected = useful_share(model)[0] * (sum(paces) / len(paces) if paces else 1.0) if trace is None else None
    run = long_run(
        model, days=days, draws=draws, seed=seed, trace=trace, closed_form=expected, paces=paces, progress=told
    )
    per_share = found.cost.tokens_per_s * days * SECONDS_PER_DAY
    return run.model_copy(
        update={
            "assumed": stated.assumed,
            "tokens": {name: value * per_share for name, value in run.goodput_fraction.items()},
        }
    )


def _paces(
    plan: Plan, what_if: Sequence[str], draws: int, seed: int, progress: Callable[[Progress], None] | None
) -> tuple[float, ...]:
    """Return speeds of the disturbed step relative to the undisturbed plan, one per draw; () without ``what_if``.

    A host keeps its pace for the whole run, so each of its draws is a run. Actions are drawn anew in every step, so
    days of them have the mean. Where both are asked, the speed by action multiplies the speeds by host.
    """
    if not what_if:
        return ()
    by_host, by_action = ([one for one in what_if if one.startswith(kind)] for kind in ("host-jitter=", "jitter="))
    steady = [one for one in what_if if not one.startswith(JITTERS)]
    speed = simulate(plan).step_s / simulate(plan, what_if=steady).step_s
    if by_action:
        found = step_draws(plan, what_if=[*steady, *by_action], draws=draws, seed=seed, progress=progress)
        speed *= found.steady_s / found.step_s["mean"]
    if not by_host:
        return (speed,)
    found = step_draws(plan, what_if=[*steady, *by_host], draws=draws, seed=seed, progress=progress)
    return tuple(speed * found.steady_s / seconds for seconds in found.seconds)


def slow_spells(plan: Plan, problem: Problem, what_if: Sequence[str] = ()) -> tuple[SlowSpell, ...]:
    """Return the topology's slowdowns, each with the relative speed of the simulated step while it lasts (< 1).

    A slow accelerator is tried on up to STRAGGLING pipeline ranks, which share its rate. A slow link is tried on each
    inter-building link.
    """
    stated = problem.topology.reliability.slowdowns if problem.topology.reliability else ()
    usual_s = simulate(plan, what_if=what_if).step_s if stated else 0.0
    out: list[SlowSpell] = []
    for one in stated:
        if one.of == "inter_building_link":
            names = dict.fromkeys("/".join(trunk.between) for trunk in problem.topology.trunks)
            counts = {f"slow={name}:{1 / one.times!r}": 1.0 for name in names}
        else:
            stride, ranks = strides(plan.degrees, plan.placement.axis_order)["pp"], plan.degrees.pp
            tried = sorted({round(index * (ranks - 1) / (STRAGGLING - 1)) for index in range(STRAGGLING)})
            per_host = min(problem.topology.building(s.building).accelerators_per_host for s in plan.placement.fill)
            number = plan.degrees.world_size / (per_host if one.of == "host" else 1)
            # each tried rank stands for its share of all hosts or accelerators, so the rates add up
            counts = {f"straggler={rank * stride}:{one.times!r}": number / len(tried) for rank in tried}
        for option, count in counts.items():
            speed = min(1.0, usual_s / simulate(plan, what_if=[*what_if, option]).step_s)
            rate = count / (one.mtbf_hours * 3600)
            out.append(SlowSpell(cause=option, rate_per_s=rate, lasts_s=one.lasts_minutes * 60, speed=speed))
    return tuple(one for one in out if one.speed < 1)


def read_trace(path: Path) -> tuple[TracedFailure, ...]:
    """Read the failures of a CSV file, sorted by time.

    Raises:
        InputError: the file cannot be read, lacks a column, or has a wrong line; the message names the line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a trace of failures: {unreadable(error)}") from None
    if not rows:
        raise InputError(f"{path}: no failures: a trace has the columns {', '.join(COLUMNS)} and a line per failure")
    missing = {"time_hours"} - set(rows[0])
    unknown = {str(name) for name in rows[0]} - set(COLUMNS)
    if missing or unknown:
        raise InputError(
            f"{path}: columns {', '.join(map(str, rows[0]))}; a trace has {', '.join(COLUMNS)} (only the first is needed)"
        )
    return tuple(sorted((_failure(path, line, row) for line, row in enumerate(rows, 2)), key=lambda one: one.time_s))


def _failure(path: Path, line: int, row: dict[str, str]) -> TracedFailure:
    swap = (row.get("host_swap") or "no").strip().lower()
    if swap not in ("yes", "no", "true", "false", "1", "0"):
        raise InputError(f"{path}:{line}: host_swap is '{swap}': write yes or no")
    unit = (row.get("unit") or "").strip()
    if unit and not unit.isdecimal():
        raise InputError(f"{path}:{line}: unit is '{unit}': write the number of a fault unit, from 0, or nothing")
    try:
        return TracedFailure(
            time_s=float(row["time_hours"]) * 3600,
            cause=(row.get("cause") or "host").strip(),
            host_swap=swap in ("yes", "true", "1"),
            unit=int(unit) if unit else None,
        )
    except (TypeError, ValueError):
        raise InputError(
            f"{path}:{line}: time_hours is '{row['time_hours']}': write hours since the start, ≥ 0"
        ) from None
