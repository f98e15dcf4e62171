"""The order in which the joint search places what bounds left over."""

from __future__ import annotations

import numpy as np

from scaleacross.solvers.place_survivors import in_turn

LONG, SHORT = (64, 2), (16, 8)


def test_what_one_pipeline_took_is_expected_of_its_others() -> None:
    """Three long pipelines have the least bounds; the first takes 1.5 times its own, so the short one comes second."""
    bounds = np.array([6.0, 6.1, 6.2, 8.0])
    took: dict[int, float] = {}
    seen = []
    for index, expected_s in in_turn(bounds, [LONG, LONG, LONG, SHORT], took):
        seen.append((index, round(expected_s, 3)))
        took[index] = bounds[index] * (1.5 if index < 3 else 1.0)
    assert seen == [(0, 6.0), (3, 8.0), (1, 9.15), (2, 9.3)]


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
