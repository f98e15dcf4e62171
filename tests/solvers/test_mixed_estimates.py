"""Estimates of candidates on several accelerator types move whole layers from slow stages to fast ones."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from instances import mixed_job
from scaleacross.solvers import mixed_estimates
from scaleacross.solvers.mixed_pools import MixedBounder
from scaleacross.solvers.pools import pools
from scaleacross.workloads.problem import problem_of


def shortest(num_layers: int, chunks: int, seconds: list[float], stages: list[int]) -> float:
    """Seconds of the longest stage in the best split, by trying every number of layers per type."""
    best = float("inf")
    for held in product(range(chunks, num_layers + 1), repeat=len(seconds)):
        if sum(number * layers for number, layers in zip(stages, held, strict=True)) >= num_layers:
            longest = max(s * h for s, h, number in zip(seconds, held, stages, strict=True) if number)
            best = min(best, longest)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_whole_layers_lie_where_the_longest_stage_is_shortest(seed: int) -> None:
    draw = np.random.default_rng(seed)
    fast, slow, chunks = (int(draw.integers(low, high)) for low, high in ((0, 4), (1, 5), (1, 4)))
    layers, seconds = int(draw.integers((fast + slow) * chunks, 30)), [1.0, float(draw.uniform(1.0, 4.0))]
    settings: Any = SimpleNamespace(pp=np.array([fast + slow]), num_chunks=np.array([chunks]))
    found = mixed_estimates._by_layers(layers, settings, np.array(seconds)[:, None], np.array([[fast], [slow]]))
    equal = max(chunks, -(-layers // (fast + slow))) * seconds[1]
    assert found[0] * equal == pytest.approx(min(equal, shortest(layers, chunks, seconds, [fast, slow])))


def test_every_building_becomes_one_of_the_slowest_type() -> None:
    problem = problem_of(mixed_job(9))
    pool = next(pool for pool in pools(problem.topology) if len(pool.accelerators) > 1)
    alike = mixed_estimates.like_the_slowest(pool, problem.job)
    [slowest] = alike.accelerators
    assert slowest in pool.accelerators
    assert [one.name for one in alike.buildings] == [one.name for one in pool.buildings]
    bounder = MixedBounder.on(pool, problem.job, problem.profile)
    assert bounder.types != bounder._equal_ranks.types == (slowest.name,)
