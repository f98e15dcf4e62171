"""Warm-up and drain of heterogeneous ranks.

No schedule, simulated action by action, is shorter than the bound, for any distribution of its work.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from scaleacross.cost_models.pipeline.heterogeneous_ranks import (
    ORDERED,
    at_least,
    fill_past_once_s,
    own_fill_paces,
    speed_in_any_order,
)
from scaleacross.cost_models.pipeline.timed_bounds import WHOLE
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.schedules.pipeline import SCHEDULES, generate, is_legal
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.parallelism import SCHEDULE_NAMES, ScheduleName

SHAPES = [
    shape
    for shape in product([name for name in SCHEDULES if name != "DualPipe"], (2, 3, 4), (2, 3, 4, 8, 12), (1, 2))
    if is_legal(*shape)
]
NAMES = sorted({shape[0] for shape in SHAPES})


def timed_s(name: ScheduleName, m: int, v: int, seconds: np.ndarray, forward_share: float) -> float:
    """Step of ranks that take ``seconds`` per micro-batch in equal chunks.

    A third of the pass is weight gradients.
    """
    p = len(seconds)
    ranks = [locate(SCHEDULES[name].placement, p, stage)[0] for stage in range(p * v)]
    forward, backward = np.outer([forward_share, 1 - forward_share], seconds[ranks] / v)
    return time_schedule(generate(name, p, m, v), forward, backward, 0.0, 0.0, weight_s=backward / 2).total_s


def before_of(name: ScheduleName, v: int, forward_share: float) -> float:
    """Share of a rank's pass before the first action of later ranks, and after their last action."""
    return (1.0 if name in WHOLE else forward_share) / v


def any_order_s(m: int, before: float, speed: np.ndarray, work_s: float) -> float:
    """Least step of ranks with two speeds that do ``work_s`` for each of m micro-batches."""
    speeds = np.array([[1.0], [speed.min()]])
    numbers = np.array([[np.count_nonzero(speed == 1.0)], [len(speed)]])
    return float(m * work_s / speed_in_any_order(speeds, numbers, np.array([1]), np.array([before / m]))[0])


def own_e(name: ScheduleName, p: int, m: float, phi: float) -> float:
    """Paces of warm-up and drain by the schedule's own law."""
    code = np.array([SCHEDULE_NAMES.index(name)])
    return float(own_fill_paces(code, np.array([p]), np.array([m]), np.array([phi]))[0])


