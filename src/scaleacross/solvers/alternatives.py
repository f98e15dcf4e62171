"""What else was on the table, and why it lost: the question behind "why does pp cross the buildings?".

For the winner's degrees every other axis is made the slowest one (C5 of ``place_parallelism``), so that it is the one
that crosses; every choice (schedule, chunks, recompute, shard level, micro-batch) is changed alone; the best other
degrees come from what the search placed; and the job is tried in its largest building alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import concatenate
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.errors import InfeasibleError
from scaleacross.solvers.infeasible import closest_candidate
from scaleacross.solvers.joint import search
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.solvers.placed_networks import PlacedNetworks
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Placed, Search, decision_of, forget
from scaleacross.solvers.work_limit import another
from scaleacross.spec.job import DegreeRequest
from scaleacross.spec.offloading import MILLIONTHS
from scaleacross.spec.parallelism import CONTEXT_EXCHANGES, GRID_AXES, SCHEDULE_NAMES, SHARD_LEVELS
from scaleacross.spec.plan import COMPONENTS, Alternative
from scaleacross.spec.recomputation import RECOMPUTES
from scaleacross.spec.topology import Region, Topology
from scaleacross.units import human_seconds
from scaleacross.workloads.problem import Problem

MAX_ALTERNATIVES: Final = 6
ONE_BUILDING_LIMIT_S: Final = 10.0
ONE_BUILDING_GAP: Final = 0.02
MANY_CANDIDATES: Final = 10_000_000
"""A search that saw more than these is not run a second time for one building."""
WORTH_NAMING: Final = 0.002
"""Component differences below this share of the step are not listed."""

COMPONENT_NAMES: Final = {
    "compute": "computation",
    "bubble": "pipeline bubble",
    "tp": "exposed tensor-parallel collectives",
    "cp": "exposed key/value exchange",
    "ep": "expert all-to-all",
    "pp": "exposed pipeline messages",
    "dp": "exposed gradient and parameter traffic",
    "optimizer": "optimizer",
}
CARRIERS: Final = {"tp": ("tp",), "cp": ("cp",), "ep": ("ep",), "pp": ("pp",), "dp": ("dp_replicate", "dp_shard")}
CHOICES: Final = {
    "schedule": ("schedule", "num_chunks"),
    "recompute": (),
    "shard": (),
    "micro_batch": ("num_micro_batches",),
    "context": (),
    "activation_offload": (),
    "optimizer_offload": (),
}


def alternatives(state: Search, best: Placed, won: PlanCost, networks: PlacedNetworks) -> tuple[Alternative, ...]:
    """The best alternative of every kind by estimate, fastest first; each with the network that is best for it. None is looked
    for once the limit has passed.

    Args:
        won: price of the best plan with its network.
        networks: remembers those of alternatives.
    """
    kinds: dict[str, Alternative] = {}
    for label, placed in chain(_other_axes(state, best), _other_degrees(state, best), _other_choices(state, best)):
        if state.past_limit:
            break
        try:
            found = networks.of(placed)
        except InfeasibleError:
            continue  # no network of it keeps to the budgets
        lost, why = found.cost, why_slower(won, found.cost)
        alternative = Alternative(label=label, decision=found.decision, step_s=lost.cost.step_s, reason=why)
        if label not in kinds or lost.cost.step_s < (kinds[label].step_s or np.inf):
            kinds[label] = alternative
    alone = _one_building(state, best, won)
    every = [*kinds.values(), *([alone] if alone else [])]
    return tuple(sorted(every, key=lambda a: np.inf if a.step_s is None else a.step_s)[:MAX_ALTERNATIVES])


def why_slower(won: PlanCost, lost: PlanCost) -> str:
    """Component by component what the loser pays (+) and saves (−), largest first, naming what crosses which level."""
    step = won.cost.step_s
    changes = {name: lost.cost.component(name) - won.cost.component(name) for name in COMPONENTS}
    named = sorted(
        (name for name in COMPONENTS if abs(changes[name]) > WORTH_NAMING * step), key=lambda n: -abs(changes[n])
    )
    if not named:
        return f"a tie: {human_seconds(lost.cost.step_s - step)} apart"
    return "; ".join(
        f"{'+' if changes[name] > 0 else '−'}{human_seconds(abs(changes[name]))} "
        f"{COMPONENT_NAMES[name]}{_where(lost, name)}"
        for name in named
    )


def _where(cost: PlanCost, component: str) -> str:
    spans = [
        f"{axis} crosses {cost.placement.spans[axis]}"
        for axis in CARRIERS.get(component, ())
        if axis in cost.placement.spans
    ]
    return f" ({', '.join(spans)})" if spans else ""


def _other_axes(state: Search, best: Placed) -> Iterator[tuple[str, Placed]]:
    if len(best.placement.fill) < 2:
        return
    for axis in GRID_AXES:
        if axis != best.placement.axis_order[-1] and int(getattr(best.candidates, axis)[0]) > 1:
            placed = state.place(best.priced, 0, best.placer, slowest_axis=axis, in_time=True, left=forget)
            if placed is not None:
                yield f"{axis} across the buildings", placed


def _other_degrees(state: Search, best: Placed) -> Iterator[tuple[str, Placed]]:
    degrees = best.candidates.decision(0).degrees
    for placed in sorted(state.pool, key=lambda placed: placed.step_s):
        if placed.candidates.decision(0).degrees != degrees:
            yield f"other degrees: {placed.candidates.decision(0).degrees}", placed
            return


def _other_choices(state: Search, best: Placed) -> Iterator[tuple[str, Placed]]:
    """The winner's degrees with one choice changed: per kind of choice the candidate with the least estimate."""
    if state.past_limit:
        return
    pinned = DegreeRequest(**best.candidates.decision(0).degrees.model_dump())
    job = state.problem.job.model_copy(update={"degrees": pinned})
    fleet, pricing = best.placer.fleet, best.placer.pricing
    space = SearchSpace(job, state.problem.profile, fleet.num_accelerators, fleet.unit)
    rows = concatenate(list(space.batches(Refusals())))
    rows = rows.take(pricing.needed_bytes(rows) <= pricing.capacity_bytes)
    for choice, companions in CHOICES.items():
        same = np.ones(len(rows), dtype=bool)
        for column in dict.fromkeys(name for one, others in CHOICES.items() for name in (one, *others)):
            if column != choice and column not in companions:
                same &= getattr(rows, column) == getattr(best.candidates, column)[0]
        same &= getattr(rows, choice) != getattr(best.candidates, choice)[0]
        if same.any() and not state.past_limit:
            priced = pricing.tight(pricing.coarse(rows.take(same)))
            row = int(priced.estimate_s.argmin())
            placed = state.place(priced, row, best.placer.unlimited(), in_time=True, left=forget)
            if placed is not None:
                yield _choice_label(choice, placed), placed


