"""The order of a pipeline step is optimal on tiny problems, and bounded and legal on all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_orders import fits, least_step_s

from scaleacross.errors import InfeasibleError, InputError
from scaleacross.schedules.pipeline import generate
from scaleacross.schedules.pipeline.check import check
from scaleacross.solvers.order_pipeline import order_pipeline
from scaleacross.solvers.pipeline_order.bounds import lower_bound
from scaleacross.solvers.pipeline_order.problem import OrderProblem, order_problem, step_s
from scaleacross.solvers.pipeline_order.streams import make_streams

# fitted to the zero-delay row of CrossPipe's table; the benchmark lists the facts
F_S, I_S, W_S = 0.038, 0.0465, 0.0205


def two_buildings(
    p: int, m: int, latency_ratio: float, occupancy_ratio: float, memory: float, *, split: bool = True
) -> OrderProblem:
    """CrossPipe's setting: p equal stages with a slow link in the middle.

    Its message takes a given multiple of a forward pass.
    """
    middle = np.arange(p - 1) == p // 2 - 1
    return order_problem(
        p,
        m,
        F_S,
        I_S + W_S,
        weight_s=W_S if split else None,
        latency_s=latency_ratio * F_S * middle,
        occupancy_s=occupancy_ratio * F_S * middle,
        most_held=memory * p,
    )


small = st.integers(1, 4)


@st.composite
def tiny_problems(draw: st.DrawFn) -> OrderProblem:
    """Problems small enough for enumeration, with different times for every stage.

    They have two ranks with two micro-batches, or one chunk more.
    """
    num_chunks = draw(st.sampled_from([1, 1, 2]))
    split = num_chunks == 1 and draw(st.booleans())
    p, m = (2, 2) if num_chunks == 2 else (draw(st.sampled_from([1, 2])), 2 if split else 3)
    if num_chunks == 2:
        m = 1
    size = p * num_chunks
    times = st.lists(small, min_size=size, max_size=size)
    boundary = st.lists(st.lists(st.integers(0, 3), min_size=size - 1, max_size=size - 1), min_size=2, max_size=2)
    weight = np.array(draw(times))
    return order_problem(
        p,
        m,
        draw(times),
        np.array(draw(times)) + (weight if split else 0),
        weight_s=weight if split else None,
        num_chunks=num_chunks,
        placement=draw(st.sampled_from(["loop", "v"])),
        latency_s=np.array(draw(boundary)).reshape(2, size - 1),
        occupancy_s=np.array(draw(boundary)).reshape(2, size - 1),
        most_held=num_chunks + np.array(draw(st.lists(st.integers(0, 2), min_size=p, max_size=p))),
    )


@settings(max_examples=20)
@given(tiny_problems())
def test_optimum_equals_enumeration(problem: OrderProblem) -> None:
    """The optimum equals enumeration.

    The enumeration takes micro-batches in any order, so a fixed order of micro-batches loses nothing.
    """
    found = order_pipeline(problem, 5.0)
    assert found.status == "optimal"
    assert found.objective_s == pytest.approx(least_step_s(problem), rel=1e-9)


@st.composite
def problems(draw: st.DrawFn) -> OrderProblem:
    """Problems of up to 4 ranks and 6 micro-batches, with one or two chunks."""
    p, m, v = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    size, split = p * v, draw(st.booleans())
    weight = rng.uniform(0.1, 1.0, size)
    return order_problem(
        p,
        m,
        rng.uniform(0.1, 1.0, size),
        rng.uniform(0.1, 1.0, size) + weight,
        weight_s=weight if split else None,
        num_chunks=v,
        placement=draw(st.sampled_from(["loop", "v"])),
        latency_s=rng.choice([0.0, 0.7, 3.0], (2, size - 1)),
        occupancy_s=rng.choice([0.0, 0.5], (2, size - 1)),
        most_held=v + rng.uniform(0.0, 3.0 * v, p),
    )


@settings(max_examples=20)
@given(problems())
def test_order_is_legal_fits_and_times_to_the_objective(problem: OrderProblem) -> None:
    found = order_pipeline(problem, 1.0, methods=("greedy",))
    check(found.schedule)
    assert fits(problem, found.schedule)
    assert step_s(problem, found.schedule) == found.objective_s
    assert found.bound_s <= found.objective_s
    assert found.bound_s >= problem.work_s.max() * (1 - 1e-5)


@pytest.mark.heavy
@settings(max_examples=10)
@given(problems())
def test_bound_is_below_what_cp_sat_finds(problem: OrderProblem) -> None:
    streams = make_streams(problem)
    bound_s = lower_bound(streams) * streams.tick_s
    assert bound_s <= order_pipeline(problem, 2.0, methods=("greedy", "whole")).objective_s * (1 + 1e-12)


@pytest.mark.parametrize(
    ("latency_ratio", "occupancy_ratio", "paper_solver_s"),
    [(0, 0, 0.137), (0.25, 0.25, 0.142), (0.25, 2, 0.177), (2, 2, 0.196)],
)
def test_not_above_the_solver_of_crosspipe(latency_ratio: float, occupancy_ratio: float, paper_solver_s: float) -> None:
    """Step times are at most those of CrossPipe's solver, in seconds per micro-batch.

    Source: arXiv 2507.00217, M70 on two sites, 16 micro-batches, memory of 1F1B, column UD.
    """
    found = order_pipeline(two_buildings(8, 16, latency_ratio, occupancy_ratio, 1.0), 40.0)
    assert found.objective_s / 16 <= paper_solver_s
    assert found.status == "optimal"


def test_reductions_published_by_crosspipe() -> None:
    """The order is at least 21 % faster than ZB-H1 and 29 % faster than 1F1B.

    Messages take twice a forward pass and have no latency. The paper reports 21.9 % and 33.6 %.
    """
    problem = two_buildings(8, 16, 0, 2, 1.0)
    found = order_pipeline(problem, 40.0)
    zbh1_s = step_s(problem, generate("ZBH1", 8, 16, 1))
    one_f_one_b_s = step_s(two_buildings(8, 16, 0, 2, 1.0, split=False), generate("1F1B", 8, 16, 1))
    assert found.objective_s <= (1 - 0.21) * zbh1_s
    assert found.objective_s <= (1 - 0.29) * one_f_one_b_s


def test_zbh1_is_optimal_without_delay() -> None:
    """Without delay ZB-H1 meets the lower bound.

    This bound comes from the round trip, the memory and the last weight gradients.
    """
    problem = two_buildings(8, 16, 0, 0, 1.0)
    streams = make_streams(problem)
    assert lower_bound(streams) * streams.tick_s == pytest.approx(step_s(problem, generate("ZBH1", 8, 16, 1)))


@pytest.mark.slow
@pytest.mark.parametrize(("latency_ratio", "occupancy_ratio"), [(0.25, 2), (2, 2)])
def test_twice_the_memory_closes(latency_ratio: float, occupancy_ratio: float) -> None:
    problem = two_buildings(8, 32, latency_ratio, occupancy_ratio, 2.0)
    greedy = order_pipeline(problem, 8.0, methods=("greedy",))
    found = order_pipeline(problem, 120.0, methods=("greedy", "whole"))
    assert found.status == "optimal"
    assert greedy.objective_s <= 1.02 * found.objective_s


def test_a_start_is_never_made_worse() -> None:
    problem = two_buildings(4, 8, 0, 0, 2.0)
    start = generate("ZBH2", 4, 8, 1)
    found = order_pipeline(problem, 2.0, starts=[start], methods=("greedy",))
    assert found.objective_s <= step_s(problem, start) * (1 + 1e-12)


def test_fewer_micro_batches_than_ranks() -> None:
    found = order_pipeline(two_buildings(4, 2, 0.25, 0.25, 1.0), 5.0)
    assert found.status == "optimal"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"forward_s": -1.0}, "forward_s is -1.0, expected finite and not negative"),
        ({"backward_s": math.inf}, "backward_s is inf"),
        ({"occupancy_s": math.inf}, "never leaves its link"),
        ({"latency_s": [0.0, math.nan, 0.0]}, r"latency_s\[1\] is nan"),
        ({"weight_s": 3.0}, "weight_s of virtual stage 0 is 3, but it is a part of backward_s = 2"),
        ({"num_microbatches": 0}, "at least one of its micro-batches, got 0"),
        ({"placement": "ring"}, "no stage placement 'ring'"),
        ({"forward_s": [1.0, 1.0]}, r"shape \(2,\), expected a scalar or \(4,\)"),
        ({"forward_s": 0.0, "backward_s": 0.0}, "nothing to order"),
    ],
)
def test_bad_input(change: dict[str, object], says: str) -> None:
    arguments: dict[str, object] = {"num_ranks": 4, "num_microbatches": 8, "forward_s": 1.0, "backward_s": 2.0}
    with pytest.raises(InputError, match=says):
        order_problem(**(arguments | change))  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_no_memory_for_one_micro_batch(limit: float) -> None:
    with pytest.raises(InfeasibleError, match="rank 0 has"):
        order_problem(4, 8, 1.0, 2.0, most_held=limit)
