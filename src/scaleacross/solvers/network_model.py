"""The linear model of ``choose_network``: one function per constraint of that module's docstring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.network.resources import Held
from scaleacross.cost_models.overlap import EVERY_PASS, Window
from scaleacross.solvers.backends.linear_model import LinearModel
from scaleacross.solvers.network_combinations import Combination

Blocks = Sequence[Sequence[Combination]]
Variables = Sequence[Sequence[int]]
RESOURCES: Final = Held._fields


def c1_one_each(model: LinearModel, variables: Variables) -> None:
    """Σ_j y[b,j] = 1."""
    for own in variables:
        model.add("C1 one each", dict.fromkeys(own, 1.0), "==", 1.0)


def c2_c3_held(model: LinearModel, blocks: Blocks, budgets: Held, variables: Variables) -> None:
    """Communicators keep open what their choices need, and all of them together keep to the budgets."""
    needs: dict[tuple[str, int], list[tuple[int, int]]] = {}  # (communicator, resource) -> (variable, amount)
    for combinations, own in zip(blocks, variables, strict=True):
        for one, variable in zip(combinations, own, strict=True):
            for name, amounts in one.held.items():
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
        # amounts are divided by their common divisor, because CP-SAT 9.15 errs on coefficients of 10^9 and more
        unit = math.gcd(*(round(amount) for amount in terms.values())) or 1
        scaled = {z: amount // unit for z, amount in terms.items()}
        if scaled:
            model.add("C3 budget", scaled, "<=", float(budgets[resource] // unit))


def c4_trunks(model: LinearModel, blocks: Blocks, budgets: Sequence[int], variables: Variables) -> None:
    """All that send in a window share its inter-building links."""
    for index, budget in enumerate(budgets):
        loads = {
            variable: float(one.trunk_load[index])
            for combinations, own in zip(blocks, variables, strict=True)
            for one, variable in zip(combinations, own, strict=True)
            if one.trunk_load[index]
        }
        if loads:
            model.add("C4 trunks", loads, "<=", float(budget))


def c5_c6_windows(
    model: LinearModel, blocks: Blocks, pieces: float, windows: Sequence[Window], variables: Variables
) -> dict[int, int]:
    """Add x[w], the exposed seconds of one occurrence of each window that some combination falls into; w -> variable.

    Only windows of traffic that occurs once in a step are modelled.
    """
    exposed: dict[int, int] = {}
    for index in range(EVERY_PASS.start):
        calls, busy, free = _traffic(blocks, index, variables)
        first, contention, length, slowed = (float(part[0]) for part in _figures(windows[index]))
        if not calls and not slowed:
            continue
        every = {v: seconds for own in calls.values() for v, seconds in own.items()}
        # Σ t/n + (1 − 1/n)·own: one bucket of every other communicator, and all buckets of its own
        paces = [{v: seconds / pieces for v, seconds in every.items()} | own for own in calls.values()]
        exposed[index] = model.continuous(f"x[{index}]")
        least = {v: contention * free.get(v, 0.0) - (first + contention) * seconds for v, seconds in every.items()}
        model.add("C5 granule", {exposed[index]: 1.0} | least, ">=", slowed)
        wholes = [(1.0, 0.0, length)] if math.isfinite(length) else []
        for of_pace, of_calls, left_s in (*wholes, *np.concatenate(windows[index].chunks, axis=1).tolist()):
            for pace in (*paces, busy):
                longer = {v: -of_pace * pace[v] - of_calls * seconds for v, seconds in every.items()}
                model.add("C6 window", {exposed[index]: 1.0} | longer, ">=", -left_s)
    return exposed


def _figures(window: Window) -> tuple[Floats, ...]:
    return window.first_fraction, window.contention_fraction, window.length_s, window.slowed_s


def _traffic(
    blocks: Blocks, window: int, variables: Variables
) -> tuple[dict[str, dict[int, float]], dict[int, float], dict[int, float]]:
    """Seconds of calls in a window by communicator and variable; busy seconds; seconds without multiprocessors."""
    calls: dict[str, dict[int, float]] = {}
    busy: dict[int, float] = {}
    free: dict[int, float] = {}
    for combinations, own in zip(blocks, variables, strict=True):
        for one, variable in zip(combinations, own, strict=True):
            if one.times.window_s[window]:
                calls.setdefault(one.communicator, {})[variable] = one.times.window_s[window]
                busy[variable], free[variable] = one.times.busy_s[window], one.times.free_s[window]
    return calls, busy, free
