"""One point of a study: its key, how it runs, and the figures kept of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from scaleacross.api.engines.outcome import FAILED, Record
from scaleacross.api.evaluation import evaluate
from scaleacross.api.planning import plan
from scaleacross.api.recommendation import plan_recommendation
from scaleacross.api.summarising import token_costs
from scaleacross.catalogue import Point
from scaleacross.errors import InfeasibleError, InputError, TimeLimitError
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.plan import COMPONENTS, Plan
from scaleacross.spec.recommendation import KERNELS, SHARDINGS, TIERS, RecommendationJob, RecommendationPlan
from scaleacross.spec.study import Study
from scaleacross.spec.summary import cost_columns

REFUSALS: Final[Mapping[type[Exception], str]] = {
    InputError: "refused",
    InfeasibleError: "infeasible",
    TimeLimitError: "no_plan_in_time",
}
WORDS: Final = ("provenance", "description")
"""Keys that change no figure: two points that differ only in these are one point."""
DIGITS: Final = 12
"""Significant digits of a float in the key, so that 25 µs and 0.000025 s are the same."""


def key_of(study: Study, point: Point, version: str) -> str:
    """Return the hash of everything that decides the figures: job, decision, command, limits, package version."""
    how: dict[str, Any] = {"command": study.command, "version": version}
    if study.command == "plan":
        how |= {name: getattr(study, name) for name in ("time_limit_s", "work_limit", "gap_tolerance", "seed")}
    if point.job is None:
        how |= {"base": point.base, "fields": dict(point.fields)}
    else:
        how["job"] = point.job.model_dump(mode="json", exclude={"name"})
        how["decision"] = point.decision.model_dump(mode="json") if point.decision else None
    return digest(how)


def digest(how: Mapping[str, Any]) -> str:
    """Return a hash of everything that decides a result; ``WORDS`` are left out."""
    text = json.dumps(_canonical(how), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items() if key not in WORDS}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def run_point(study: Study, point: Point) -> Record:
    """Run a point and return ``status``, ``reason``, ``seconds``, ``figures`` and ``decision``.

    No point makes it raise.
    """
    began = time.perf_counter()
    record: Record = {"status": FAILED, "reason": "", "figures": {}, "decision": None}
    try:
        found = _run(study, point)
        searched = {"found_by": "search"} if study.command == "plan" and isinstance(found, Plan) else {}
        record |= {"status": found.report.status, "figures": figures_of(found) | searched}
        record["decision"] = found.decision.model_dump(mode="json")
    except tuple(REFUSALS) as error:
        record |= refusal(error)
    except Exception as error:  # a study of a thousand points must outlive one that meets a bug
        record["reason"] = " ".join(f"{type(error).__name__}: {error}".split())
    return record | {"seconds": time.perf_counter() - began}


def refusal(error: Exception) -> Record:
    """Return the status and reason of a point without a plan; an error outside ``REFUSALS`` is a failure."""
    return {"status": REFUSALS.get(type(error), FAILED), "reason": str(error)}


def _run(study: Study, point: Point) -> Plan | RecommendationPlan:
    if point.job is None:
        raise InputError(point.refusal)
    if isinstance(point.job, RecommendationJob):
        return plan_recommendation(
            point.job, time_limit_s=study.time_limit_s, seed=study.seed, gap_tolerance=study.gap_tolerance
        )
    if point.decision is not None:
        return evaluate((point.job, point.decision))
    limits: dict[str, Any] = {"time_limit_s": study.time_limit_s, "work_limit": study.work_limit}
    return plan(point.job, seed=study.seed, gap_tolerance=study.gap_tolerance, alternatives=False, **limits)


def figures_of(found: Plan | RecommendationPlan) -> dict[str, Any]:
    """Return a plan as one flat row: its decision, its step time and costs, its bound and gap."""
    if isinstance(found, RecommendationPlan):
        return _table_figures(found)
    decision, cost, report = found.decision, found.cost, found.report
    fullest = max(found.memory, key=lambda stage: stage.total_bytes / stage.capacity_bytes)
    spans = found.placement.spans
    farthest = max(spans.values(), key=LINK_LEVELS.index, default="")
    crossing = "+".join(axis for axis, level in spans.items() if level == farthest)
    return {
        "step_s": cost.step_s,
        "step_of": "estimate" if found.simulated_s is None else "simulation",
        "estimate_s": found.estimated.step_s,
        "bound_s": report.bound_s,
        "gap": report.gap,
        "tokens_per_s": cost.tokens_per_s,
        "mfu": cost.mfu,
        **{f"{name}_s": cost.component(name) for name in COMPONENTS},
        "accelerators": decision.degrees.world_size,
        **decision.degrees.model_dump(),
        "schedule": decision.pipeline.schedule,
        "chunks": decision.pipeline.num_chunks,
        "micro_batch": decision.pipeline.micro_batch_sequences,
        "micro_batches": found.num_micro_batches,
        "recompute": decision.recompute,
        "shard": decision.shard,
        "context_exchange": decision.context_exchange if decision.degrees.cp > 1 else "",
        "axis_order": " ".join(found.placement.axis_order),
        "fill": " ".join(f"{share.building}:{share.num_accelerators}" for share in found.placement.fill),
        "crossing": f"{farthest}:{crossing}" if farthest else "",
        "memory_fraction": fullest.total_bytes / fullest.capacity_bytes,
        **cost_columns(*token_costs(found)),
    }


def _table_figures(found: RecommendationPlan) -> dict[str, Any]:
    decision, cost, busiest = found.decision, found.cost, max(found.ranks, key=lambda load: load.seconds)
    full = {
        tier: max(load.memory_bytes[tier] / load.capacity_bytes[tier] for load in found.ranks)
        for tier in TIERS
        if all(load.capacity_bytes[tier] for load in found.ranks)
    }
    kinds = Counter(one.sharding for one in decision.tables), Counter(one.kernel for one in decision.tables)
    return {
        "step_s": cost.step_s,
        "step_of": "estimate",
        "estimate_s": cost.step_s,
        "busiest_rank_s": cost.busiest_rank_s,
        "busiest_rank_bound_s": found.report.bound_s,
        "gap": found.report.gap,
        "samples_per_s": cost.samples_per_s,
        "lookup_s": busiest.lookup_s,
        "exchange_s": busiest.exchange_s,
        "sync_s": busiest.sync_s,
        "dense_s": cost.dense_s,
        "all_reduce_s": cost.all_reduce_s,
        "accelerators": len(found.ranks) * decision.num_groups,
        "replica_groups": decision.num_groups,
        "replicas": decision.replicas if decision.num_groups > 1 else "",
        **{name: kinds[0][name] for name in SHARDINGS},
        **{name: kinds[1][name] for name in KERNELS},
        "coded_tables": len(decision.codecs),
        **{f"{tier}_fraction": share for tier, share in full.items()},
    }
