"""The verb pareto: plans on the Pareto front of two objectives, found by the epsilon-constraint method."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Final

from scaleacross.api.arguments import search_arguments, whole_numbers
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
"""Relative difference up to which two values are equal."""
MAX_POINTS: Final = 1000


@dataclass(frozen=True)
class ParetoPoint:
    """A plan with its values of both objectives, in order: seconds for step_time, else tokens per unit spent."""

    plan: Plan
    values: tuple[float, float]

    @cached_property
    def costs(self) -> tuple[TokenCost | None, TokenCost | None]:
        """Money and energy per million tokens; None where the topology states no prices, or no powers."""
        return token_costs(self.plan)


@dataclass(frozen=True)
class Pareto:
    """Points from the best by the first objective to the best by the second.

    ``notes`` state what was not found in time.
    """

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
    """Return up to ``points`` plans on the Pareto front of two objectives.

    Both ends are lexicographic optima. Between them the second objective is limited to evenly spaced values ε, and the
    first is optimised. Every plan is verified and carries its own bound (``report.bound_s`` or
    ``report.objective.bound``), which is valid for the space within its limit (``report.limits``). Dominated points are
    left out, so fewer than ``points`` may be returned. Values are those of estimates; nothing is simulated.

    Args:
        job: a Job, a path, or the name of a job of the catalogue.
        objectives: two different names of ``spec.job.OBJECTIVE_NAMES``; the job's own objective is not used.
        points: 2 to ``MAX_POINTS``.
        time_limit_s: seconds of each search; there are up to ``points`` + 2 searches.
        clock: clock of the limit; ``time.process_time`` counts CPU seconds.
        work_limit: step times that each search may compute, in place of any limit in seconds. The front is then the
            same on every machine.
        seed: seed of the solver.
        gap_tolerance: relative gap at which a search stops.
        overrides: ``a.b.c=value`` on any field of the job.
        directory: where every finished search is kept as a line of ``searches.jsonl``. A later call with the same
            package version runs only what is missing. None keeps nothing.
        progress: called during the searches.

    Raises:
        InputError, InfeasibleError, TimeLimitError: as ``plan``.
    """
    search_arguments(time_limit_s, gap_tolerance=gap_tolerance, seed=seed, work_limit=work_limit)
    first, second = _two(objectives)
    whole_numbers(points=points)
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
    """The searches of one front, with their common settings, notes and store."""

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
        """Return the best plan by one objective within limits of the other.

        A search already in the store is not repeated.
        """
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
        """Return the hash of everything that decides a search."""
        return digest(
            {
                "job": self.problem.job.model_dump(mode="json", exclude={"name", "objective"}),
                "objectives": [objective, *self.objectives],
                "limits": dict(limits),
                "how": [*_counted(*self.limit), self.seed, self.gap_tolerance, version("scaleacross")],
            }
        )

    def attempt(self, objective: ObjectiveName, limits: Limits) -> ParetoPoint | None:
        """Call ``solve``; where the time limit or rounding at the limit leaves no plan, add a note and return None."""
        try:
            return self.solve(objective, limits)
        except (TimeLimitError, InfeasibleError) as error:
            self.notes.append(str(error))
            return None

    def between(self, start: ParetoPoint, end: ParetoPoint, points: int) -> Iterator[ParetoPoint]:
        """Yield optima of the first objective with the second one kept to evenly spaced limits."""
        here = start
        for index in range(1, points - 1):
            # evenly spaced between the second objective's values at both ends
            limit = start.values[1] + (end.values[1] - start.values[1]) * index / (points - 1)
            if not _better(self.objectives[1], limit, here.values[1]):
                continue  # the last point keeps to this limit already
            found = self.attempt(self.objectives[0], {self.objectives[1]: limit})
            if found is not None:
                here = found
                yield found


def _counted(limit_s: float, clock: Callable[[], float], work_limit: int | None) -> tuple[float, str]:
    """Return a limit and the name of its unit."""
    if work_limit is not None:
        return work_limit, "work"
    return limit_s, "CPU seconds" if clock is time.process_time else "seconds"


def _better(objective: ObjectiveName, value: float, than: float) -> bool:
    """Return whether ``value`` is better than ``than`` by more than rounding; a step time is better when it is lower."""
    return value < than * (1 - SAME) if objective == "step_time" else value > than * (1 + SAME)


def _undominated(
    points: Sequence[ParetoPoint], objectives: tuple[ObjectiveName, ObjectiveName]
) -> Iterator[ParetoPoint]:
    """Yield points that no other point dominates; of equal points only the first."""
    for index, point in enumerate(points):
        beaten = any(
            not any(
                _better(name, mine, its) for name, mine, its in zip(objectives, point.values, other.values, strict=True)
            )
            and (
                # an equal point that comes earlier dominates this one, so exactly one of them stays
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
