"""Choose for every communicator and kind of collective: algorithm, chunks, channels, connections, codec.

Sets          F  kinds of collective of a placed plan (``traffic.flows``), each of a communicator c(f);  O_f  its options
              B  blocks of flows whose times enter the step together (both collectives of tp, both of key/value exchange; every
              other flow alone);  J_b  combinations of their options
              W  overlap windows of length L_w, least exposed share g_w, p_w occurrences;  R  channels, queue pairs, buffer bytes
              u[b,j,w,l] bytes that a combination puts on trunks of level l in window w;  U_wl  what the job lets them carry
              V_cr  amounts of resource r that some option of communicator c holds
Parameters    s[b,j]    seconds that the step waits for a block
              t[b,j,w]  seconds that it adds to window w; they add up here, though the step lets communicators run side by side
                        as far as the network that they share allows (``overlap.together_s``): of choices that no budget
                        forces, the fastest is the same
              h[b,j,c,r]  what a combination holds of r for communicator c;  H_r  the job's budget (``job.network``)
Variables     y[b,j] ∈ {0,1};  z[c,r,v] ∈ {0,1}: communicator c keeps v of resource r open;  e[w] ≥ 0 exposed seconds
Objective     min Σ s[b,j]·y[b,j] + Σ_w e[w]
C1 one each   Σ_j y[b,j] = 1
C2 held       y[b,j] ≤ Σ_{v ≥ h[b,j,c,r]} z[c,r,v]      and  Σ_v z[c,r,v] = 1
C3 budget     Σ_c Σ_v v·z[c,r,v] ≤ H_r
C6 trunks     Σ u[b,j,w,l]·y[b,j] ≤ U_wl        trunk level l in window w: whoever sends in the window shares it
C4 granule    e[w] ≥ p_w·g_w · Σ t[b,j,w]·y[b,j]
C5 window     e[w] ≥ p_w · (Σ t[b,j,w]·y[b,j] − L_w)

The step grows with every time, so where the combinations that are fastest wherever their seconds go keep to the budgets
together, they are the optimum, and nothing is solved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.network.resources import NOTHING_HELD, Held
from scaleacross.errors import InfeasibleError
from scaleacross.solvers.backends import cpsat
from scaleacross.solvers.backends.linear_model import LinearModel, Solution
from scaleacross.solvers.network_options import FlowOption

Solver = Callable[[LinearModel, float, int], Solution]
RESOURCES: Final = Held._fields
TIME_LIMIT_S: Final = 10.0
LOAD_UNIT: Final = "KiB"
"""Trunk loads are counted in whole units, so that nothing is rounded in the model."""
SAME_TIME: Final = 9
"""Significant digits to which times are compared: what differs by less is equal."""


class Combination(NamedTuple):
    """One option for every flow of a block, with s[b,j], t[b,j,·] and, where the job bounds it, u[b,j,·,·] in a row."""

    options: tuple[FlowOption, ...]
    serial_s: float
    window_s: tuple[float, ...]
    trunk_load: tuple[int, ...] = ()


class WindowLimits(NamedTuple):
    """L_w, g_w and p_w of one window."""

    length_s: float
    least_fraction: float
    per_step: float


@dataclass(frozen=True)
class NetworkProblem:
    """Blocks with their combinations, fastest first, the windows, and the budgets; ``trunk_load`` is U in a row."""

    blocks: tuple[tuple[Combination, ...], ...]
    windows: tuple[WindowLimits, ...]
    budgets: Held
    trunk_load: tuple[int, ...] = ()

    @property
    def num_options(self) -> int:
        """Combinations of all blocks."""
        return sum(map(len, self.blocks))


@dataclass(frozen=True)
class NetworkSolution:
    """What was chosen in every block, its exposed seconds, and no choice's less than ``bound_s``."""

    chosen: tuple[Combination, ...]
    exposed_s: float
    bound_s: float
    status: str


