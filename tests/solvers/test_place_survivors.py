"""The order in which the joint search places candidates that survive their bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from scaleacross.solvers.place_survivors import PATIENCE, by_bounds, in_turn

LONG, SHORT = (64, 2), (16, 8)


def test_what_one_pipeline_took_is_expected_of_its_others() -> None:
    """Candidates of one pipeline share the ratio of step time to bound.

    Three long pipelines have the least bounds. The first takes 1.5 times its bound, so the short one comes second.
    """
    bounds = np.array([6.0, 6.1, 6.2, 8.0])
    took: dict[int, float] = {}
    seen = []
    for index, expected_s in in_turn(bounds, [LONG, LONG, LONG, SHORT], took):
        seen.append((index, round(expected_s, 3)))
        took[index] = bounds[index] * (1.5 if index < 3 else 1.0)
    assert seen == [(0, 6.0), (3, 8.0), (1, 9.15), (2, 9.3)]


def test_a_candidate_of_which_nothing_is_left_says_nothing_of_its_pipeline() -> None:
    """A candidate with an infinite bound says nothing about its pipeline.

    Its ratio of step time to bound is 0. Otherwise all candidates of the same pipeline would come at once.
    """
    bounds, pipelines = np.array([6.0, np.inf, 6.2, 8.0]), [LONG, LONG, LONG, SHORT]
    took = {0: 9.0, 1: 7.0}
    assert [index for index, _ in in_turn(bounds, pipelines, took)] == [3, 0, 2, 1]


def test_every_candidate_comes_once_whatever_was_learned() -> None:
    rng = np.random.default_rng(5)
    bounds = rng.uniform(1, 2, 300)
    pipelines = [(int(kind),) for kind in rng.integers(0, 7, 300)]
    took: dict[int, float] = {}
    order = []
    for index, _ in in_turn(bounds, pipelines, took):
        order.append(index)
        if rng.random() < 0.5:
            took[index] = float(bounds[index] * rng.uniform(1, 3))
    assert sorted(order) == list(range(300))


def test_without_knowledge_the_least_bound_comes_first() -> None:
    bounds = np.array([3.0, 1.0, 2.0])
    assert [index for index, _ in in_turn(bounds, [LONG, LONG, SHORT], {})] == [1, 2, 0]


def test_after_many_that_were_not_faster_the_least_bounds_come_first() -> None:
    """After many candidates without improvement the least bounds come first again.

    A long pipeline took 1.5 times its bound, so others like it wait. Without this rule they would come last.
    """
    bounds = np.concatenate([[5.0], np.linspace(6.0, 6.5, 50), np.linspace(7.0, 7.4, 3 * PATIENCE)])
    pipelines = [LONG] * 51 + [SHORT] * (3 * PATIENCE)
    state: Any = SimpleNamespace(incumbent_s=8.0, target_s=8.0)
    for faster_at in (None, 100):
        took, order = dict[int, float](), list[int]()
        state.incumbent_s = 8.0
        for index in by_bounds(state, bounds, pipelines, took):
            took[index] = 7.5 if index == 0 else float(bounds[index])
            state.incumbent_s = 7.9 if len(order) == faster_at else state.incumbent_s
            order.append(index)
        assert sorted(order) == list(range(len(bounds)))
        turned = PATIENCE + (0 if faster_at is None else faster_at + 1)
        assert set(order[1:turned]).isdisjoint(range(1, 51))
        assert order[turned : turned + 50] == list(range(1, 51))
