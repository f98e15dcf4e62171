"""Choose for every communicator and kind of collective: algorithm, chunks, channels, connections, codec.

Sets          F  kinds of collective of a placed plan (``traffic.flows``), each of a communicator c(f);  O_f  its options
              B  blocks of flows whose times enter the step together (both collectives of tp, both of key/value
              exchange; every other flow alone);  J_b  combinations of their options
              W  overlap windows of what travels once per step (``overlap.Window``): length L_w, first share g_w, taken
              share h_w, q_w slowed; shards, which travel in every pass, are blocks that the step waits for
              n  buckets
              R  channels, queue pairs, buffer bytes;  V_cr  amounts of r that some option of communicator c holds
              u[b,j,w,l] bytes that a combination puts on links of level l in window w;  U_wl  their limit by the job
Parameters    s[b,j]    seconds that the step waits for a block: the step time with all else at its fastest options,
                        less the step time with the block at its fastest option, too
              t[b,j,w]  seconds of its calls in window w, and  t°[b,j,w]  of them those in which the network is busy,
              f[b,j,w]  of them those that hold no multiprocessors (``network.drivers``)
              H[b,j,c,r]  what a combination holds of r for communicator c;  H_r  the job's budget (``job.network``)
Variables     y[b,j] ∈ {0,1};  z[c,r,v] ∈ {0,1}: communicator c keeps v of resource r open
              x[w] ≥ 0 what a window leaves exposed
Objective     min Σ s[b,j]·y[b,j] + Σ_w x[w]
C1 one each   Σ_j y[b,j] = 1
C2 held       y[b,j] ≤ Σ_{v ≥ H[b,j,c,r]} z[c,r,v]      and  Σ_v z[c,r,v] = 1
C3 budget     Σ_c Σ_v v·z[c,r,v] ≤ H_r
C4 trunks     Σ u[b,j,w,l]·y[b,j] ≤ U_wl        links of level l in window w: all senders of the window share them
C5 granule    x[w] ≥ Σ ((g_w + h_w)·t[b,j,w] − h_w·f[b,j,w])·y[b,j] + q_w
C6 window     x[w] ≥ π − L_w  for every pace π of window w:  Σ t/n + (1 − 1/n)·(those of one communicator), or Σ t°;
              x[w] ≥ a·π + b·Σ t[b,j,w]·y[b,j] − L  for each of its ``overlap.ChunkWindows``;

Communicators run concurrently as far as the network that they share allows: paces are ``overlap.together_s``. The
objective of a choice is ``overlap.exposed_s`` itself, for the rank that determines the step. The step grows with every
time. So where the combinations that are fastest wherever their seconds go keep to the budgets together, they are the
optimum, and nothing is solved. Of equal choices the one with the fastest combinations is taken: windows are those of
the rank that waits longest, and other ranks may wait for what that one overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleacross.cost_models.network.resources import NOTHING_HELD, Held
from scaleacross.cost_models.overlap import TRAFFIC_ROWS, Window, beyond_windows_s
from scaleacross.errors import InfeasibleError
from scaleacross.solvers.backends import cpsat
from scaleacross.solvers.backends.linear_model import LinearModel
from scaleacross.solvers.network_combinations import Combination, fastest_everywhere, most_held
from scaleacross.solvers.network_model import (
    RESOURCES,
    c1_one_each,
    c2_c3_held,
    c4_trunks,
    c5_c6_windows,
)

TIME_LIMIT_S: Final = 10.0


@dataclass(frozen=True)
class NetworkProblem:
    """Blocks with their combinations, fastest first, the windows and their buckets (``pieces``), and the budgets.

    ``trunk_load`` is U as a row.
    """

    blocks: tuple[tuple[Combination, ...], ...]
    windows: tuple[Window, ...]
    pieces: float
    budgets: Held
    trunk_load: tuple[int, ...] = ()

    @property
    def num_options(self) -> int:
        """Number of combinations of all blocks."""
        return sum(map(len, self.blocks))

    def allows(self, chosen: Sequence[Combination]) -> bool:
        """Return whether a choice keeps to all budgets."""
        return within(held_by(chosen), self.budgets) and trunks_within(chosen, self.trunk_load)

    def exposed_s(self, chosen: Sequence[Combination]) -> float:
        """Return the objective of a choice as the step time counts it, s."""
        traffic: dict[str, np.ndarray] = {}
        for one in chosen:
            rows = np.array([*one.times.window_s, *one.times.busy_s, *one.times.free_s]).reshape(TRAFFIC_ROWS, 1)
            traffic[one.communicator] = traffic.get(one.communicator, 0.0) + rows
        waited = sum(one.times.serial_s for one in chosen)
        if not traffic:
            return waited
        return waited + float(beyond_windows_s(list(traffic.values()), np.array([self.pieces]), self.windows)[0])


@dataclass(frozen=True)
class NetworkSolution:
    """The chosen combination of every block, its exposed seconds, and a lower bound on those of any choice."""

    chosen: tuple[Combination, ...]
    exposed_s: float
    bound_s: float
    status: str


def choose(problem: NetworkProblem, seed: int = 0) -> NetworkSolution:
    """Return the choice with the least exposed seconds that keeps to the budgets.

    Raises:
        InfeasibleError: no choice keeps to the budgets; the message names the one that is short and the least it needs.
    """
    fastest = tuple(combinations[0] for combinations in problem.blocks)
    if problem.allows(fastest) and all(map(fastest_everywhere, problem.blocks)):
        seconds = problem.exposed_s(fastest)
        return NetworkSolution(fastest, seconds, seconds, "optimal")
    model, variables = build_model(problem)
    solution = cpsat.solve(model, TIME_LIMIT_S, seed)
    if not solution.values:
        raise InfeasibleError(_why_infeasible(problem, solution.status))
    chosen = tuple(
        next(one for one, variable in zip(block, own, strict=True) if solution.values[variable] > 0.5)
        for block, own in zip(problem.blocks, variables, strict=True)
    )
    chosen = _fastest_of_equals(problem, chosen)
    seconds = problem.exposed_s(chosen)
    least = sum(min(one.times.serial_s for one in block) for block in problem.blocks)
    # after a time limit the solver's bound may be weaker than the blocks' least waits alone
    bound = seconds if solution.status == "optimal" else min(seconds, max(least, solution.bound))
    return NetworkSolution(chosen, seconds, bound, solution.status)


def _fastest_of_equals(problem: NetworkProblem, chosen: tuple[Combination, ...]) -> tuple[Combination, ...]:
    """Return ``chosen`` with the fastest combination of each block, in turn, that is allowed and no slower in all."""
    least = problem.exposed_s(chosen)
    for at, block in enumerate(problem.blocks):
        for one in block[: block.index(chosen[at])]:
            other = (*chosen[:at], one, *chosen[at + 1 :])
            if problem.allows(other) and (seconds := problem.exposed_s(other)) <= least:
                chosen, least = other, seconds
                break
    return chosen


def held_by(chosen: Sequence[Combination]) -> Held:
    """Return what a choice holds on one accelerator: the most of every communicator, summed over communicators."""
    most = most_held(option for one in chosen for option in one.options)
    return Held(*(sum(column) for column in zip(*most.values(), strict=True))) if most else NOTHING_HELD


def within(held: Held, budgets: Held) -> bool:
    """Return whether every resource keeps to its budget."""
    return all(amount <= limit for amount, limit in zip(held, budgets, strict=True))


def trunks_within(chosen: Sequence[Combination], budgets: Sequence[int]) -> bool:
    """Return whether the links of every level and window carry no more than their budget."""
    return all(sum(one.trunk_load[at] for one in chosen) <= budget for at, budget in enumerate(budgets))


def build_model(problem: NetworkProblem) -> tuple[LinearModel, list[list[int]]]:
    """Return the model of the module docstring and the variable of every combination."""
    model, blocks = LinearModel(), problem.blocks
    variables = [
        [model.binary(f"y[{b},{j}]") for j in range(len(combinations))] for b, combinations in enumerate(blocks)
    ]
    for combinations, own in zip(blocks, variables, strict=True):
        model.objective |= {variable: one.times.serial_s for one, variable in zip(combinations, own, strict=True)}
    c1_one_each(model, variables)
    c2_c3_held(model, blocks, problem.budgets, variables)
    c4_trunks(model, blocks, problem.trunk_load, variables)
    exposed = c5_c6_windows(model, blocks, problem.pieces, problem.windows, variables)
    model.objective |= dict.fromkeys(exposed.values(), 1.0)
    return model, variables


def _why_infeasible(problem: NetworkProblem, status: str) -> str:
    if status != "infeasible":
        return f"The network was not decided within the time limit ({status}): raise the budgets of job.network."
    short = []
    for resource, (name, budget) in enumerate(zip(RESOURCES, problem.budgets, strict=True)):
        least = sum(_least_by_communicator(problem, resource).values())
        if least > budget:
            short.append(f"network.max_{name} is {budget:,}, the least that any choice holds is {least:,}")
    for index, budget in enumerate(problem.trunk_load):
        load = sum(min(one.trunk_load[index] for one in block) for block in problem.blocks)
        if load > budget:
            short.append(
                f"network.max_trunk_fraction lets trunks carry {budget:,} KiB in a window, the least that any choice "
                f"sends is {load:,}"
            )
    return "No choice of the network keeps to the job's budgets: " + (
        "; ".join(short) or "each could be met alone, but not all together; raise one of network.max_*"
    )


def _least_by_communicator(problem: NetworkProblem, resource: int) -> Mapping[str, int]:
    least: dict[str, int] = {}
    for combinations in problem.blocks:
        names = {option.choice.communicator for one in combinations for option in one.options}
        for name in names:
            needs = (one.held.get(name, NOTHING_HELD)[resource] for one in combinations)
            least[name] = max(least.get(name, 0), min(needs, default=0))
    return least


def rounded_budgets(channels: int, queue_pairs: int, buffer_bytes: float) -> Held:
    """Return the budgets as whole numbers."""
    return Held(channels, queue_pairs, math.floor(min(buffer_bytes, float(np.iinfo(np.int64).max))))
