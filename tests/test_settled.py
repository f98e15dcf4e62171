"""A faster alternative with a network of its own replaces the plan."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from instances import plain_job, plain_topology, plain_trunk
from scaleacross.solvers import move_layers, placed_networks
from scaleacross.solvers.alternatives import alternatives
from scaleacross.solvers.joint import search
from scaleacross.solvers.network_of_plan import Networked, with_network
from scaleacross.solvers.placed_networks import PlacedNetworks
from scaleacross.solvers.search_state import Search, decision_of
from scaleacross.solvers.settle import settled
from scaleacross.spec.plan import Alternative, Decision
from scaleacross.workloads.problem import Problem, problem_of


@pytest.mark.heavy
@pytest.mark.parametrize("is_late", [False, True])
def test_a_faster_alternative_takes_the_plans_place(is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A faster alternative replaces the plan, before and after the time limit.

    The best decision of the search has only a network that triples its step, and the search placed no other. Its
    alternatives alone are then faster.
    """
    topology = plain_topology(4, 2) | {"trunks": [plain_trunk("b0", "b1")]}
    degrees = {"tp": 2, "cp": 1, "pp": [2, 3]}
    job = plain_job(topology=topology, degrees=degrees, schedules="1F1B", recompute="none", num_accelerators=24)
    state = search(problem_of(job), time_limit_s=600)
    assert state.best is not None
    best, slow = state.best, decision_of(state.best)
    state.remembered[:] = [best]
    asked: list[Decision] = []

    def stretched(problem: Problem, decision: Decision, seed: int = 0) -> Networked:
        asked.append(decision)
        found = with_network(problem, decision, seed)
        if decision != slow:
            return found
        cost = found.cost.cost.model_copy(update={"step_s": 3 * found.cost.cost.step_s})
        return replace(found, cost=replace(found.cost, cost=cost))

    monkeypatch.setattr(placed_networks, "with_network", stretched)
    if is_late:
        monkeypatch.setattr(Search, "past_limit", property(lambda _: len(set(map(str, asked))) > 1))
    networks = PlacedNetworks(state)
    others_of = partial(alternatives, networks=networks)
    placed, networked, others = settled(state, best, networks, others_of, alone=False)
    assert placed is not best
    assert networked.cost.cost.step_s < 3 * best.step_s
    assert all(one.step_s is None or one.step_s >= networked.cost.cost.step_s for one in others)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_best_whose_network_is_slow_gives_way_after_the_limit(
    is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time limit the next best decision replaces a plan with a slow network.

    The search remembers this decision. If the user stops the search, the plan stays.
    """
    kinds = {"schedules": "1F1B", "recompute": "none", "num_accelerators": 8}
    state, other = (
        search(problem_of(plain_job(2, degrees={"tp": tp, "cp": 1}, **kinds)), time_limit_s=600) for tp in (1, 2)
    )
    assert state.best is not None and other.best is not None
    state.remembered[:] = [state.best, other.best]
    best, slow = state.best, decision_of(state.best)

    def stretched(problem: Problem, decision: Decision, seed: int = 0) -> Networked:
        found = with_network(problem, decision, seed)
        times = 3 if decision == slow else 1
        cost = found.cost.cost.model_copy(update={"step_s": times * found.cost.cost.step_s})
        return replace(found, cost=replace(found.cost, cost=cost))

    monkeypatch.setattr(placed_networks, "with_network", stretched)
    monkeypatch.setattr(Search, "past_limit", True)
    state.stopped = lambda: is_stopped
    placed, _, _ = settled(state, best, PlacedNetworks(state), lambda *_: (), alone=False)
    assert (placed is best) == is_stopped


@pytest.mark.parametrize("slower", [1.01, 1.03])
def test_layers_of_a_close_alternative_move_too(slower: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alternative that is placed after the moves of the best gets its own, if it is near the best."""
    kinds: dict[str, Any] = {"schedules": "1F1B", "recompute": "none", "num_accelerators": 8}
    state, other = (
        search(problem_of(plain_job(2, degrees={"tp": tp, "cp": 1}, **kinds)), time_limit_s=600) for tp in (1, 2)
    )
    assert state.best is not None and other.best is not None
    best, later = state.best, replace(other.best, step_s=slower * state.best.step_s)
    state.remembered[:] = [best]

    def moved(problem: Problem, found: Networked, *_: object) -> Networked:
        step_s = best.step_s * (0.9 if found.decision.degrees.tp == 1 else 0.8)
        return replace(found, cost=replace(found.cost, cost=found.cost.cost.model_copy(update={"step_s": step_s})))

    monkeypatch.setattr(move_layers, "_moved_by_pipeline", moved)
    monkeypatch.setattr(move_layers, "_moved_by_step", lambda *_: None)

    def placed_later(*_: object) -> tuple[Alternative, ...]:
        state.remembered.append(later)
        return ()

    placed, networked, _ = settled(state, best, PlacedNetworks(state), placed_later, alone=False, moves=True)
    assert placed is (later if slower < 1.02 else best)
    assert networked.cost.cost.step_s == best.step_s * (0.8 if placed is later else 0.9)
