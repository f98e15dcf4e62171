"""Overlap with computation: the law of a window, and the windows of a step."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import accelerator, candidates

from scaleacross.cost_models.network.drivers import contention_fraction
from scaleacross.cost_models.overlap import (
    NO_CHUNKS,
    WINDOW_NAMES,
    Window,
    exposed_s,
    least_together_s,
    rounds,
    together_s,
    windows,
)
from scaleacross.cost_models.work import Work


def window(length_s: float, pieces: float = 4.0) -> Window:
    nothing, one = np.array(0.0), np.array(1.0)
    return Window(np.array(length_s), np.array(1 / pieces), nothing, one, nothing, np.array(False), NO_CHUNKS)


def exposed(time_s: float, of: Window) -> float:
    """Exposed seconds of one communicator with ``time_s`` in a window that occurs once."""
    seconds = np.array([[0.0], [time_s], [0.0], [0.0]])
    return float(exposed_s(seconds, seconds, [window(0.0), of, window(0.0), window(0.0)])[0])


def one_row(of: Window) -> Window:
    return Window(*(part[0] for part in of[:-1]), NO_CHUNKS)


def work(forward_s: float = 1.0, backward_s: float = 2.0, buckets: float = 4.0, fill_rounds: float = 0.0) -> Work:
    columns = {field.name: np.zeros(1) for field in fields(Work)}
    return Work(**(columns | {name: np.array([value]) for name, value in locals().items() if name in columns}))


def test_communication_longer_than_the_window_sticks_out() -> None:
    assert exposed(10.0, window(6.0)) == 4.0


def test_the_last_piece_is_always_exposed() -> None:
    assert exposed(2.0, window(6.0)) == 0.5
    assert exposed(2.0, window(6.0, pieces=1)) == 2.0
    assert exposed(0.0, window(6.0)) == 0.0


positive = st.floats(0, 1e3)


@given(positive, positive, st.floats(0, 10), st.integers(1, 100), st.integers(1, 100))
def test_more_overlap_is_never_slower(
    time_s: float, length_s: float, more: float, pieces: int, more_pieces: int
) -> None:
    left = exposed(time_s, window(length_s, pieces))
    assert max(0.0, time_s - length_s) <= left <= time_s
    assert exposed(time_s, window(length_s + more, pieces)) <= left
    assert exposed(time_s, window(length_s, pieces + more_pieces)) <= left
    assert exposed(time_s + more, window(length_s, pieces)) >= left


@given(st.lists(st.tuples(positive, st.floats(0, 1)), min_size=1, max_size=4), st.integers(1, 50))
def test_communicators_share_the_network(each: list[tuple[float, float]], pieces: int) -> None:
    """Communicators share the network.

    The time is at least the longest one's and the network's busy time, and at most the sum. The lower bound is at most
    this time.
    """
    traffic = [np.array([[seconds]] * 4 + [[seconds * busy]] * 4) for seconds, busy in each]
    together = together_s(traffic, np.array([float(pieces)]))[0, 0]
    every = [seconds for seconds, _ in each]
    assert together >= max(every) * (1 - 1e-12)
    assert together >= sum(seconds * busy for seconds, busy in each) * (1 - 1e-12)
    assert together <= sum(every) * (1 + 1e-12)
    in_a_row = 1 / pieces + (1 - 1 / pieces) / len(each)
    assert least_together_s(sum(traffic, start=np.zeros((8, 1))), np.array([in_a_row]))[0, 0] <= together * (1 + 1e-12)


def test_two_communicators_of_latency_alone_run_side_by_side() -> None:
    chain, short = np.array([[8.0]] * 4 + [[0.0]] * 4), np.array([[4.0]] * 4 + [[0.0]] * 4)
    assert together_s([chain, short], np.array([8.0]))[0, 0] == 8.0 + 4.0 / 8


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=4), st.integers(1, 12), st.floats(0, 40))
def test_buckets_that_pass_communicators_in_turn(each: list[float], pieces: int, backward_s: float) -> None:
    """Buckets that use several communicators take as long as a simulation bucket by bucket.

    Buckets are ready one after another during a backward pass, and each communicator serves one at a time.
    """
    free = [0.0] * len(each)
    for bucket in range(pieces):
        now = backward_s * (bucket + 1) / pieces
        for index, seconds in enumerate(each):
            free[index] = now = max(now, free[index]) + seconds
    traffic = [np.array([[seconds * pieces]] + [[0.0]] * 7) for seconds in each]
    calls = sum(traffic[1:], start=traffic[0])[:4]
    over = [window(backward_s * (1 - 1 / pieces), pieces), *[window(0.0)] * 3]
    found = exposed_s(together_s(traffic, np.array([float(pieces)])), calls, over)
    assert found[0] == pytest.approx(free[-1] - backward_s)


def test_rounds_count_what_comes_before_a_rank() -> None:
    rows = candidates(pp=[1, 4], num_micro_batches=[16, 8])
    assert rounds(rows, work(fill_rounds=2.5)).tolist() == [18.5, 10.5]


def test_windows_of_a_plain_pipeline() -> None:
    # gradients overlap all buckets but one of the last backward pass, parameters those of the first forward
    found = dict(zip(WINDOW_NAMES, windows(candidates(pp=4, num_micro_batches=8), work(fill_rounds=3)), strict=True))
    assert found["gradient_reduce"] == (pytest.approx(2 * 3 / 4), 1 / 4, 0, 1, 0, False, NO_CHUNKS)
    assert found["parameter_gather"] == (pytest.approx(1 * 3 / 4), 1 / 4, 0, 1, 0, False, NO_CHUNKS)
    assert found["shard_forward"] == (1, 1 / 4, 0, 1, 0, False, NO_CHUNKS)
    assert found["shard_backward"] == (2, 1 / 4, 0, 1, 0, False, NO_CHUNKS)


@pytest.mark.parametrize(("num_micro_batches", "waiting"), [(8, 4 * 1 / 2 + 1 / 2), (2, 2 * 1 / 2 + 1 / 2)])
def test_interleaving_overlaps_with_the_other_chunks(num_micro_batches: int, waiting: float) -> None:
    rows = candidates(pp=4, num_chunks=2, schedule="Interleaved1F1B", num_micro_batches=num_micro_batches)
    gradient, parameter, _, _ = windows(rows, work())
    assert gradient.length_s == pytest.approx(
        2 * (waiting - 1 / 4)
    )  # the first bucket of the last chunk has to be ready
    assert parameter.length_s == pytest.approx(1 * (waiting - 1 / 4))


def test_a_single_bucket_overlaps_nothing() -> None:
    gradient, _, forward, _ = windows(candidates(), work(buckets=1.0))
    assert (gradient.length_s, gradient.first_fraction) == (0, 1)
    assert exposed(0.25, one_row(forward)) == 0.25


def test_what_runs_beside_computation_takes_multiprocessors_from_it() -> None:
    """Overlapped collectives slow computation through the multiprocessors that they hold.

    They hold 16 of 132, so computation loses 16/132 of an overlapped collective.
    """
    taken = contention_fraction([accelerator(num_multiprocessors=132, collective_multiprocessors=16)])
    assert taken == pytest.approx(16 / 132)
    busy = replace(work(), contention_fraction=np.array([taken]))
    gradient, *_ = windows(candidates(), busy)
    assert exposed(0.4, one_row(gradient)) == pytest.approx(0.1 + 0.3 * 16 / 132)
    mixed, *_ = windows(candidates(), replace(busy, elementwise_fraction=np.array([0.25])))
    assert exposed(0.4, one_row(mixed)) == pytest.approx(0.1 + 0.3 * 0.75 * 16 / 132)  # a quarter loses HBM instead
    assert exposed(9.0, one_row(gradient)) == pytest.approx(9.0 - 1.5)  # longer than the window, so it ends last