@pytest.mark.parametrize("spreads", [4, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_no_spread_of_the_work_is_faster(name: ScheduleName, spreads: int) -> None:
    for (_, p, m, v), phi in product([shape for shape in SHAPES if shape[0] == name], (1.0, 0.8, 0.4)):
        rng, tightest = np.random.default_rng(p * m * v), np.inf
        for index in range(spreads):
            tightest = min(tightest, tightness((name, p, m, v), phi, rng, index))
        if spreads >= 20:
            assert name not in ORDERED or phi < 0.8 or tightest < 1.15, (p, m, v, phi)  # the bound is not trivial


def tightness(shape: tuple[ScheduleName, int, int, int], phi: float, rng: np.random.Generator, index: int) -> float:
    """Ratio of step to bound for one random distribution of the work.

    The function also checks that no bound exceeds the step.
    """
    name, p, m, v = shape
    speed = np.sort(rng.choice([phi, 1.0], p))[:: rng.choice([-1, 1])]
    lean = rng.uniform(0.6, 1.1) if index else 1.0
    seconds = lean ** np.arange(p) * (1 + (index > 1) * rng.uniform(0, 0.1, p))
    share = rng.uniform(0.25, 0.5)
    pace = (speed * seconds).sum() / speed.sum()
    step = timed_s(name, m, v, seconds, share)
    any_order = any_order_s(m, before_of(name, v, share), speed, (speed * seconds).sum())
    own = (m + own_e(name, p, m, phi)) * pace
    assert step >= max(any_order, own) * (1 - 1e-9), (shape, phi, index)
    code, once = np.array([SCHEDULE_NAMES.index(name)]), (speed * seconds).sum()
    beyond = fill_past_once_s(code, np.array([p]), np.array([float(m)]), np.array([once]), np.array([pace]))[0]
    assert step >= (m * pace + beyond) * (1 - 1e-9), (shape, phi, index)
    return float(step / max(any_order, own))


@pytest.mark.parametrize(("name", "m"), [("GPipe", 4), ("1F1B", 5), ("1F1B", 12)])
def test_equal_speeds_lose_nothing_with_enough_micro_batches(name: ScheduleName, m: int) -> None:
    assert own_e(name, 4, m, 1.0) == pytest.approx(3.0)


def test_lighter_ranks_behind_shorten_a_step_of_few_micro_batches() -> None:
    """Less work on later ranks shortens a step of few micro-batches.

    With 1F1B and two micro-batches 1.2 s and 0.8 s take 2.8 s, while twice 1 s takes 3 s.
    """
    assert timed_s("1F1B", 2, 1, np.array([1.0, 1.0]), 1 / 3) == pytest.approx(3.0)
    assert timed_s("1F1B", 2, 1, np.array([1.2, 0.8]), 1 / 3) == pytest.approx(2.8)
    assert 2 + own_e("1F1B", 2, 2, 1.0) <= 2.8
    assert any_order_s(2, 1.0, np.ones(2), 2.0) <= 2.8


@pytest.mark.parametrize("seed", range(8))
def test_replicas_do_no_more_in_a_step_than_their_fast_ranks_in_the_first_places(seed: int) -> None:
    """The work of replicas in a step is at most that with fast ranks in the first places.

    Ranks are heterogeneous, and some are idle. Every replica satisfies S ≥ m·T[r] + d·Σ T[j], j < r.
    """
    rng = np.random.default_rng(seed)
    for _ in range(200):
        replicas, p, phi, before = (
            int(rng.integers(1, 5)),
            int(rng.integers(1, 7)),
            rng.uniform(0.2, 1),
            rng.uniform(0, 1),
        )
        m, speed = rng.integers(1, 9, replicas), rng.choice([1.0, phi], (replicas, p))
        seconds = rng.uniform(0, 1, (replicas, p)) * rng.choice([0, 1], (replicas, p), p=[0.2, 0.8])
        seconds[:, 0] += 1e-3
        ahead = before * (seconds.cumsum(axis=1) - seconds)
        seconds /= (m[:, None] * seconds + ahead).max(axis=1, keepdims=True)  # all replicas take one second
        least_work = (speed * seconds).sum(axis=1).min()
        numbers = np.array([[np.count_nonzero(speed == 1.0)], [speed.size]])
        lost = np.array([before / m.max()])
        most = speed_in_any_order(np.array([[1.0], [phi]]), numbers, np.array([replicas]), lost)[0]
        assert m.sum() * least_work <= most * (1 + 1e-9)


@pytest.mark.parametrize(("m", "before"), [(2, 1.0), (8, 0.5), (32, 0.1)])
def test_ranks_that_lose_no_time_do_as_much_as_is_counted(m: int, before: float) -> None:
    speed, first = np.array([1.0, 1.0, 0.5, 0.5, 0.5]), 1 - before / m
    seconds = first ** np.arange(5) / m
    assert m * seconds + before * (seconds.cumsum() - seconds) == pytest.approx(1.0)
    assert any_order_s(m, before, speed, (speed * seconds).sum()) == pytest.approx(1.0)


@pytest.mark.parametrize(("p", "phi"), [(2, 0.4), (4, 0.6), pytest.param(8, 0.8, marks=pytest.mark.slow)])
def test_replicas_of_unequal_pace_take_as_long_as_their_mean(p: int, phi: float) -> None:
    """Replicas of different pace take as long as the law of their mean says.

    A fast and a slow replica share the micro-batches optimally. Each satisfies its own law.
    """

    def e(m: float) -> float:
        return own_e("1F1B", p, m, phi)

    pace = 2 / (1 + phi)
    for mean in range(p, 12 * p):
        step = min(
            max((slow + e(slow)) / phi, fast + e(fast))
            for slow in range(p, 2 * mean - p + 1)
            for fast in [2 * mean - slow]
        )
        enough = at_least(np.array([p]), np.array([mean]), np.array([p]), np.array([phi]), np.array([False]))[0]
        assert step >= (mean + e(float(enough))) * pace * (1 - 1e-9)


def test_fill_and_drain_count_no_more_than_a_pass_of_every_other_rank() -> None:
    """Warm-up and drain count at most one pass of every other rank.

    ``early_gradients.before_gradients`` relies on this, however little work all ranks together have at full speed.
    """
    for (name, p, m, v), phi in product(SHAPES, (1.0, 0.8, 0.4)):
        assert own_e(name, p, m, phi) <= p - 1, (name, p, m, phi)
        for slow in range(1, p):
            speed = np.where(np.arange(p) < p - slow, 1.0, phi)
            assert any_order_s(m, before_of(name, v, 0.5), speed, speed.sum()) <= (m + p - 1) * (1 + 1e-9)
        once = np.linspace(0.1, 1, 10) * p
        rows = np.full(len(once), SCHEDULE_NAMES.index(name)), np.full(len(once), p), np.full(len(once), float(m))
        assert (fill_past_once_s(*rows, once, np.ones(len(once))) <= p - 1).all(), (name, p, m, v)
