"""Run one point of a design space: the plan of every contender, ours among them, and its estimated step time.

Contenders are ``ours``, every baseline, and the ablations of ``production`` (``ablation``). Our search starts from the
decisions of all others, so its best estimate is never above theirs. Where a simulation chose among finalists, that
estimate is ``best_price_s``. ``matched`` names the contender with the same plan as ours apart from the network. Limits
are CPU seconds, so that the figures do not depend on other load on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from scaleacross.api.ablation import ABLATIONS, SearchLimit, ablate
from scaleacross.api.assemble import cost_of
from scaleacross.api.comparison import baseline_results, comparison_of, same_plan
from scaleacross.api.engines.outcome import FAILED, Record
from scaleacross.api.planning import plan
from scaleacross.api.problems import problem_of
from scaleacross.api.sweep_points import digest, figures_of, refusal
from scaleacross.catalogue import DesignPoint
from scaleacross.errors import ScaleAcrossError
from scaleacross.solvers.baselines import BASELINES
from scaleacross.solvers.work_limit import WorkClock
from scaleacross.spec.design_space import OURS, DesignSpace
from scaleacross.spec.plan import Decision
from scaleacross.workloads.problem import Problem

BASELINE_NAMES: Final = tuple(BASELINES)
PLAN_NAMES: Final = (OURS, *BASELINE_NAMES, *ABLATIONS)


def design_key(space: DesignSpace, point: DesignPoint, version: str) -> str:
    """Return the hash of everything that decides the figures: resolved job, limits, package version."""
    how = {
        "command": space.command,
        "version": version,
        "limits": [space.time_limit_s, space.rival_time_limit_s, space.gap_tolerance, space.tie_tolerance, space.seed],
        **({"work_limit": space.work_limit} if space.work_limit else {}),
        "finalists": space.finalists,
        "contenders": PLAN_NAMES,
        "job": point.job.model_dump(mode="json", exclude={"name"}),
    }
    return digest(how)


def run_design_point(space: DesignSpace, point: DesignPoint) -> Record:
    """Return ``status``, ``reason``, ``seconds``, ``cpu_s``, ``figures`` and the ``decisions`` of all contenders.

    No point makes it raise.
    """
    began, cpu = time.perf_counter(), time.process_time()
    record: Record = {"status": FAILED, "reason": "", "figures": {}, "decisions": {}}
    try:
        record |= _contend(space, problem_of(point.job, ()))
    except ScaleAcrossError as error:
        record |= refusal(error)
    except Exception as error:  # a study of hundreds of points must outlive one that meets a bug
        record["reason"] = " ".join(f"{type(error).__name__}: {error}".split())
    return record | {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


def _contend(space: DesignSpace, problem: Problem) -> Record:
    work = space.work_limit
    limit, clock = (space.rival_time_limit_s, time.process_time) if work is None else (float(work), WorkClock())
    results = baseline_results(problem, limit, clock=clock)
    decisions = {result.name: result.decision for result in results if result.decision is not None}
    decisions |= ablate(problem, decisions, SearchLimit(space.rival_time_limit_s, work), space.gap_tolerance)
    ours = plan(
        problem.job,
        time_limit_s=space.time_limit_s,
        seed=space.seed,
        gap_tolerance=space.gap_tolerance,
        # their networks are dropped, because our search chooses one for each
        incumbents=[decision.model_copy(update={"network": None}) for decision in decisions.values()],
        alternatives=False,
        referee=space.finalists,
        clock=time.process_time,
        work_limit=work,
        simulated=False,
    )
    compared = comparison_of(problem, ours, results, space.tie_tolerance)
    figures = {**figures_of(ours), "across": "+".join(compared.across)}
    if ours.report.finalists:
        figures |= {"finalists": len(ours.report.finalists), "replayed_s": ours.report.finalists[0].replayed_s}
        figures |= {"best_price_s": min(one.price_s for one in ours.report.finalists)}
    figures["matched"] = next((name for name, decision in decisions.items() if same_plan(decision, ours)), None)
    for result in results:
        figures |= {f"{result.name}_across": "+".join(result.across), f"{result.name}_complete": result.complete}
        figures |= {f"{result.name}_reason": result.reason} if result.reason else {}
    decisions[OURS] = ours.decision
    figures |= {f"{name}_s": step_s for name, step_s in _step_s(problem, decisions).items()}
    chosen = {name: decision.model_dump(mode="json") for name, decision in decisions.items()}
    return {"status": ours.report.status, "figures": figures, "decisions": chosen}


def _step_s(problem: Problem, decisions: Mapping[str, Decision]) -> dict[str, float]:
    """Return the estimated step time of every decision in seconds, all by the same cost model."""
    return {name: cost_of(problem, decision).cost.step_s for name, decision in decisions.items()}
