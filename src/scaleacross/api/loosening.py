"""How far limits on objectives must be loosened so that there is a plan."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import Final

from scaleacross.api.objectives import Limits, goal_of
from scaleacross.cost_models.spending import spending_of
from scaleacross.solvers import quick_space
from scaleacross.solvers.joint import search
from scaleacross.solvers.objectives import goal_placer
from scaleacross.solvers.search_state import Search
from scaleacross.solvers.work_limit import another
from scaleacross.spec.job import ObjectiveName
from scaleacross.workloads.problem import Problem

LOOSEN_LIMIT_S: Final = 10.0
"""Seconds of search for all limits together; less where the search itself had less."""
DIGITS: Final = 4
_FREE: Final[dict[bool, float]] = {True: 1e300, False: 1e-300}
"""Limits that every plan keeps: the objective falls or rises towards better values."""


def how_far(state: Search, limits: Limits) -> str:
    """Return sentences on the best values within the other limits, or alone, for limits that no plan keeps."""
    within = [_best(state, name, limits, len(limits)) for name in limits]
    if found := [text for text in within if text]:
        others = ", the other limits as they are" if len(limits) > 1 else ""
        return f"The {' or the '.join(found)}{others}: loosen {'one of them' if len(found) > 1 else 'it'} to that"
    alone = [_best(state, name, {name: limits[name]}, len(limits)) for name in limits] if len(limits) > 1 else []
    if found := [text for text in alone if text]:
        return f"Without the other limits, the {', the '.join(found)}: loosen more than one limit"
    return "Loosen the limit"


def _best(state: Search, name: ObjectiveName, limits: Limits, parts: int) -> str:
    """Return the best value of an objective within all other ``limits``, and its bound; empty where none was found."""
    falls = name == "step_time"
    problem = replace(state.problem, job=state.problem.job.model_copy(update={"objective": name}))
    goal = goal_of(problem, {**limits, name: _FREE[falls]})
    if goal is None:
        return ""
    placer_on, work = partial(goal_placer, goal), another(state.clock)
    found = search(
        problem,
        time_limit_s=min(LOOSEN_LIMIT_S / parts, state.time_limit_s) if work is None else state.time_limit_s,
        seed=state.seed,
        report=lambda one: state.tell(f"loosening {name}: {one.stage}", one.done, one.total),
        placer_on=partial(placer_on, problem),
        probed=(partial(quick_space.probe, placer_on=placer_on),),
        stopped=state.stopped,
        clock=work or time.perf_counter,
    )
    if found.best is None:
        return ""
    value, bound = (_value(problem, goal.measure.spent(score), name) for score in (found.best.step_s, found.bound_s))
    extreme, beyond = ("least", "less") if falls else ("largest", "more")
    proved = f"no plan has {beyond} than {_rounded(bound, not falls)}" if found.bound_s > 0 else "a bound is not known"
    return f"{extreme} {name} found is {_rounded(value, falls)} ({proved})"


def _value(problem: Problem, spent: float, name: ObjectiveName) -> float:
    """Return the objective's value for ``spent`` seconds, joules or currency units a step."""
    if name == "step_time":
        return spent
    tokens = problem.job.tokens_per_step
    return tokens / spent if name == "useful_tokens_per_s" else spending_of(problem.topology, name).value(tokens, spent)


def _rounded(value: float, up: bool) -> str:
    """Return ``value`` with DIGITS digits, rounded to the side on which a limit of that value is kept."""
    step = 10.0 ** (math.floor(math.log10(value)) + 1 - DIGITS)
    whole = (math.ceil if up else math.floor)(value / step)
    return f"{whole * step:.{DIGITS}g}"
