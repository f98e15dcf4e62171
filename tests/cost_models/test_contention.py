"""Communicators that share links, and computation that shares an accelerator with a collective."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleacross.cost_models.network.contention import alone_s, fair_rates_bytes_per_s, finish_s, incast_queue_bytes
from scaleacross.cost_models.network.sm_contention import (
    channel_rate_bytes_per_s,
    compute_slowdown_ratio,
    hbm_taken_fraction,
    overlapped,
)

NUM_CASES, CLASSES, LINKS = 1000, 5, 4


def filled_exactly(cap: list[int], flows: list[list[int]], capacity: list[int]) -> list[Fraction]:
    """Progressive filling flow by flow in exact fractions, written without arrays: the reference."""
    rates: dict[int, Fraction] = {}
    while len(rates) < len(cap):
        limits = [Fraction(cap[c]) for c in range(len(cap)) if c not in rates]
        headroom = {}
        for link, row in enumerate(flows):
            rising = sum(n for c, n in enumerate(row) if c not in rates)
            if rising:
                headroom[link] = Fraction(capacity[link] - sum(row[c] * r for c, r in rates.items())) / rising
        limit = min([*limits, *headroom.values()])
        full = {link for link, level in headroom.items() if level == limit}
        stop = [
            c for c in range(len(cap)) if c not in rates and (cap[c] == limit or any(flows[link][c] for link in full))
        ]
        rates.update(dict.fromkeys(stop, limit))
    return [rates[c] for c in range(len(cap))]


def cases() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    cap = draw.integers(1, 60, (NUM_CASES, CLASSES))
    flows = draw.integers(0, 5, (NUM_CASES, LINKS, CLASSES)) * (draw.random((NUM_CASES, LINKS, CLASSES)) < 0.6)
    return cap, flows, draw.integers(1, 200, (NUM_CASES, LINKS))


def test_rates_equal_exact_filling_on_a_thousand_cases() -> None:
    cap, flows, capacity = cases()
    found = fair_rates_bytes_per_s(cap, flows, capacity)  # all at once: broadcasting is part of the test
    exact = [filled_exactly(*case) for case in zip(cap.tolist(), flows.tolist(), capacity.tolist(), strict=True)]
    assert found == pytest.approx(np.array(exact, dtype=np.float64), rel=1e-9)


def test_rates_keep_line_rate_and_capacity_and_are_max_min() -> None:
    cap, flows, capacity = cases()
    rates = fair_rates_bytes_per_s(cap, flows, capacity)
    load = (flows * rates[:, None, :]).sum(axis=-1)
    assert (rates <= cap * (1 + 1e-9)).all() and (load <= capacity * (1 + 1e-9)).all()
    full = load >= capacity * (1 - 1e-9)
    fastest = np.where(flows > 0, rates[:, None, :], 0.0).max(axis=-1)
    blocked = ((flows > 0) & full[..., None] & (rates[:, None, :] >= fastest[..., None] * (1 - 1e-9))).any(axis=1)
    assert (blocked | (rates >= cap * (1 - 1e-9))).all()


def test_two_communicators_on_one_trunk() -> None:
    """8 flows limited to 1 GB/s by their window leave 12 of 20 GB/s to 4 others, 3 GB/s each."""
    assert fair_rates_bytes_per_s([1e9, 25e9], [[8, 4]], [20e9]) == pytest.approx([1e9, 3e9])
    assert np.isinf(fair_rates_bytes_per_s([np.inf], [[0]], [1.0])[0])
    assert fair_rates_bytes_per_s([0.0, 9.0], [[1, 1]], [4.0]) == pytest.approx([0.0, 4.0])


def test_finishing_times_of_transfers_that_end_one_after_the_other() -> None:
    """10 and 30 bytes over 2 bytes/s: 1 byte/s each until 10 s, then the longer one has the link: 20 s. Serial: 5 and 15."""
    assert finish_s([10, 30], [9, 9], [[1, 1]], [2]) == pytest.approx([10, 20])
    assert finish_s([10, 30, 0], [9, 1, 9], [[1, 1, 1]], [2]) == pytest.approx([10, 30, 0])
    assert np.isinf(finish_s([1.0], [0.0], [[1]], [1.0]))[0]
    rows = finish_s([[10, 30], [10, 10]], [9, 9], [[1, 1]], [2])
    assert rows == pytest.approx(np.array([[10, 20], [10, 10]]))


def test_sharing_is_between_alone_and_one_after_the_other() -> None:
    cap, flows, capacity = cases()
    size = np.random.default_rng(4).integers(0, 50, cap.shape).astype(float)
    together, alone = finish_s(size, cap, flows, capacity), alone_s(size, cap, flows, capacity)
    assert (together >= alone * (1 - 1e-9)).all()
    assert (together.max(axis=-1) <= alone.sum(axis=-1) * (1 + 1e-9)).all()
    moved = (flows * size[:, None, :]).sum(axis=-1)
    assert (together.max(axis=-1)[:, None] * capacity >= moved * (1 - 1e-9)).all()  # nothing faster than the links


def test_incast_is_what_the_pipe_does_not_hold() -> None:
    """255 senders of 1 MiB before a 50 GB/s port 10 µs away: 1 MB in the pipe, the rest in the switch."""
    assert incast_queue_bytes(255, 2**20, 50e9, 10e-6) == pytest.approx(255 * 2**20 - 1e6)
    assert incast_queue_bytes(2, 2**18, 50e9, 10e-6) == 0


# --- multiprocessors and HBM ------------------------------------------------------------------------------------------------


def test_held_multiprocessors_slow_arithmetic_and_memory_traffic_slows_the_rest() -> None:
    assert compute_slowdown_ratio(1.0, 0.2, 24, 132, 0.0) == pytest.approx(132 / 108)
    assert compute_slowdown_ratio(0.1, 1.0, 24, 132, 0.25) == pytest.approx(4 / 3)
    assert compute_slowdown_ratio(1.0, 0.2, 0, 132, 0.1) == 1  # SM-free beside a compute-bound kernel costs nothing
    assert compute_slowdown_ratio(0.0, 0.0, 24, 132, 0.5) == 1
    assert np.isinf(compute_slowdown_ratio(1.0, 0.1, 132, 132, 0.0))


def test_hbm_share_of_a_nic() -> None:
    """50 GB/s both ways through 3.35 TB/s: 3 % zero-copy, 10 % through staging buffers with a sum."""
    assert hbm_taken_fraction(50e9, 2, 3.35e12) == pytest.approx(0.0299, abs=1e-4)
    assert hbm_taken_fraction(50e9, 7, 3.35e12) == pytest.approx(0.1045, abs=1e-4)
    assert hbm_taken_fraction(1e15, 2, 3.35e12) == 1


@given(st.floats(0, 10), st.floats(0, 10), st.floats(1, 20))
def test_overlap_lies_between_hidden_and_serial(compute: float, running: float, slowdown: float) -> None:
    end, total = overlapped(compute, running, slowdown)
    assert max(compute, running) <= total * (1 + 1e-12) and total <= (compute + running) * (1 + 1e-12)
    assert compute <= end * (1 + 1e-12) and end <= total
    whole = overlapped(compute, running, 1.0)
    assert whole.total_s == max(compute, running) and whole.compute_end_s == compute


def test_overlap_by_hand() -> None:
    """10 s of work beside 6 s of a collective that halves its speed: 3 s are done meanwhile, 7 remain."""
    assert overlapped(10.0, 6.0, 2.0) == (13.0, 13.0)
    assert overlapped(2.0, 6.0, 2.0) == (4.0, 6.0)
    assert overlapped(10.0, 6.0, np.inf) == (16.0, 16.0)
    assert overlapped(0.0, 6.0, np.inf) == (0.0, 6.0)


def test_few_multiprocessors_do_not_fill_a_fast_link() -> None:
    rate = channel_rate_bytes_per_s(50e9, np.array([1, 2, 24]), 20e9)
    assert rate == pytest.approx([20e9, 40e9, 50e9])
