"""The verb pareto: plans of which none is better in two objectives at once, by epsilon-constraint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Final

from scaleacross.api.arguments import search_arguments
from scaleacross.api.assemble import cost_of
from scaleacross.api.objectives import Limits, value_of
from scaleacross.api.planning import DEFAULT_TIME_LIMIT_S, plan
from scaleacross.api.problems import problem_of
from scaleacross.api.study_store import Store
from scaleacross.api.summarising import token_costs
from scaleacross.api.sweep_points import digest
from scaleacross.errors import InfeasibleError, InputError, TimeLimitError
from scaleacross.solvers.objectives import Measure
from scaleacross.spec.job import OBJECTIVE_NAMES, Job, ObjectiveName
from scaleacross.spec.plan import Plan
from scaleacross.spec.progress import Progress
from scaleacross.spec.summary import TokenCost
from scaleacross.workloads.problem import Problem

SEARCHES_FILE: Final = "searches.jsonl"
SAME: Final = 1e-9
"""Relative difference below which two values are one."""
MAX_POINTS: Final = 1000


@dataclass(frozen=True)
class ParetoPoint:
    """A plan, and its values of both objectives in their order: seconds, or tokens per spending."""

    plan: Plan
    values: tuple[float, float]

    @cached_property
    def costs(self) -> tuple[TokenCost | None, TokenCost | None]:
        """Money and energy of a million tokens; None where the topology states no prices, or no powers."""
        return token_costs(self.plan)


@dataclass(frozen=True)
class Pareto:
    """Points from the best by the first objective to the best by the second; ``notes`` say what was not found in time."""

    objectives: tuple[ObjectiveName, ObjectiveName]
    points: tuple[ParetoPoint, ...]
    notes: tuple[str, ...] = ()


def pareto(
    job: Job | str | Path,
    objectives: Sequence[str],
    *,
    points: int = 8,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    clock: Callable[[], float] = time.perf_counter,
    work_limit: int | None = None,
    seed: int = 0,
    gap_tolerance: float = 0.0,
    overrides: Sequence[str] = (),
    directory: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Pareto:
    """Up to ``points`` plans on the Pareto front of two objectives.

    Both ends are lexicographic optima; between them the second objective is kept to evenly spaced limits ε and the first one
    is optimised. Every plan is verified and carries its own bound (``report.bound_s`` or ``report.objective.bound``), which is
    valid for the space within its limit (``report.limits``). Points that another one dominates are left out, so fewer may
    come back.

    Args:
        objectives: two different ones of ``spec.job.OBJECTIVE_NAMES``; the job's own objective is not used.
        time_limit_s: of every search; there are up to ``points`` + 2.
        clock: what it is measured with; ``time.process_time`` counts CPU seconds.
        work_limit: of every search, in place of any limit in seconds: the same front on every machine.
        directory: where every finished search is kept, one line of ``searches.jsonl`` each; the same front there runs only what
            is missing (same package version). None keeps nothing.

    Raises:
        InputError, InfeasibleError, TimeLimitError: as ``plan``.
    """
    search_arguments(time_limit_s, gap_tolerance=gap_tolerance, seed=seed, work_limit=work_limit)
    first, second = _two(objectives)
    if not 2 <= points <= MAX_POINTS:
        raise InputError(f"{points} points: 2 to {MAX_POINTS} make a front")
    problem = problem_of(job, overrides)
    for name in (first, second):
        Measure.of(problem.topology, name, problem)
    with Store(Path(directory), SEARCHES_FILE) if directory is not None else nullcontext() as store:
        limit = time_limit_s, clock, work_limit
        front = _Front(problem, (first, second), limit, seed, gap_tolerance, progress, store)
        best_first = front.solve(first, {})
        best_second = front.solve(second, {})
        start = front.attempt(second, {first: best_first.values[0]}) or best_first
        end = front.attempt(first, {second: best_second.values[1]}) or best_second
        found = [start, *front.between(start, end, points), end]
    return Pareto((first, second), tuple(_undominated(found, (first, second))), tuple(front.notes))


def _two(objectives: Sequence[str]) -> tuple[ObjectiveName, ObjectiveName]:
    known = [name for name in OBJECTIVE_NAMES if name in objectives]
    unknown = [name for name in objectives if name not in OBJECTIVE_NAMES]
    if unknown or len(objectives) != 2 or len(known) != 2:
        wrong = f"'{unknown[0]}' is none" if unknown else f"{', '.join(objectives) or 'nothing'} was given"
        raise InputError(f"two different objectives are needed, {wrong}; there are {', '.join(OBJECTIVE_NAMES)}")
    return (known[0], known[1]) if known[0] == objectives[0] else (known[1], known[0])


class _Front:
    """The searches of one front."""

    def __init__(
        self,
        problem: Problem,
        objectives: tuple[ObjectiveName, ObjectiveName],
        limit: tuple[float, Callable[[], float], int | None],
        seed: int,
        gap_tolerance: float,
        progress: Callable[[Progress], None] | None,
        store: Store | None,
    ) -> None:
        self.store = store
        self.problem, self.objectives = problem, objectives
        self.limit, self.seed, self.gap_tolerance, self.progress = limit, seed, gap_tolerance, progress
        self.notes: list[str] = []

    def solve(self, objective: ObjectiveName, limits: Limits) -> ParetoPoint:
        """The best plan by one objective within limits of the other; from the store where it stands there."""
        key = self._key(objective, limits)
        kept = self.store.records.get(key) if self.store else None
        if kept is not None:
            return ParetoPoint(Plan.model_validate(kept["plan"]), (kept["values"][0], kept["values"][1]))
        job = self.problem.job.model_copy(update={"objective": objective})
        problem = Problem(job, self.problem.workload, self.problem.topology, self.problem.profile)
        found = plan(
            problem,
            limits=limits,
            time_limit_s=self.limit[0],
            clock=self.limit[1],
            work_limit=self.limit[2],
            seed=self.seed,
            gap_tolerance=self.gap_tolerance,
            progress=self.progress,
            simulated=False,
        )
        cost = cost_of(problem, found.decision)
        first, second = (value_of(problem, name, cost, found.decision) for name in self.objectives)
        if self.store is not None:
            self.store.append({"key": key, "values": [first, second], "plan": found.model_dump(mode="json")})
        return ParetoPoint(found, (first, second))

    def _key(self, objective: ObjectiveName, limits: Limits) -> str:
        """Hash of everything that decides a search."""
        return digest(
            {
                "job": self.problem.job.model_dump(mode="json", exclude={"name", "objective"}),
                "objectives": [objective, *self.objectives],
                "limits": dict(limits),
                "how": [*_counted(*self.limit), self.seed, self.gap_tolerance, version("scaleacross")],
            }
        )

    def attempt(self, objective: ObjectiveName, limits: Limits) -> ParetoPoint | None:
        """``solve``, with a note instead of an error where the time limit, or rounding at the limit, leaves nothing."""
        try:
            return self.solve(objective, limits)
        except (TimeLimitError, InfeasibleError) as error:
            self.notes.append(str(error))
            return None

    def between(self, start: ParetoPoint, end: ParetoPoint, points: int) -> Iterator[ParetoPoint]:
        """Optima of the first objective with the second one kept to evenly spaced limits."""
        here = start
        for index in range(1, points - 1):
            limit = start.values[1] + (end.values[1] - start.values[1]) * index / (points - 1)
            if not _better(self.objectives[1], limit, here.values[1]):
                continue  # the last point keeps to this limit already
            found = self.attempt(self.objectives[0], {self.objectives[1]: limit})
            if found is not None:
                here = found
                yield found


def _counted(limit_s: float, clock: Callable[[], float], work_limit: int | None) -> tuple[float, str]:
    """A limit and what it counts."""
    if work_limit is not None:
        return work_limit, "work"
    return limit_s, "CPU seconds" if clock is time.process_time else "seconds"


def _better(objective: ObjectiveName, value: float, than: float) -> bool:
    """Whether a value is better by more than rounding."""
    return value < than * (1 - SAME) if objective == "step_time" else value > than * (1 + SAME)


def _undominated(
    points: Sequence[ParetoPoint], objectives: tuple[ObjectiveName, ObjectiveName]
) -> Iterator[ParetoPoint]:
    """Points that no other one beats in one objective without losing in the other; one of equal points."""
    for index, point in enumerate(points):
        beaten = any(
            not any(
                _better(name, mine, its) for name, mine, its in zip(objectives, point.values, other.values, strict=True)
            )
            and (
                position < index
                or any(
                    _better(name, its, mine)
                    for name, mine, its in zip(objectives, point.values, other.values, strict=True)
                )
            )
            for position, other in enumerate(points)
            if other is not point
        )
        if not beaten:
            yield point