def _choice_label(choice: str, placed: Placed) -> str:
    code = int(getattr(placed.candidates, choice)[0])
    if choice == "schedule":
        chunks = int(placed.candidates.num_chunks[0])
        return f"schedule {SCHEDULE_NAMES[code]}" + (f" with {chunks} chunks" if chunks > 1 else "")
    if choice == "recompute":
        return f"recompute {RECOMPUTES[code]}"
    if choice.endswith("offload"):
        return f"{choice.replace('_', ' ')} of {code / MILLIONTHS:g}"
    if choice == "context":
        return f"context exchange {CONTEXT_EXCHANGES[code]}"
    return f"shard {SHARD_LEVELS[code]}" if choice == "shard" else f"micro-batch of {code}"


def _one_building(state: Search, best: Placed, won: PlanCost) -> Alternative | None:
    """The job in its largest building alone; None where that takes too long to find out (``MANY_CANDIDATES``, the time limit)."""
    if len(best.placement.fill) < 2 or state.num_candidates > MANY_CANDIDATES or state.past_limit:
        return None
    topology = state.problem.topology
    largest = max(topology.buildings, key=lambda building: building.num_accelerators)
    region = Region(name=topology.region_of(largest.name), buildings=(largest,))
    alone = Topology(name=topology.name, regions=(region,), provenance=topology.provenance)
    problem = Problem(state.problem.job, state.problem.workload, alone, state.problem.profile)
    limit, clock = state.time_limit_s, another(state.clock)
    if clock is None:
        limit, clock = min(ONE_BUILDING_LIMIT_S, limit - state.elapsed_s), state.clock
    found = search(
        problem,
        time_limit_s=limit,
        seed=state.seed,
        gap_tolerance=ONE_BUILDING_GAP,
        clock=clock,
        stopped=state.stopped,
    )
    label = f"{largest.name} alone"
    if found.best is None and found.out_of_time:
        return None
    if found.best is None:
        decision = decision_of(best)
        closest = closest_candidate(problem)
        reason = "no legal candidate" if closest is None else f"needs {closest} at least"
        return Alternative(label=label, decision=decision, step_s=None, reason=reason)
    networked = with_network(state.problem, decision_of(found.best), state.seed)
    lost = networked.cost
    gap = max(0.0, 1 - found.bound_s / found.best.step_s)
    near = f" (at most {gap:.0%} from the best there)" if gap > 0.005 else ""
    reason = f"{found.best.candidates.world_size[0]:,} accelerators{near}; {why_slower(won, lost)}"
    return Alternative(label=label, decision=networked.decision, step_s=lost.cost.step_s, reason=reason)
