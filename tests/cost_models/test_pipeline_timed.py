"""Times and memory of schedules without closed form equal those of the generated schedules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cases import each
from oracles.spans import longest_span_s
from scaleacross.cost_models.pipeline.exact import exact_ends
from scaleacross.cost_models.pipeline.timed_bounds import CLOSED, max_in_flight
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.schedules.pipeline import SCHEDULES, generate, is_legal
from scaleacross.schedules.pipeline.check import peak_in_flight
from scaleacross.schedules.pipeline.eager_1f1b import with_extra
from scaleacross.spec.parallelism import PipelineChoice, ScheduleName

OTHERS = [name for name in SCHEDULES if name not in CLOSED and name != "DualPipe"]


@each("m", (1, 4, 7, 12), heavy=(3, 8, 20, 24))
def test_in_flight_equals_the_count(m: int) -> None:
    for name, p, v in itertools.product((*OTHERS, "DualPipe"), range(1, 11), (1, 2, 3)):
        if is_legal(name, p, m, v):
            counted = peak_in_flight(generate(name, p, m, v))
            assert max_in_flight(name, p, m, v, np.arange(p)).tolist() == list(counted), (name, p, m, v)


def test_exact_time_follows_the_v() -> None:
    # p = 2, one micro-batch: down over the boundary, turn on rank 1, up over it again, and back. The path holds two weight
    # gradients, the one of rank 1 between its two input gradients and the last one
    choice = PipelineChoice(schedule="ZBVZeroBubble", num_chunks=2)
    split = exact_ends(choice, 2, 1, (1.0, 3.0, 2.0, 1.0, *np.zeros((2, 4))), [5.0, 99.0], 0.0)
    assert split.total_s == 4 * 1 + 4 * 2 + 4 * 5 + 2
    own = choice.model_copy(update={"order": ("0F0,3F0,3B0,0B0", "1F0,2F0,2B0,1B0")})
    whole = exact_ends(own, 2, 1, (1.0, 3.0, 2.0, 1.0, *np.zeros((2, 4))), [5.0, 99.0], 0.0)
    assert whole.total_s == 4 * 1 + 4 * 3 + 4 * 5


@pytest.mark.parametrize(("name", "k"), [("ZBH1", 1), ("ZBH2", 2)])
def test_law_of_zb_h1_and_h2(name: ScheduleName, k: int) -> None:
    """A rank's step without barrier takes m(F+I+W) + (p−1)(F+I−kW), k = 1 and 2, as long as W ≤ min(F, I)."""
    rng = np.random.default_rng(5)
    for p, extra in itertools.product(range(2, 10), (0, 1, 7)):
        m = 2 * p - 1 + extra
        W = 0.5
        F, gradient = W + rng.uniform(0, 2, 2)
        times = time_schedule(generate(name, p, m, 1), F, gradient + W, 0.0, 0.0, weight_s=W)
        assert longest_span_s(times) == pytest.approx(m * (F + gradient + W) + (p - 1) * (F + gradient - k * W))


@pytest.mark.parametrize("c", [0.5, 1.0, 2.0, 3.0])
def test_eager_hides_a_delay_with_enough_in_flight(c: float) -> None:
    """With enough forwards in flight a delay leaves only 2c exposed, whatever m.

    This takes E ≥ ⌈2c/(F+B)⌉ more forwards before the slow boundary.
    """
    p, F, B = 4, 1.0, 2.0
    delay = c * (F + B)
    for boundary, m in itertools.product(range(p - 1), (16, 40)):
        latency = np.zeros(p - 1)
        latency[boundary] = delay
        needed = int(np.ceil(2 * c))
        extra = [needed if rank <= boundary else 0 for rank in range(p)]
        total = time_schedule(with_extra(m, extra), F, B, latency, 0.0).total_s
        assert total == pytest.approx((m + p - 1) * (F + B) + 2 * delay)
        fewer = [max(0, more - 1) for more in extra]
        assert time_schedule(with_extra(m, fewer), F, B, latency, 0.0).total_s > total + 1e-9