def choose(
    problem: NetworkProblem, solver: Solver = cpsat.solve, seed: int = 0, time_limit_s: float = TIME_LIMIT_S
) -> NetworkSolution:
    """The choice with the least exposed seconds that keeps to the budgets.

    Raises:
        InfeasibleError: no choice keeps to the budgets; the message names the one that is short and the least it needs.
    """
    fastest = tuple(combinations[0] for combinations in problem.blocks)
    allowed = within(held_by(fastest), problem.budgets) and trunks_within(fastest, problem.trunk_load)
    if allowed and all(map(_first_is_fastest, problem.blocks)):
        seconds = exposed_s(fastest, problem.windows)
        return NetworkSolution(fastest, seconds, seconds, "optimal")
    model, variables = build_model(problem)
    solution = solver(model, time_limit_s, seed)
    if not solution.values:
        raise InfeasibleError(_why_infeasible(problem, solution.status))
    chosen = tuple(
        next(one for one, variable in zip(block, own, strict=True) if solution.values[variable] > 0.5)
        for block, own in zip(problem.blocks, variables, strict=True)
    )
    seconds = exposed_s(chosen, problem.windows)
    bound = seconds if solution.status == "optimal" else min(seconds, max(0.0, solution.bound))
    return NetworkSolution(chosen, seconds, bound, solution.status)


def _first_is_fastest(combinations: Sequence[Combination]) -> bool:
    """Whether the first combination takes no longer than any other, wherever its seconds go."""
    first = (combinations[0].serial_s, *combinations[0].window_s)
    return all(all(a <= b for a, b in zip(first, (one.serial_s, *one.window_s), strict=True)) for one in combinations)


def exposed_s(chosen: Sequence[Combination], windows: Sequence[WindowLimits]) -> float:
    """The objective of a choice, s."""
    total = sum(one.serial_s for one in chosen)
    for index, window in enumerate(windows):
        seconds = sum(one.window_s[index] for one in chosen)
        total += window.per_step * max(seconds * window.least_fraction, seconds - window.length_s)
    return total


def held_by(chosen: Sequence[Combination]) -> Held:
    """What a choice holds on one accelerator: the most of every communicator, summed over communicators."""
    most: dict[str, Held] = {}
    for option in (option for one in chosen for option in one.options):
        own = most.get(option.choice.communicator, NOTHING_HELD)
        most[option.choice.communicator] = Held(*map(max, own, option.held))
    return Held(*(sum(column) for column in zip(*most.values(), strict=True))) if most else NOTHING_HELD


def within(held: Held, budgets: Held) -> bool:
    """Whether every resource keeps to its budget."""
    return all(amount <= limit for amount, limit in zip(held, budgets, strict=True))


def trunks_within(chosen: Sequence[Combination], budgets: Sequence[int]) -> bool:
    """Whether every trunk of every window carries no more than its budget."""
    return all(sum(one.trunk_load[at] for one in chosen) <= budget for at, budget in enumerate(budgets))


def combined(
    options: Sequence[Sequence[FlowOption]],
    price: Callable[[tuple[FlowOption, ...]], tuple[float, tuple[float, ...]]],
    on_trunks: Callable[[tuple[FlowOption, ...]], tuple[int, ...]] = lambda _: (),
) -> tuple[Combination, ...]:
    """Combinations of the options of a block's flows that no other one beats, fastest first.

    ``price`` gives s and t of a combination, ``on_trunks`` its u; the first of equals is kept, so the order of options is one of
    preference.
    """
    kept: list[Combination] = []
    every = [Combination(one, *price(one), on_trunks(one)) for one in product(*(undominated(own) for own in options))]
    for one in sorted(every, key=lambda each: _rounded(each.serial_s + sum(each.window_s))):
        if not any(_beats(other, one) for other in kept):
            kept.append(one)
    return tuple(kept)


def undominated(options: Sequence[FlowOption]) -> list[FlowOption]:
    """Options that no earlier or faster one equals in time and in everything it holds."""
    kept: list[FlowOption] = []
    for one in sorted(options, key=lambda option: _rounded(option.time_s)):
        if not any(_holds_less(other, one) for other in kept):
            kept.append(one)
    return kept


def _holds_less(other: FlowOption, one: FlowOption) -> bool:
    amounts = zip((*other.held, *other.trunk_load), (*one.held, *one.trunk_load), strict=True)
    return all(a <= b for a, b in amounts)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{SAME_TIME}e}")


def _beats(other: Combination, one: Combination) -> bool:
    times = zip((other.serial_s, *other.window_s), (one.serial_s, *one.window_s), strict=True)
    return all(a <= b for a, b in times) and all(
        _holds_less(mine, theirs) for mine, theirs in zip(other.options, one.options, strict=True)
    )


