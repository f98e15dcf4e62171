"""Passes that gather and scatter shards agree with hand arithmetic, with every layer simulated, and with their bounds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleacross as sa
from instances import plain_job
from scaleacross.cost_models.pipeline.shard_passes import Call, timed_s

seconds = st.floats(0.01, 10)


def every_layer_s(layers: int, layer_s: float, gathers: list[Call], reductions: list[Call]) -> float:
    """Seconds of a pass as in ``timed_s``, with every moment by its definition.

    The calls are on communicators that share nothing.
    """
    free: dict[int, float] = {}

    def after(start: float, calls: list[Call]) -> float:
        for number, call_s, _ in calls:
            start = free[number] = max(start, free.get(number, 0.0)) + call_s
        return start

    gathered, ended, reduced = after(0.0, gathers), 0.0, 0.0
    for layer in range(layers):
        begun = max(ended, gathered)
        gathered = after(begun, gathers) if layer + 1 < layers else 0.0
        ended = begun + layer_s
        reduced = after(ended, reductions)
    return max(ended, reduced)


@pytest.mark.parametrize(
    ("layer_s", "forward", "backward"),
    [
        (1.0, 2.0 + 3 * 2.0 + 1.0, 2.0 + 2.0 + 2 * 5.0 + 3.0 + 3.0),  # calls take longer than a layer computes
        (4.0, 2.0 + 4 * 4.0, 2.0 + 4.0 + 2 * 5.0 + 4.0 + 3.0),  # a gather with a reduction does
        (9.0, 2.0 + 4 * 9.0, 2.0 + 4 * 9.0 + 3.0),
    ],
)
def test_four_layers_of_one_communicator(layer_s: float, forward: float, backward: float) -> None:
    """Exposed are the first gather, the last reduction, and what exceeds the layers.

    Gathers take 2 s and reductions 3 s.
    """
    assert timed_s(4, (layer_s, 0.0), [(0, 2.0, 0.0)], [])[0] == pytest.approx(forward)
    assert timed_s(4, (layer_s, 0.0), [(0, 2.0, 0.0)], [(0, 3.0, 0.0)])[0] == pytest.approx(backward)


@given(st.integers(1, 40), seconds, st.lists(st.tuples(seconds, seconds), min_size=1, max_size=3), st.booleans())
def test_layers_that_go_on_alike_need_not_be_played(
    layers: int, layer_s: float, each: list[tuple[float, float]], both: bool
) -> None:
    gathers = [(number, gather_s, 0.0) for number, (gather_s, _) in enumerate(each)][::-1]
    reductions = [(number, reduce_s, 0.0) for number, (_, reduce_s) in enumerate(each)] if both else []
    found, outlasting = timed_s(layers, (layer_s, 0.0), gathers, reductions)
    assert outlasting == 0
    assert found == pytest.approx(every_layer_s(layers, layer_s, gathers, reductions), rel=1e-9)
    forward, back = (sum(call_s for _, call_s, _ in calls) for calls in (gathers, reductions))
    assert found >= forward + layers * layer_s + back - 1e-9  # what ``least_passes`` says beyond the layers, and in all
    beside = back - max((reduce_s for _, reduce_s in each), default=0.0) if both and layers > 1 else 0.0
    assert found >= layers * (forward + back) - beside - 1e-9


def test_communicators_that_share_the_network_wait_for_one_another() -> None:
    """Communicators that share a network wait for one another.

    Gathers and reductions take 2 s each on two communicators. With links of their own they overlap.
    """
    apart, shared = (timed_s(50, (0.0, 0.0), [(0, 2.0, busy)], [(1, 2.0, busy)])[0] for busy in (0.0, 2.0))
    assert shared == pytest.approx(50 * 4.0)
    assert apart == pytest.approx(51 * 2.0)


def test_layers_share_the_network_with_their_shards() -> None:
    """Layers share the network with their shards.

    Layers of 3 s gather for 2 s and also keep the network busy for 2 s. Each but the last then takes 4 s.
    """
    assert timed_s(10, (3.0, 0.0), [(0, 2.0, 2.0)], [])[0] == pytest.approx(2.0 + 10 * 3.0)
    assert timed_s(10, (3.0, 2.0), [(0, 2.0, 2.0)], [])[0] == pytest.approx(2.0 + 9 * 4.0 + 3.0)


@pytest.mark.parametrize(("busy", "outlasting"), [(0.0, 3.0), (3.0, 20 * 3.0 - 33.0)])
def test_replicas_reduce_behind_the_last_pass(busy: float, outlasting: float) -> None:
    """Replicas reduce after the reductions of the last pass.

    All-reduces and reductions take 3 s each, as do ten layers. With links of their own all but the last all-reduce
    overlap with the pass. On the same links each also waits for a reduction.
    """
    passed, more = timed_s(10, (3.0, 0.0), [], [(0, 3.0, busy)], [(1, 3.0, busy)])
    alone, nothing = timed_s(10, (3.0, 0.0), [], [(0, 3.0, busy)])
    assert (alone, nothing) == (33.0, 0.0)
    assert passed == alone and more == pytest.approx(outlasting)


@pytest.mark.parametrize(
    ("shard", "schedule"),
    [
        pytest.param(*pair, marks=pytest.mark.heavy if at % 2 else ())
        for at, pair in enumerate(product(["gradients", "parameters"], ["1F1B", "ZBH1", "Interleaved1F1B"]))
    ],
)
def test_pipelines_of_such_passes_are_as_long_as_simulated(shard: str, schedule: str) -> None:
    """Pipelines of such passes take as long as simulated, with eight layers on two stages."""
    degrees = {"tp": 1, "cp": 1, "pp": 2, "dp_shard": 8, "dp_replicate": 1}
    chunks = 2 if schedule == "Interleaved1F1B" else 1
    pinned = {"degrees": degrees, "shard": shard, "schedules": schedule, "num_chunks": chunks}
    job = plain_job(4, **pinned, global_batch_sequences=64, sequence_length=256)
    plan = sa.plan(job, simulated=False, alternatives=False)
    assert plan.estimated.exposed_s["dp"] > 0.04 * plan.estimated.step_s
    simulated = sa.simulate(plan)
    assert plan.estimated.step_s == pytest.approx(simulated.step_s, rel=0.03)
    assert np.isfinite(plan.report.bound_s) and plan.report.bound_s <= plan.estimated.step_s * (1 + 1e-12)
