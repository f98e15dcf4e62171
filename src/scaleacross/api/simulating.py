"""The verb simulate: run a plan event by event, with code that does not use the cost model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from scaleacross.api.arguments import instances
from scaleacross.api.problems import problem_of
from scaleacross.errors import InputError
from scaleacross.simulation.execution import execution_trace as programs
from scaleacross.simulation.result import simulated_step
from scaleacross.simulation.steady import SteadyStep, steady_step
from scaleacross.simulation.step_run import StepRun, no_collection, simulate_step
from scaleacross.simulation.what_if import disturbance_of
from scaleacross.spec.execution_trace import ExecutionTrace
from scaleacross.spec.plan import Plan
from scaleacross.spec.progress import Progress, telling
from scaleacross.spec.simulation import SimulatedStep, StepDraws
from scaleacross.workloads.problem import Problem

JITTERS: Final = ("jitter=", "host-jitter=")
"""Prefixes of what-ifs whose draws differ by seed."""


def simulate(
    plan: Plan | str | Path,
    *,
    what_if: Sequence[str] = (),
    fold: bool = True,
    timeline: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> SimulatedStep:
    """Simulate one step of a plan on its topology. Flows share links max-min fairly, one event after another.

    Args:
        plan: a Plan, or the path of one, which is verified first.
        what_if: what is slower or lost, e.g. ``slow=building:0.5`` (``simulate.what_if``).
        fold: simulate one of every class of equal ranks; False simulates every rank, which suits small plans only.
        timeline: keep the time of every event, for traces and charts.
        progress: called now and then.

    Returns:
        A SimulatedStep: ``step_s`` and components in seconds, their differences to the estimate, and the use of every
        link.

    Raises:
        InputError: not a plan, a plan of an older version that does not state its computation, or an invalid what-if.
        VerificationError: a plan read from a file does not recompute.
    """
    instances("what_if", what_if, str, "texts such as slow=building:0.5")
    found = plan if isinstance(plan, Plan) else _verified(plan)
    with no_collection():
        step_run, _ = _simulated_run(found, what_if, fold, progress)
        return simulated_step(found, step_run, fold, tuple(what_if), timeline)


def step_draws(
    plan: Plan | str | Path,
    *,
    what_if: Sequence[str],
    draws: int,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> StepDraws:
    """Return the distribution of the step time over draws of ``jitter`` and ``host-jitter``.

    Other what-ifs hold in every draw.

    Args:
        plan: a Plan, or the path of one, which is verified first.
        what_if: as ``simulate``; at least one of ``jitter=`` and ``host-jitter=``.
        draws: number of draws.
        seed: seed of the first draw; the others follow.
        progress: called after every draw.

    Returns:
        A StepDraws: percentiles and mean in seconds, every draw, and ``steady_s``, the step without jitter.

    Raises:
        InputError: as ``simulate``; no draws; nothing that differs between draws; a seed among the what-ifs.
    """
    if draws < 1:
        raise InputError(f"{draws} draws simulate nothing: give 1 or more")
    if not any(one.startswith(JITTERS) for one in what_if):
        raise InputError(
            "all draws of the step are alike: say how much it varies, e.g. --what-if host-jitter=0.02 (a pace for every host) or "
            "--what-if jitter=0.02 (for every action); draws of failures need --days"
        )
    if any(one.startswith("seed=") for one in what_if):
        raise InputError("what-if seed=… is of one step: --seed says where the draws begin")
    found = plan if isinstance(plan, Plan) else _verified(plan)
    problem, tell, seconds = problem_of(found.job, ()), telling(progress), []
    steady = [one for one in what_if if not one.startswith(JITTERS)]
    # draw -1 is the steady step, without jitter
    for draw in range(-1, draws):
        options = steady if draw < 0 else [*what_if, f"seed={seed + draw}"]
        seconds.append(simulate_step(found, problem, disturbance_of(options, found, problem.topology)).step_s)
        tell("simulating steps", draw + 2, draws + 1)
    p5, p50, p95 = (float(value) for value in np.percentile(seconds[1:], [5, 50, 95]))
    return StepDraws(
        plan_name=found.job.name,
        what_if=tuple(what_if),
        draws=draws,
        seed=seed,
        steady_s=seconds[0],
        step_s={"p5": p5, "p50": p50, "p95": p95, "mean": sum(seconds[1:]) / draws},
        seconds=tuple(seconds[1:]),
    )


def stepped(plan: Plan, problem: Problem) -> SteadyStep:
    """Return step time and components of ``simulate(plan)`` alone; of many equal micro-batches only some are simulated.

    Raises:
        InputError: as ``simulate``.
    """
    return steady_step(plan, problem)


def simulated_step_s(plan: Plan) -> float:
    """Return ``simulate(plan).step_s`` alone, in seconds. Raises as ``simulate``."""
    return steady_step(plan, problem_of(plan.job, ())).step_s


def execution_trace(
    plan: Plan | str | Path, *, what_if: Sequence[str] = (), progress: Callable[[Progress], None] | None = None
) -> ExecutionTrace:
    """Return one step of a plan as the operations of every rank, which ``emitters.chakra`` writes for other simulators.

    Args:
        plan: a Plan, or the path of one, which is verified first.
        what_if: what is slower or lost, as in ``simulate``.
        progress: called now and then.

    Raises:
        InputError: as ``simulate``.
        VerificationError: a plan read from a file does not recompute.
    """
    found = plan if isinstance(plan, Plan) else _verified(plan)
    step_run, _ = _simulated_run(found, what_if, True, progress)
    return programs(found, step_run)


def _verified(path: str | Path) -> Plan:
    from scaleacross.api.files import verified_plan  # late: a plan at hand loads no cost model

    return verified_plan(path)


def _simulated_run(
    plan: Plan, what_if: Sequence[str], fold: bool, progress: Callable[[Progress], None] | None
) -> tuple[StepRun, Problem]:
    problem = problem_of(plan.job, ())
    told = partial(telling(progress), "simulating")
    return simulate_step(plan, problem, disturbance_of(what_if, plan, problem.topology), fold, told), problem
