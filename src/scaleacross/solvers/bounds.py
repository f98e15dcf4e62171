"""Lower bounds on the step time of every plan of a job, each with the numbers it comes from.

compute    model FLOP / Σ accelerators · the rate that no kernel of theirs exceeds
cut        By degrees (``crossing``): the slowest axis spans all accelerators, so it crosses buildings, whichever it is.
           For any degrees: a job in one building has that building's accelerators only. A job on several may keep every
           data-parallel group in one building. Then each token's activations leave some building and return. Otherwise
           some stage's gradients cross. A building that reduces S parameters with others receives all others' sum,
           S·reduce bytes R. Where states are sharded and the building has the share x of them, it receives
           S·(x·R + (1−x)·P) of gradients and gathered parameters, P bytes each, and sends S·((1−x)·R + x·P). So one
           direction carries S·(R + P)/2 or more. The bound divides the least of these volumes by the rate of all links
           of the building that has most.
critical   one micro-batch passes every layer forward and backward, one after another, whatever the placement:
path       Σ_layers (F + B) at the degrees and micro-batch that make it least. A whole backward pass lasts at least as
           long with any m. A split one makes others wait for input gradients only; its busiest rank computes m rounds
           of F + B, so for m ≥ p this holds, too. Where the job has a split schedule that runs with m < p, weight
           gradients are left out
pipeline   the least computation + bubble + optimizer time of any candidate that fits in memory and was not ruled out
memory     Little's law on the first pipeline rank: micro-batches in flight and the trip of one of them (``crossing``)
latency
search     branch and bound: nothing that was not placed exactly can be faster
any layers the search places two splits of the layers per candidate; this bound covers all other splits, too: the least
           bound of ``mixed_pools`` of any candidate. Chunks of one rank are as equal as possible
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import ALL_TO_ALL_RING
from scaleacross.cost_models.compute import Shards, attainable_flop_per_s, layer_times
from scaleacross.cost_models.levels import accelerator_types
from scaleacross.cost_models.network.codec import best_ratio
from scaleacross.cost_models.pipeline.timed_bounds import SPLIT
from scaleacross.cost_models.runtime import runtime_of
from scaleacross.cost_models.spending import Spending
from scaleacross.cost_models.traffic import ACTIVATION_BYTES
from scaleacross.schedules.pipeline import is_legal
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.crossing import Crossing
from scaleacross.solvers.pools import AcceleratorPool, pools
from scaleacross.solvers.search_space import Refusals, SearchSpace, divisors
from scaleacross.solvers.search_state import Search
from scaleacross.spec.parallelism import CONTEXT_EXCHANGES
from scaleacross.spec.plan import Bound
from scaleacross.spec.topology import Building, Topology, attainable_trunk_bytes_per_s
from scaleacross.units import human_bytes
from scaleacross.workloads.problem import Problem

_WHY: Final = {
    "cut": "what the slowest axis sends between buildings, whichever axis it is, on top of computation",
    "memory_latency": "trips of micro-batches through all stages and back, as many at a time as the first stage holds",
}


def compute_bound(problem: Problem) -> Bound:
    """Return the time of the model FLOP alone on the fastest accelerators that the job may use."""
    flop = _step_flop(problem)
    rate, used = max(_flop_per_s(problem, pool) for pool in pools(problem.topology))
    why = f"{flop:.3g} model FLOP at {rate:.3g} FLOP/s, the best that any kernel reaches on {used:,} accelerators"
    return Bound(name="compute", step_s=flop / rate, why=why)


def _flop_per_s(problem: Problem, pool: AcceleratorPool) -> tuple[float, int]:
    """Return the most FLOP/s that the accelerators of a pool reach, of as many as the job may use, and their number."""
    left, rate = problem.job.most_accelerators or pool.num_accelerators, 0.0
    used = min(left, pool.num_accelerators)
    for building in sorted(pool.buildings, key=lambda one: -_flop_per_s_of_one(problem, one)):
        rate += min(left, building.num_accelerators) * _flop_per_s_of_one(problem, building)
        left = max(0, left - building.num_accelerators)
    return rate, used


def cut_bound(problem: Problem) -> Bound | None:
    """Return the time for what must pass between buildings, None for a single building."""
    buildings = problem.topology.buildings
    if len(buildings) < 2:
        return None
    profile, job = problem.profile, problem.job
    hidden = profile.blocks[0][0].hidden_size
    activations = job.tokens_per_step * hidden * ACTIVATION_BYTES
    smallest_stage = min(layer.trainable_parameters for layer, _ in profile.blocks)
    reduced, gathered = job.optimizer.reduce_bytes, job.gathered_bytes
    each = reduced if set(job.shard) == {"none"} else min(reduced, (reduced + gathered) / 2)
    crossing = min(activations, smallest_stage * each / best_ratio(job))
    widest = max(_of_trunks(problem.topology, building.name) for building in buildings)
    together = max(compute_bound(problem).step_s, crossing / widest)
    alone = _step_flop(problem) / _attainable_flop_per_s(problem, fastest_building(problem))
    why = (
        f"one building alone needs {alone:.3g} s; over several, {human_bytes(crossing)} must pass inter-building links of "
        f"{human_bytes(widest)}/s"
    )
    return Bound(name="cut", step_s=min(alone, together), why=why)


def fastest_building(problem: Problem) -> Building:
    """Return the building whose accelerators together compute most per second.

    With several accelerator types it need not be the one with most accelerators.
    """
    return max(problem.topology.buildings, key=lambda building: _attainable_flop_per_s(problem, building))


def _of_trunks(topology: Topology, building: str) -> float:
    """Return the bytes/s that all links of a building carry in one direction."""
    own = (trunk for trunk in topology.trunks if building in trunk.between)
    return sum(attainable_trunk_bytes_per_s(topology, trunk) for trunk in own)


def spending_bound(problem: Problem, spending: Spending) -> float:
    """Return the joules or currency units that any plan spends per step at least: model FLOP where a FLOP costs least.

    Σ_b n_b·(a_b·T + b_b·C) with T, C ≥ FLOP / Σ_b n_b·r_b is at least FLOP · min_b (a_b + b_b)/r_b.
    """
    best = min(
        (spending.rates[b.name].step_per_s + spending.rates[b.name].compute_per_s)
        / attainable_flop_per_s(b.accelerator, problem.job.precision)
        for b in problem.topology.buildings
    )
    return _step_flop(problem) * best


def critical_path_bound(problem: Problem) -> Bound:
    """Return the time of one micro-batch through all layers and back, with kernels at their fastest shapes."""
    job, profile = problem.job, problem.profile
    space = SearchSpace(job, profile, problem.topology.num_accelerators, 1)
    exchanges = [
        (cp, context, inner)
        for cp, context in product(space.cp_values(Refusals()), range(len(CONTEXT_EXCHANGES)))
        for inner in (divisors(cp) if context == ALL_TO_ALL_RING else (1,))
    ]
    degrees = space.tp_values(Refusals()), divisors(profile.num_experts or 1), job.micro_batch_sequences
    foldings = (0, 1) if profile.num_experts and "tp_cp" in job.expert_folding else (0,)
    rows = np.array(
        [(*some, *exchange) for *some, exchange in product(*degrees, foldings, exchanges)], dtype=np.int64
    ).reshape(-1, 7)
    tp, ep, micro_batch, folded, cp, context, inner = rows.T
    lanes = np.where(folded, tp * cp, 1)
    shards = Shards(tp, cp, ep, micro_batch, np.zeros(len(rows), dtype=np.int64), context, lanes, inner)
    layers = [*profile.blocks, (profile.embedding, 1), (profile.head, 1)]
    # one micro-batch on two ranks stands for m < p
    split = any(is_legal(name, 2, 1, v) for name, v in product(job.schedules, job.num_chunks) if name in SPLIT)
    least = np.inf
    for accelerator in accelerator_types(problem.topology.buildings):
        total = np.zeros(len(rows))
        for layer, count in layers:
            times = layer_times(
                layer, profile.num_experts, accelerator, job.precision, shards, job.sequence_length, runtime_of(job)
            )
            total += count * (times.forward_s + times.backward_s - (times.weight_s if split else 0.0))
        least = min(least, float(total.min(initial=np.inf)))
    why = "one micro-batch through all layers, forward and backward, at the degrees that make it least"
    return Bound(name="critical_path", step_s=least, why=why)


def search_bounds(state: Search, step_s: float) -> tuple[Bound, ...]:
    """Return all bounds of a finished search, each at most the objective ``step_s``.

    ``step_s`` may be below the step of every candidate, because layers are moved after the search.
    """
    least_s, why = min(state.bound_s, step_s), "least bound of any candidate that was not placed exactly"
    bounds = {"search": Bound(name="search", step_s=least_s, why=why)}
    if state.any_layers_s is not None:
        why = "the same, whatever number of layers each rank holds; the search places two of these splits"
        bounds["any_layers"] = Bound(name="any_layers", step_s=min(state.any_layers_s, least_s), why=why)
    if np.isfinite(state.free_bound_s):
        why = "least computation, bubble and optimizer time of any candidate that fits and was not ruled out"
        bounds["pipeline"] = Bound(name="pipeline", step_s=min(state.free_bound_s, least_s), why=why)
    bounds |= {bound.name: bound for bound in arithmetic_bounds(state.problem)}
    for bound in _bounds_by_degrees(state, least_s):
        if bound.name not in bounds or bounds[bound.name].step_s < bound.step_s:
            bounds[bound.name] = bound
    return tuple(bounds.values())


def _bounds_by_degrees(state: Search, least_s: float) -> Iterator[Bound]:
    """Yield the bounds of ``crossing`` over all candidates.

    Candidates that the search bounds above its own bound are not looked at: they count with that bound.
    """
    several = len(state.problem.topology.buildings) > 1
    names = ("cut", "memory_latency") if several else ("memory_latency",)
    least = dict.fromkeys(names, (least_s, "every candidate that was not ruled out takes as long"))
    for bounded, bounder in state.unbounded:
        of_one_type = type(bounder) is Bounder
        found = Crossing.of(bounder).bounds_s(bounded) if of_one_type else (bounded.free_s, bounded.free_s)
        for name, seconds in zip(("cut", "memory_latency"), found, strict=True):
            row = int(seconds.argmin())
            if name in least and seconds[row] < least[name][0]:
                at = replace(bounded.candidates, recompute=np.zeros_like(bounded.candidates.recompute)).decision(row)
                least[name] = float(seconds[row]), f"{_WHY[name]}; least at {at.degrees}, {at.pipeline.schedule}"
    for name, (step_s, why) in least.items():
        if np.isfinite(step_s):
            yield Bound(name=name, step_s=step_s, why=why)


def arithmetic_bounds(problem: Problem) -> tuple[Bound, ...]:
    """The bounds that need no search."""
    cut = cut_bound(problem)
    return (compute_bound(problem), critical_path_bound(problem), *([cut] if cut else []))


def _step_flop(problem: Problem) -> float:
    return problem.profile.model_flop_per_token(problem.job.sequence_length) * problem.job.tokens_per_step


def _attainable_flop_per_s(problem: Problem, building: Building) -> float:
    return building.num_accelerators * _flop_per_s_of_one(problem, building)


def _flop_per_s_of_one(problem: Problem, building: Building) -> float:
    return attainable_flop_per_s(building.accelerator, problem.job.precision)
