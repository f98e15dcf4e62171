"""Simulate the plans of a design space event by event (``simulating``), independently of the cost model.

Every contender's plan is simulated, equal decisions once. A plan that the simulator refuses has no time; the record
says why.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scaleacross.api.design_run import PLAN_NAMES
from scaleacross.api.engines.outcome import FAILED, Record
from scaleacross.api.evaluation import evaluated
from scaleacross.api.problems import problem_of
from scaleacross.api.simulating import simulated_step_s
from scaleacross.errors import ScaleAcrossError
from scaleacross.spec.design_space import OURS
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision

REPLAYED: Final = "replayed"
"""Status of a point whose plans were simulated."""


@dataclass(frozen=True)
class Contest:
    """The decisions of a point to simulate, by contender.

    ``ours_s`` is the estimate and simulated step of ours, in seconds, where its search simulated it.
    """

    job: Job
    decisions: Mapping[str, Decision]
    ours_s: tuple[float, float] | None = None


def contest_of(job: Job, record: Record) -> Contest | None:
    """Return all contenders' decisions on a finished point, ours first; None where there is no plan of ours."""
    chosen = record.get("decisions", {})
    if OURS not in chosen:
        return None
    figures = record["figures"]
    replayed_s = figures.get("replayed_s")
    ours_s = None if replayed_s is None else (figures[f"{OURS}_s"], replayed_s)
    return Contest(job, {name: Decision.model_validate(chosen[name]) for name in PLAN_NAMES if name in chosen}, ours_s)


def replay_contest(contest: Contest) -> Record:
    """Simulate a point's plans: ``NAME_simulated_s`` and ``NAME_priced_s`` (estimate) per contender. Never raises."""
    began, cpu = time.perf_counter(), time.process_time()
    record: Record = {"status": REPLAYED, "reason": "", "figures": {}}
    known: dict[str, tuple[float, float]] = {}
    if contest.ours_s is not None:
        known[_text(contest.decisions[OURS])] = contest.ours_s
    for name, decision in contest.decisions.items():
        text = _text(decision)
        try:
            if text not in known:
                plan = evaluated(problem_of(contest.job, ()), decision, degraded=False)
                known[text] = (plan.cost.step_s, simulated_step_s(plan))
            record["figures"] |= dict(zip((f"{name}_priced_s", f"{name}_simulated_s"), known[text], strict=True))
        except ScaleAcrossError as error:
            record["reason"] += f"{name}: {error} "
        except Exception as error:  # the study goes on without this time
            record |= {"status": FAILED, "reason": f"{name}: {type(error).__name__}: {error}"}
    return record | {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


def _text(decision: Decision) -> str:
    """Return the same text for equal decisions, whether or not they state the spans of a placement."""
    return decision.model_dump_json(exclude={"placement": {"spans"}})