def build_model(problem: NetworkProblem) -> tuple[LinearModel, list[list[int]]]:
    """The model of the module docstring, and the variable of every combination."""
    model = LinearModel()
    variables = [
        [model.binary(f"y[{b},{j}]") for j in range(len(combinations))] for b, combinations in enumerate(problem.blocks)
    ]
    for combinations, own in zip(problem.blocks, variables, strict=True):
        model.objective |= {variable: one.serial_s for one, variable in zip(combinations, own, strict=True)}
    _c1_one_each(model, variables)
    _c2_c3_held(model, problem, variables)
    _c4_c5_windows(model, problem, variables)
    _c6_trunks(model, problem, variables)
    return model, variables


def _c1_one_each(model: LinearModel, variables: Sequence[Sequence[int]]) -> None:
    for own in variables:
        model.add("C1 one each", dict.fromkeys(own, 1.0), "==", 1.0)


def _c2_c3_held(model: LinearModel, problem: NetworkProblem, variables: Sequence[Sequence[int]]) -> None:
    needs: dict[tuple[str, int], list[tuple[int, int]]] = {}  # (communicator, resource) -> (variable, amount)
    for combinations, own in zip(problem.blocks, variables, strict=True):
        for one, variable in zip(combinations, own, strict=True):
            for name, amounts in _held_for(one).items():
                for resource, amount in enumerate(amounts):
                    needs.setdefault((name, resource), []).append((variable, amount))
    in_all: dict[int, dict[int, float]] = {resource: {} for resource in range(len(RESOURCES))}
    for (name, resource), needed in needs.items():
        distinct = sorted({amount for _, amount in needed})
        kept = {amount: model.binary(f"z[{name},{RESOURCES[resource]},{amount}]") for amount in distinct}
        model.add("C2 held", dict.fromkeys(kept.values(), 1.0), "==", 1.0)
        for variable, amount in needed:
            enough = {z: -1.0 for held, z in kept.items() if held >= amount}
            model.add("C2 held", {variable: 1.0, **enough}, "<=", 0.0)
        in_all[resource] |= {z: float(amount) for amount, z in kept.items()}
    for resource, terms in in_all.items():
        # in units that divide every amount, so nothing is rounded: CP-SAT 9.15 errs on coefficients of 10^9 and more
        unit = math.gcd(*(round(amount) for amount in terms.values())) or 1
        scaled = {z: amount // unit for z, amount in terms.items()}
        if scaled:
            model.add("C3 budget", scaled, "<=", float(problem.budgets[resource] // unit))


def _held_for(one: Combination) -> dict[str, Held]:
    """What a combination holds, by communicator."""
    most: dict[str, Held] = {}
    for option in one.options:
        own = most.get(option.choice.communicator, NOTHING_HELD)
        most[option.choice.communicator] = Held(*map(max, own, option.held))
    return most


def _c4_c5_windows(model: LinearModel, problem: NetworkProblem, variables: Sequence[Sequence[int]]) -> None:
    for index, window in enumerate(problem.windows):
        seconds = {
            variable: one.window_s[index]
            for combinations, own in zip(problem.blocks, variables, strict=True)
            for one, variable in zip(combinations, own, strict=True)
        }
        if not any(seconds.values()):
            continue
        exposed = model.continuous(f"e[{index}]")
        model.objective[exposed] = 1.0
        free_s = window.per_step * window.length_s
        for name, share, free in (
            ("C4 granule", window.per_step * window.least_fraction, 0.0),
            ("C5 window", window.per_step, free_s),
        ):
            model.add(name, {exposed: 1.0} | {v: -share * s for v, s in seconds.items()}, ">=", -free)


def _c6_trunks(model: LinearModel, problem: NetworkProblem, variables: Sequence[Sequence[int]]) -> None:
    for index, budget in enumerate(problem.trunk_load):
        loads = {
            variable: float(one.trunk_load[index])
            for combinations, own in zip(problem.blocks, variables, strict=True)
            for one, variable in zip(combinations, own, strict=True)
            if one.trunk_load[index]
        }
        if loads:
            model.add("C6 trunks", loads, "<=", float(budget))


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
                f"network.max_trunk_fraction lets trunks carry {budget:,} {LOAD_UNIT} in a window, the least that any choice "
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
            needs = (_held_for(one).get(name, NOTHING_HELD)[resource] for one in combinations)
            least[name] = max(least.get(name, 0), min(needs, default=0))
    return least


def rounded_budgets(channels: int, queue_pairs: int, buffer_bytes: float) -> Held:
    """Budgets as whole numbers."""
    return Held(channels, queue_pairs, math.floor(min(buffer_bytes, float(np.iinfo(np.int64).max))))
