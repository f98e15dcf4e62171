"""Exposed gradients and parameters of schedules with separate weight gradients.

The results agree with a simulation bucket by bucket.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleacross.cost_models.chunk_work import StageWork
from scaleacross.cost_models.overlap import NO_CHUNKS, Window, exposed_s, together_s
from scaleacross.cost_models.pipeline.exact import compiled_schedule, exact_ends, virtual_boundaries
from scaleacross.cost_models.pipeline.stage_ends import StageEnds, stage_ends
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.cost_models.split_backward import gradient_chunks, parameter_chunks
from scaleacross.schedules.pipeline import Kind
from scaleacross.spec.parallelism import PipelineChoice

seconds = st.floats(0.01, 10)


def stages(held: list[float], rank: list[int]) -> StageWork:
    nothing = {field.name: np.zeros(len(held)) for field in fields(StageWork)}
    return StageWork(**(nothing | {"dense_parameters": np.array(held), "rank": np.array(rank)}))


def timed(ready: list[float], each: list[float]) -> float:
    """End of the last bucket.

    Each bucket uses all communicators in turn, and each communicator serves one bucket at a time.
    """
    free = [0.0] * len(each)
    for now in ready:
        for index, one in enumerate(each):
            free[index] = now = max(now, free[index]) + one
    return free[-1]


def exposed(chunks: tuple[int, int], ends: StageEnds, each: list[float], window: int) -> float:
    """Exposed seconds of a rank with two chunks, over communicators in sequence with ``each`` per bucket."""
    buckets = float(sum(chunks))
    held = stages([float(one) for one in chunks], [0, 0])
    rank = held, ends, np.array(chunks, dtype=float), np.array([buckets])
    of = gradient_chunks(*rank, np.zeros(1)), parameter_chunks(*rank, np.zeros(1))
    nothing, one = np.zeros(1), np.ones(1)
    endless = Window(np.full(1, 1e9), one / buckets, nothing, one, nothing, one < 0, NO_CHUNKS)
    over = [endless._replace(chunks=of[index]) if index == window else endless for index in range(4)]
    traffic = [np.zeros((8, 1)) for _ in each]
    for row, time_s in zip(traffic, each, strict=True):
        row[window] = time_s * buckets
    calls = sum(traffic[1:], start=traffic[0])[:4]
    return float(exposed_s(together_s(traffic, np.array([buckets])), calls, over)[0])


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.lists(seconds, min_size=1, max_size=3),
    seconds,
    st.floats(0, 20),
    seconds,
    st.floats(0, 20),
)
def test_gradients_are_reduced_from_the_weight_gradients_on(
    chunks: tuple[int, int], each: list[float], first_s: float, between_s: float, last_s: float, after_s: float
) -> None:
    """Gradients are reduced once their weight gradients are ready.

    Chunk 1 comes first and chunk 0 last. Other ranks then continue for a while.
    """
    starts = np.array([first_s + between_s, 0.0])
    ends = np.array([first_s + between_s + last_s, first_s])
    total_s = float(ends[0] + after_s)
    ready = [starts[c] + (ends[c] - starts[c]) * (k + 1) / chunks[c] for c in (1, 0) for k in range(chunks[c])]
    late = timed(ready, each) - total_s
    found = exposed(chunks, StageEnds(np.zeros(2), np.zeros(2), starts, ends, total_s), each, 0)
    assert found == pytest.approx(max(late, sum(each)))  # at least a bucket: other ranks end last


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.lists(seconds, min_size=1, max_size=3),
    seconds,
    seconds,
    seconds,
)
def test_parameters_are_gathered_before_the_forward_passes_that_need_them(
    chunks: tuple[int, int], each: list[float], first_s: float, between_s: float, last_s: float
) -> None:
    """Parameters are gathered before the forward passes that need them.

    Chunk 0 starts at once and chunk 1 later. The result is the delay after which no bucket is late.
    """
    starts, ends = np.array([0.0, first_s + between_s]), np.array([first_s, first_s + between_s + last_s])
    arrivals = [timed([0.0] * (bucket + 1), each) for bucket in range(sum(chunks))]
    needed = [starts[c] + (ends[c] - starts[c]) * k / chunks[c] for c in (0, 1) for k in range(chunks[c])]
    late = max(arrival - need for arrival, need in zip(arrivals, needed, strict=True))
    found = exposed(chunks, StageEnds(starts, ends, np.zeros(2), np.zeros(2), 0.0), each, 1)
    assert found == pytest.approx(max(late, sum(each)))


def test_every_rank_has_the_traffic_of_its_own_parameters_left() -> None:
    ends, buckets = StageEnds(*np.zeros((4, 2)), 10.0), np.array([1.0, 4.0])
    gradients = gradient_chunks(stages([1.0, 8.0], [0, 1]), ends, buckets, buckets, np.zeros(2))
    assert (gradients.of_pace + gradients.of_calls).tolist() == [[1, 1], [1, 1 / 4]]
    assert gradients.length_s.tolist() == [[10.0, 10.0]] * 2


def test_what_is_reduced_before_takes_multiprocessors_from_computation() -> None:
    """Earlier reductions take multiprocessors from computation.

    Four equal chunks have one bucket each. The last one is delayed by 0.1 of the calls of three, the first one not at
    all.
    """
    ends = StageEnds(np.zeros(4), np.zeros(4), np.array([6.0, 4.0, 2.0, 0.0]), np.array([8.0, 6.0, 4.0, 2.0]), 8.0)
    held, four = stages([1.0] * 4, [0] * 4), np.array([4.0])
    gradients = gradient_chunks(held, ends, np.ones(4), four, np.array([0.1]))
    plain = gradient_chunks(held, ends, np.ones(4), four, np.zeros(1))
    assert (gradients.of_calls - plain.of_calls)[:4, 0].tolist() == pytest.approx([0.075, 0.05, 0.025, 0.0])


@pytest.mark.parametrize("name", ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"])
def test_ends_are_those_of_the_timed_actions(name: str) -> None:
    choice = PipelineChoice(schedule=name, num_chunks=2)
    p, m, rng = 4, 8, np.random.default_rng(3)
    forward, alone, weight = rng.uniform(1, 2, (3, 2 * p))
    boundaries = rng.uniform(0, 0.1, (2, p))
    found = exact_ends(choice, p, m, [forward, alone + weight, alone, weight, *np.zeros((2, 2 * p))], *boundaries)
    compiled = compiled_schedule(choice, p, m)
    schedule = compiled.schedule
    between = (virtual_boundaries("boundary", one, p, 2, schedule.placement) for one in boundaries)
    times = time_schedule(compiled, forward, alone + weight, *between, weight_s=weight, input_s=alone)
    for rank, row in enumerate(schedule.actions):
        for chunk in range(2):
            stage = schedule.virtual_stage(rank, chunk)
            first = next(i for i, one in enumerate(row) if one.kind is Kind.F and one.chunk == chunk)
            last = max(i for i, one in enumerate(row) if one.kind in (Kind.B, Kind.W) and one.chunk == chunk)
            assert found.first_start_s[stage] == times.start_s[rank][first]
            assert found.first_end_s[stage] == times.finish_s[rank][first]
            assert found.last_start_s[stage] == times.start_s[rank][last]
            assert found.last_end_s[stage] == times.finish_s[rank][last]
    assert found.total_s == times.total_s


def test_ends_of_a_long_run_are_those_of_all_its_actions() -> None:
    """Ends of a long run equal those of all its actions.

    Only the beginning and the end of a repeating run are timed.
    """
    choice, p, m = PipelineChoice(schedule="Interleaved1F1B", num_chunks=2), 4, 4000
    forward, backward = np.tile([1.0, 1.5, 1.0, 1.25], 2), np.tile([2.0, 2.5, 2.0, 2.25], 2)
    boundaries = np.array([0.5, 0.25, 0.0, 0.5]), np.array([0.25, 0.0, 0.5, 0.25])
    found = exact_ends(choice, p, m, [forward, backward, backward, 0 * forward, *np.zeros((2, 2 * p))], *boundaries)
    compiled = compiled_schedule(choice, p, m)
    between = (virtual_boundaries("boundary", one, p, 2, compiled.schedule.placement) for one in boundaries)
    every = stage_ends(compiled, time_schedule(compiled, forward, backward, *between))
    assert len(compiled.rank) > 60_000, "with fewer actions all are timed"
    for name, one, other in zip(StageEnds._fields, found, every, strict=True):
        assert one == pytest.approx(other, rel=1e-12), name


def test_what_is_gathered_after_a_bucket_takes_multiprocessors() -> None:
    """Gathers after the first bucket take multiprocessors.

    Of two buckets the first is exposed. Computation after it loses the held share of the other's seconds.
    """
    rank = stages([1.0], [0]), StageEnds(*np.zeros((4, 1)), 0.0), np.array([2.0]), np.array([2.0])
    found = parameter_chunks(*rank, np.array([0.1]))
    assert found.of_pace.ravel().tolist() == [1.0, 0.0]
    assert found.of_calls.ravel().tolist() == pytest.approx([0.0, 1 / 2 + 0.1 / 2])
