"""Communicators that share links, and computation that shares an accelerator with a collective."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from scaleacross.cost_models.network.contention import alone_s, fair_rates_bytes_per_s, finish_s, incast_queue_bytes
from scaleacross.cost_models.network.sm_contention import hbm_s, held_fraction

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


def test_held_multiprocessors_are_lost_to_products() -> None:
    assert held_fraction(24, 132) == pytest.approx(24 / 132)
    assert held_fraction([0, 132, 200], 132).tolist() == [0, 1, 1]


def test_hbm_of_a_gigabyte() -> None:
    """1 GB received and passed on, at 3 TB/s: 5/3 ms through the library's buffers, 2/3 ms zero-copy."""
    assert hbm_s(1e9, 3e12) == pytest.approx(5e-3 / 3)
    assert hbm_s(1e9, 3e12, 2) == pytest.approx(2e-3 / 3)
