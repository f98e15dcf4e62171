"""Find the best alternatives to a plan and say why they are slower ("why does pp cross the buildings?").

For the winner's degrees every other axis is made the slowest one (C5 of ``place_parallelism``), so that it crosses.
Every choice (schedule, chunks, recompute, shard level, micro-batch) is changed alone. The best other degrees come from
what the search placed. The job is also tried in its fastest building alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import concatenate
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.errors import InfeasibleError
from scaleacross.solvers.infeasible import closest_candidate
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.solvers.one_building import OneBuilding
from scaleacross.solvers.placed_networks import PlacedNetworks
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Placed, Search, decision_of, forget
from scaleacross.spec.job import DegreeRequest
from scaleacross.spec.offloading import MILLIONTHS
from scaleacross.spec.parallelism import CONTEXT_EXCHANGES, GRID_AXES, SCHEDULE_NAMES, SHARD_LEVELS
from scaleacross.spec.plan import COMPONENTS, Alternative
from scaleacross.spec.recomputation import RECOMPUTES
from scaleacross.units import human_seconds

MAX_ALTERNATIVES: Final = 6
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


def alternatives(
    state: Search,
    best: Placed,
    won: PlanCost,
    networks: PlacedNetworks,
    alone_of: Callable[[Search], OneBuilding | None] = lambda state: None,
) -> tuple[Alternative, ...]:
    """Return the best alternative of every kind by estimated step time, fastest first, each with its best network.

    Nothing is tried once the limit has passed.

    Args:
        won: figures of the best plan with its network.
        networks: remembers the networks of alternatives.
        alone_of: returns the search in one building alone.
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
    one = _one_building(state, best, won, alone_of)
    every = [*kinds.values(), *([one] if one else [])]
    return tuple(sorted(every, key=lambda a: np.inf if a.step_s is None else a.step_s)[:MAX_ALTERNATIVES])


def why_slower(won: PlanCost, lost: PlanCost) -> str:
    """Return the component differences, largest first, and which axis crosses which level.

    ``+`` is time that the loser takes more than the winner, ``−`` time that it takes less.
    """
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
            placed = state.place(best.bounded, 0, best.placer, slowest_axis=axis, in_time=True, left=forget)
            if placed is not None:
                yield f"{axis} across the buildings", placed


def _other_degrees(state: Search, best: Placed) -> Iterator[tuple[str, Placed]]:
    degrees = best.candidates.decision(0).degrees
    for placed in sorted(state.remembered, key=lambda placed: placed.step_s):
        if placed.candidates.decision(0).degrees != degrees:
            yield f"other degrees: {placed.candidates.decision(0).degrees}", placed
            return


def _other_choices(state: Search, best: Placed) -> Iterator[tuple[str, Placed]]:
    """Yield the winner's degrees with one choice changed: for each choice the candidate with the least estimate."""
    if state.past_limit:
        return
    pinned = DegreeRequest(**best.candidates.decision(0).degrees.model_dump())
    job = state.problem.job.model_copy(update={"degrees": pinned})
    pool, bounder = best.placer.pool, best.placer.bounder
    space = SearchSpace(job, state.problem.profile, pool.num_accelerators, pool.unit)
    rows = concatenate(list(space.batches(Refusals())))
    rows = rows.take(bounder.needed_bytes(rows) <= bounder.capacity_bytes)
    for choice, companions in CHOICES.items():
        same = np.ones(len(rows), dtype=bool)
        for column in dict.fromkeys(name for one, others in CHOICES.items() for name in (one, *others)):
            if column != choice and column not in companions:
                same &= getattr(rows, column) == getattr(best.candidates, column)[0]
        same &= getattr(rows, choice) != getattr(best.candidates, choice)[0]
        if same.any() and not state.past_limit:
            bounded = bounder.tight(bounder.coarse(rows.take(same)))
            row = int(bounded.estimate_s.argmin())
            placed = state.place(bounded, row, best.placer.unlimited(), in_time=True, left=forget)
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


def _one_building(
    state: Search, best: Placed, won: PlanCost, alone_of: Callable[[Search], OneBuilding | None]
) -> Alternative | None:
    """Return the job in one building if the best plan uses several; None where that search has no outcome."""
    alone = alone_of(state) if len(best.placement.fill) > 1 else None
    if alone is None or (alone.found.best is None and alone.found.out_of_time):
        return None
    label, found = f"{alone.name} alone", alone.found
    if found.best is None:
        closest = closest_candidate(alone.problem)
        reason = "no legal candidate" if closest is None else f"needs {closest} at least"
        return Alternative(label=label, decision=decision_of(best), step_s=None, reason=reason)
    networked = with_network(state.problem, decision_of(found.best), state.seed)
    lost = networked.cost
    gap = max(0.0, 1 - found.bound_s / found.best.step_s)
    near = f" (at most {gap:.0%} from the best there)" if gap > 0.005 else ""
    reason = f"{found.best.candidates.world_size[0]:,} accelerators{near}; {why_slower(won, lost)}"
    return Alternative(label=label, decision=networked.decision, step_s=lost.cost.step_s, reason=reason)
