"""Checks of a plan's figures about failures, with units and hosts counted rank by rank.

V8   no zone (building) holds more data-parallel replicas than the job allows to lose
V11  the goodput recomputes, and failures of hosts hit as many fault units as ranks of different units share hosts
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

from scaleacross.cost_models.failures import degraded_states
from scaleacross.cost_models.goodput import goodput_of
from scaleacross.spec.goodput import Goodput
from scaleacross.spec.placement import coordinates, devices
from scaleacross.spec.plan import Decision, DegradedState, Plan
from scaleacross.spec.topology import Topology
from scaleacross.workloads.problem import Problem


def v8_failures(problem: Problem, decision: Decision) -> Iterator[str]:
    """Yield zones or buildings (the job's failure domains) that hold too many replicas of a placed decision."""
    wanted = problem.job.failure_domains
    if wanted is None:
        return
    for (building, zone), replicas in replicas_by_unit(problem.topology, decision, wanted.level).items():
        if len(replicas) > wanted.max_replicas_lost:
            where = f"zone {zone} of '{building}'" if wanted.level == "zone" else f"building '{building}'"
            yield f"V8: {len(replicas)} replicas lose a stage with {where}, at most {wanted.max_replicas_lost} may"


def replicas_by_unit(topology: Topology, decision: Decision, level: str) -> dict[tuple[str, int], set[int]]:
    """Return (building, zone) -> data-parallel replicas with an accelerator there; zone 0 for whole buildings."""
    degrees, out = decision.degrees, defaultdict(set)
    if decision.placement is not None:
        for global_rank, device in enumerate(devices(topology, decision.placement)):
            at = coordinates(degrees, decision.placement.axis_order, global_rank)
            unit = (device.building, device.zone if level == "zone" else 0)
            out[unit].add(at["dp_replicate"] * degrees.dp_shard + at["dp_shard"])
    return out


def v11_goodput(problem: Problem, plan: Plan, step_s: float, tolerance: float) -> Iterator[str]:
    """Yield what is wrong with the stated goodput; nothing if the plan states none. ``tolerance`` is relative."""
    stated = plan.goodput
    if stated is None:
        return
    found = goodput_of(problem, plan.decision, step_s)
    older = stated.model.spares is not None and stated.model.num_hosts is None
    if older and not math.isclose(stated.goodput_fraction, found.goodput_fraction, rel_tol=tolerance):
        yield (
            f"V11: a plan of an older version, whose goodput of {stated.goodput_fraction:.1%} counts one fault unit at most that "
            f"waits for a repaired host; with {stated.model.spares} spare hosts it is {found.goodput_fraction:.1%}: plan again, "
            "or `scaleacross evaluate PLAN.json -o DIR` for the same decision"
        )
        return
    for where in ("goodput_fraction", "useful_tokens_per_s"):
        left, right = getattr(stated, where), getattr(found, where)
        if not math.isclose(left, right, rel_tol=tolerance):
            yield f"V11: {where} is stated as {left}, recomputes as {right}"
    yield from _host_strikes(problem, plan.decision, stated, tolerance)


def _host_strikes(problem: Problem, decision: Decision, stated: Goodput, tolerance: float) -> Iterator[str]:
    """Yield wrong shares of host failures by the number of fault units hit, with hosts counted rank by rank."""
    on_host = defaultdict(set)
    placement = decision.placement
    if placement is None or stated.policy != "shrink":
        return
    for global_rank, device in enumerate(devices(problem.topology, placement)):
        at = coordinates(decision.degrees, placement.axis_order, global_rank)
        on_host[device.building, device.host].add(at["dp_replicate"])
    counted = Counter(len(units) for units in on_host.values())
    rates: Counter[int] = Counter()
    for strike in stated.model.strikes:
        if strike.cause == "host":
            rates[strike.units_hit] += strike.rate_per_s  # type: ignore[assignment]
    total = sum(rates.values())
    for hit in {*counted, *rates} if total else ():
        left, right = rates[hit] / total, counted[hit] / len(on_host)
        if not math.isclose(left, right, rel_tol=tolerance):
            yield f"V11: {left:.6g} of the host failures hit {hit} fault units, counted {right:.6g}"


def recomputed_states(problem: Problem, plan: Plan) -> tuple[DegradedState, ...]:
    """Recompute the degraded states of a plan; those of an older version counted other failures and are kept."""
    if not any(state.what == "one host" for state in plan.degraded):
        return plan.degraded
    return degraded_states(problem.job, problem.profile, problem.topology, plan.decision)
