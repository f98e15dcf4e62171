"""Let points of a study try their neighbours' decisions, because a search cut off by a limit may miss what a neighbour
found.

Neighbours have the same base and differ by one step in one varied field. A point takes its neighbours' decisions that
it may run and that fit, with networks chosen anew. The two with the least estimates are simulated; the fastest becomes
the point's plan if it is faster than its own. So curves over a study do not jump for want of search. A point's bound
stays that of its own search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleacross.api.engines import Engine, run_points
from scaleacross.api.engines.outcome import FAILED, Record, failed
from scaleacross.api.evaluation import evaluated, runs
from scaleacross.api.problems import problem_of
from scaleacross.api.stated import stated
from scaleacross.api.study_store import Store
from scaleacross.api.sweep_points import digest, figures_of
from scaleacross.catalogue import Point
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision, Plan
from scaleacross.spec.progress import Progress, telling
from scaleacross.spec.study import Study

SIMULATED: Final = 2
LIMITED: Final = "time_limit"
TIMED_OUT: Final = "no_plan_in_time"


class Attempt(NamedTuple):
    """A point, its record, and the decisions of its neighbours without networks."""

    point: Point
    record: Record
    decisions: Sequence[Record]


def neighbours(study: Study) -> list[list[int]]:
    """Return, for every point of a study, the indices of its neighbours, in the order of ``catalogue.points_of``."""
    varied = [*study.grid.values(), *(next(iter(group.values())) for group in study.zipped)]
    shape = len(study.base), *map(len, varied)
    number = np.arange(study.num_points).reshape(shape)
    out: list[list[int]] = [[] for _ in range(study.num_points)]
    for axis in range(1, len(shape)):
        # indices of all points but the last, and of all but the first, along this axis: pairs of adjacent points
        one, other = (np.take(number, range(*ends), axis).ravel() for ends in ((shape[axis] - 1,), (1, shape[axis])))
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            out[a].append(b)
            out[b].append(a)
    return out


def try_neighbours(
    study: Study,
    points: Sequence[Point],
    keys: Sequence[str],
    records: dict[str, Record],
    where: Engine,
    store: Store | None,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Let all points try what their neighbours found, until none gains. Better records replace those in ``records``.

    Args:
        study: the study.
        points: its points, in order.
        keys: key of every point.
        records: record of every key; updated in place.
        where: engine that runs the attempts.
        store: where better records are appended; None keeps nothing.
        progress: called after every attempt.
    """
    near, first = neighbours(study), {key: index for index, key in reversed(list(enumerate(keys)))}
    tell, gained = telling(progress), True
    while gained:  # a plan goes on along a line as long as it is faster
        attempts = {}
        for key, index in first.items():
            own, decisions = records[key], _bare_decisions(records[keys[one]] for one in near[index])
            decisions = [each for each in decisions if each not in _bare_decisions([own])]
            tried = digest({"decisions": sorted(map(digest, decisions))})
            if decisions and _may_gain(points[index], own) and own.get("tried") != tried:
                attempts[key] = tried, Attempt(points[index], own, decisions)
        gained = _run(attempts, records, where, store, tell)


def _bare_decisions(records: Iterable[Record]) -> list[Record]:
    """Return the distinct decisions of records, without networks; these are chosen for each point's own links."""
    decided = [{**one["decision"], "network": None} for one in records if one.get("decision")]
    return [one for at, one in enumerate(decided) if one not in decided[:at]]


def _run(
    attempts: Mapping[str, tuple[str, Attempt]],
    records: dict[str, Record],
    where: Engine,
    store: Store | None,
    tell: Callable[[str, int, int | None], None],
) -> bool:
    """Run the attempts; return whether any point gained."""
    keys, done, gained = list(attempts), 0, False

    def on_done(index: int, outcome: Record) -> None:
        nonlocal done, gained
        key, done = keys[index], done + 1
        if (
            outcome.get("status") != FAILED
        ):  # whose worker died keeps what it has, and tries again with the same command
            gained = gained or "decision" in outcome
            records[key] = {**records[key], **outcome, "tried": attempts[key][0]}
            if store:
                store.append(records[key])
        tell("neighbours", done, len(keys))

    run_points(attempt_outcome, [attempt for _, attempt in attempts.values()], where, on_done)
    return gained


def _may_gain(point: Point, record: Record) -> bool:
    """Return whether a limit ended a point's search for the least step time."""
    searched = isinstance(point.job, Job) and point.decision is None and point.job.objective == "step_time"
    return searched and record["status"] in (LIMITED, TIMED_OUT)


def attempt_outcome(attempt: Attempt) -> Record:
    """Return what changes in a point's record: nothing, or status, figures and decision. Never raises."""
    try:
        return _outcome(attempt)
    except (InputError, InfeasibleError):
        return {}
    except Exception as error:  # the point has its own plan
        return failed(f"{type(error).__name__}: {error}")


def _outcome(attempt: Attempt) -> Record:
    if not isinstance(attempt.point.job, Job):
        raise ValueError("only points with a job try others' decisions")
    problem, own = problem_of(attempt.point.job, ()), attempt.record["figures"]
    limit_s = own.get("step_s", np.inf)
    decisions = (Decision.model_validate(stated_there) for stated_there in attempt.decisions)
    found = [with_network(problem, decision) for decision in decisions if runs(problem, decision)]
    best: Plan | None = None
    for networked in sorted(found, key=lambda one: one.cost.cost.step_s)[:SIMULATED]:
        if networked.cost.cost.step_s >= limit_s:
            break
        plan = stated(evaluated(problem, networked.decision), problem)
        if plan.cost.step_s < limit_s:
            best, limit_s = plan, plan.cost.step_s
    return {} if best is None else _changed(attempt.record, best)


def _changed(record: Record, plan: Plan) -> Record:
    """Return the changes of a point's record when it takes over a neighbour's plan; its own bound is kept."""
    figures = figures_of(plan) | {"found_by": "neighbour"}
    bound_s = record["figures"].get("bound_s", figures["bound_s"])
    figures |= {"bound_s": bound_s, "gap": max(0.0, 1 - bound_s / figures["estimate_s"])}
    decision = plan.decision.model_dump(mode="json")
    return {"status": LIMITED, "reason": "", "figures": figures, "decision": decision}
