"""Fill and drain of unlike ranks: no schedule, played action by action, is shorter, however its work is spread."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from scaleacross.cost_models.pipeline.timed_bounds import WHOLE
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.cost_models.pipeline.unlike_ranks import ORDERED, at_least, fill_paces, fill_past_once_s
from scaleacross.schedules.pipeline import SCHEDULES, generate, is_legal
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.parallelism import SCHEDULE_NAMES, ScheduleName

SHAPES = [
    shape
    for shape in product([name for name in SCHEDULES if name != "DualPipe"], (2, 3, 4), (2, 3, 4, 8, 12), (1, 2))
    if is_legal(*shape)
]
NAMES = sorted({shape[0] for shape in SHAPES})


def played_s(name: ScheduleName, m: int, v: int, seconds: np.ndarray, forward_share: float) -> float:
    """A step of ranks that take ``seconds`` for a micro-batch, in equal chunks; a third of it weight gradients."""
    p = len(seconds)
    ranks = [locate(SCHEDULES[name].placement, p, stage)[0] for stage in range(p * v)]
    forward, backward = np.outer([forward_share, 1 - forward_share], seconds[ranks] / v)
    return time_schedule(generate(name, p, m, v), forward, backward, 0.0, 0.0, weight_s=backward / 2).total_s


def e_of(name: ScheduleName, p: int, m: float, v: int, forward_share: float, phi: float) -> tuple[float, float]:
    """Paces of fill and drain: in any order, by the schedule's own law."""
    code, before = np.array([SCHEDULE_NAMES.index(name)]), (1.0 if name in WHOLE else forward_share) / v
    both = fill_paces(code, np.array([p]), np.array([m]), np.array([before]), np.array([phi]))
    return float(both[0][0]), float(both[1][0])


@pytest.mark.parametrize("spreads", [4, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_no_spread_of_the_work_is_faster(name: ScheduleName, spreads: int) -> None:
    for (_, p, m, v), phi in product([shape for shape in SHAPES if shape[0] == name], (1.0, 0.8, 0.4)):
        rng, tightest = np.random.default_rng(p * m * v), np.inf
        for index in range(spreads):
            tightest = min(tightest, tightness((name, p, m, v), phi, rng, index))
        if spreads >= 20:
            assert name not in ORDERED or phi < 0.8 or tightest < 1.15, (p, m, v, phi)  # and it says something


def tightness(shape: tuple[ScheduleName, int, int, int], phi: float, rng: np.random.Generator, index: int) -> float:
    """Step over bound of one random spread, once no bound is found to exceed the step."""
    name, p, m, v = shape
    speed = np.sort(rng.choice([phi, 1.0], p))[:: rng.choice([-1, 1])]
    lean = rng.uniform(0.6, 1.1) if index else 1.0
    seconds = lean ** np.arange(p) * (1 + (index > 1) * rng.uniform(0, 0.1, p))
    share = rng.uniform(0.25, 0.5)
    pace = (speed * seconds).sum() / speed.sum()
    step, paces = played_s(name, m, v, seconds, share), e_of(name, p, m, v, share, phi)
    for e in paces:
        assert step >= (m + e) * pace * (1 - 1e-9), (shape, phi, index)
    code, once = np.array([SCHEDULE_NAMES.index(name)]), (speed * seconds).sum()
    beyond = fill_past_once_s(code, np.array([p]), np.array([float(m)]), np.array([once]), np.array([pace]))[0]
    assert step >= (m * pace + beyond) * (1 - 1e-9), (shape, phi, index)
    return float(step / ((m + max(paces)) * pace))


@pytest.mark.parametrize(("name", "m"), [("GPipe", 4), ("1F1B", 5), ("1F1B", 12)])
def test_equal_speeds_lose_nothing_with_enough_micro_batches(name: ScheduleName, m: int) -> None:
    assert max(e_of(name, 4, m, 1, 1 / 3, 1.0)) == pytest.approx(3.0)


def test_lighter_ranks_behind_shorten_a_step_of_few_micro_batches() -> None:
    """Two micro-batches, 1F1B: 1.2 s and 0.8 s take 2.8 s, twice 1 s takes 3 s."""
    assert played_s("1F1B", 2, 1, np.array([1.0, 1.0]), 1 / 3) == pytest.approx(3.0)
    assert played_s("1F1B", 2, 1, np.array([1.2, 0.8]), 1 / 3) == pytest.approx(2.8)
    assert 2 + max(e_of("1F1B", 2, 2, 1, 1 / 3, 1.0)) <= 2.8


@pytest.mark.parametrize(("p", "phi"), [(2, 0.4), (4, 0.6), pytest.param(8, 0.8, marks=pytest.mark.slow)])
def test_replicas_of_unlike_pace_take_as_long_as_their_mean(p: int, phi: float) -> None:
    """A fast and a slow replica share the micro-batches as well as they can; each obeys its own law, both that of the mean."""

    def e(m: float) -> float:
        return e_of("1F1B", p, m, 1, 1 / 3, phi)[1]

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
    """What ``early_gradients.before_gradients`` takes them for, however little all ranks together do at full speed."""
    for (name, p, m, v), phi in product(SHAPES, (1.0, 0.8, 0.4)):
        assert max(e_of(name, p, m, v, 0.5, phi)) <= p - 1, (name, p, m, v, phi)
        once = np.linspace(0.1, 1, 10) * p
        rows = np.full(len(once), SCHEDULE_NAMES.index(name)), np.full(len(once), p), np.full(len(once), float(m))
        assert (fill_past_once_s(*rows, once, np.ones(len(once))) <= p - 1).all(), (name, p, m, v)
