"""Repeated records and the compiled loop equal a graph of single actions and events, on decisions of the benchmark's
table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from agreement import decisions, evaluated

from oracles.clock import Clock
from scaleacross.api.problems import problem_of
from scaleacross.schedules.pipeline import Action
from scaleacross.simulation import accounting
from scaleacross.simulation.step_run import Disturbance, StepRun, simulate_step
from scaleacross.simulation.tasks import Timeline
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.step import program
from scaleacross.step.graph import Call, Computation, Entry, Message, StepGraph
from scaleacross.step.repeats import Repeats, repeats
from scaleacross.step.setting import STATES

ROWS = (1, 2, 3, 10, 35, 66, 70, 87, 102, 117)
"""Ten decisions: pipelines of 1 to 16 ranks, eight schedules, every shard level, experts, one and several buildings."""
QUICK = (35, 87)
SAMPLED = [pytest.param(number, marks=() if number in QUICK else pytest.mark.heavy) for number in ROWS]


@pytest.fixture
def step(number: int) -> tuple[Plan, StepRun]:
    return step_of(number)


@cache
def step_of(number: int) -> tuple[Plan, StepRun]:
    plan = evaluated(*table()[number])
    return plan, simulate_step(plan, problem_of(plan.job, ()))


@cache
def table() -> dict[int, tuple[dict[str, Any], Job]]:
    return {number: (row, job) for number, row, job in decisions()}


def every_action(row: Sequence[Action], special: Collection[int], pace: Sequence[float]) -> Repeats:
    """Repeats in which no action equals another."""
    return repeats(row, range(len(row)), pace)


def waits(graph: StepGraph) -> list[list[int]]:
    return [graph.waits_of(number) for number in range(len(graph.of))]


@pytest.mark.heavy
@pytest.mark.parametrize("number", ROWS)
def test_records_that_are_repeated_make_the_graph_of_every_action(
    step: tuple[Plan, StepRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, found = step
    monkeypatch.setattr(program, "repeats", every_action)
    alone = simulate_step(plan, problem_of(plan.job, ()))
    assert [found.graph.node(n) for n in range(len(found.graph.of))] == [
        alone.graph.node(n) for n in range(len(alone.graph.of))
    ]
    assert waits(found.graph) == waits(alone.graph)
    assert found.graph.messages == alone.graph.messages
    for who in found.graph.ranks:
        assert found.graph.story(who) == alone.graph.story(who)
        assert found.graph.concurrent(who) == alone.graph.concurrent(who)
        assert (found.graph.begins[who] == alone.graph.begins[who]).all()
    assert found.step_s == alone.step_s


@pytest.mark.parametrize("number", SAMPLED)
def test_the_compiled_loop_plays_a_step_as_the_plain_one_does(step: tuple[Plan, StepRun]) -> None:
    _, found = step
    tasks = found.lowered.tasks
    after = [row.tolist() for row in np.split(tasks.waits, tasks.first_wait[1:-1])]
    plain = Clock([tasks.kinds[kind] for kind in tasks.of.tolist()], after, found.machine.capacities, None).to_the_end()
    for name in ("start_s", "end_s", "arrival_s"):
        assert getattr(found.timeline, name) == pytest.approx(getattr(plain, name), rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("number", SAMPLED)
def test_seconds_by_component_follow_the_story_of_a_class(step: tuple[Plan, StepRun]) -> None:
    _, found = step
    for window in ((0.0, math.inf), (0.2 * found.step_s, 0.7 * found.step_s)):
        for who in found.graph.ranks:
            spent = accounting.components(found.graph.course(who), found.nodes, window)
            told = told_seconds(found.graph.story(who), found.nodes, window)
            assert spent == pytest.approx({name: told.get(name, 0.0) for name in spent}, rel=1e-9, abs=1e-9)
            assert set(told) <= set(spent)
        assert sum(spent.values()) == pytest.approx(min(window[1], found.step_s) - window[0])


def told_seconds(story: Sequence[Entry], nodes: Timeline, window: tuple[float, float]) -> dict[str, float]:
    """Seconds by component within a window, entry by entry."""
    spent: dict[str, float] = defaultdict(float)
    now = 0.0

    def goes_on(component: str, end: float) -> None:
        nonlocal now
        spent[component] += max(0.0, min(end, window[1]) - max(now, window[0]))
        now = max(now, end)

    for entry in story:
        if entry.component in accounting.COMPUTING:
            opened = max(entry.gates, key=lambda gate: nodes.arrival_s[gate[0]], default=(0, accounting.IDLE))
            goes_on(opened[1], nodes.start_s[entry.node])
            goes_on(entry.component, nodes.end_s[entry.node])
        else:
            goes_on(entry.component, nodes.arrival_s[entry.node])
    goes_on(accounting.IDLE, nodes.total_s)
    return spent


@pytest.mark.parametrize("number", SAMPLED)
def test_lanes_are_chains(step: tuple[Plan, StepRun]) -> None:
    """Messages of a sender in one direction leave one after another.

    So do gradients and parameters of a communicator.
    """
    plan, graph = step[0], step[1].graph
    lanes: dict[object, list[int]] = {}
    for node in range(len(graph.of)):
        what = graph.node(node)
        if isinstance(what, Message):
            lanes.setdefault(what, []).append(node)
        elif isinstance(what, Call) and what.use in STATES:
            lanes.setdefault((what.use, what.group), []).append(node)
    assert lanes or plan.degrees.world_size == plan.degrees.tp
    for lane, nodes in lanes.items():
        waited = [set(graph.waits_of(node)) for node in nodes]
        if isinstance(lane, Message):  # in the sender's order, which differs from node order
            before = [~one for waits in waited for one in waits if ~one in nodes]
            assert len(before) == len(set(before)) == len(nodes) - 1
        else:
            assert all(before in waits for before, waits in zip(nodes[:-1], waited[1:], strict=True))


@pytest.mark.heavy
def test_every_action_has_its_own_pace() -> None:
    """With jitter every action has its own pace, and so its own kind of node."""
    plan, _ = step_of(117)
    drawn = simulate_step(plan, problem_of(plan.job, ()), Disturbance(jitter_fraction=0.1, seed=1))
    paces = {pace for work in drawn.graph.ranks.values() for pace in work.pace}
    assert len(paces) == sum(len(work.pace) for work in drawn.graph.ranks.values())
    forward = {
        node.seconds for node in drawn.graph.kinds if isinstance(node, Computation) and node.component == "compute"
    }
    assert len(forward) >= len(paces)
