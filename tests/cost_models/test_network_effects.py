"""What distance, hashing and loss do to a link."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleacross.cost_models.network.load_balance import ecmp_efficiency_fraction
from scaleacross.cost_models.network.long_haul import window_rate_bytes_per_s
from scaleacross.cost_models.network.loss import go_back_n_fraction

MIB = 2**20


def test_window_of_the_shipped_setting_is_far_above_any_campus() -> None:
    """16 queue pairs × 1 MiB × 128 = 2 GiB in flight; 50 GB/s over a 1 ms round trip need 50 MB."""
    assert window_rate_bytes_per_s(1, 1, 50e6, 0.5e-3) == pytest.approx(50e9)
    assert window_rate_bytes_per_s(16, 128, MIB, 0.5e-3) == pytest.approx(2**31 / 1e-3)


@given(st.floats(1e8, 1e11), st.floats(1e-6, 0.1), st.integers(1, 128), st.sampled_from([2**17, 2**20, 2**22]))
def test_a_window_of_the_bandwidth_delay_product_fills_the_link(
    rate: float, latency: float, pairs: int, segment: int
) -> None:
    outstanding = rate * 2 * latency / (pairs * segment)
    assert window_rate_bytes_per_s(pairs, outstanding, segment, latency) == pytest.approx(rate)
    assert window_rate_bytes_per_s(pairs, outstanding / 2, segment, latency) == pytest.approx(rate / 2)


@pytest.mark.parametrize(
    ("flows", "pairs", "links"), [(8, 1, 8), (8, 4, 8), (64, 1, 16), (16, 16, 64), (256, 16, 76), (4, 2, 32)]
)
def test_ecmp_against_drawing_hashes(flows: int, pairs: int, links: int) -> None:
    draws = np.random.default_rng(7).multinomial(flows * pairs, np.full(links, 1 / links), size=4000)
    mean = flows * pairs / links
    assert ecmp_efficiency_fraction(flows, pairs, links) == pytest.approx(mean / draws.max(axis=1).mean(), rel=0.03)


def test_more_queue_pairs_even_out() -> None:
    efficiency = ecmp_efficiency_fraction(64, np.array([1, 2, 4, 16, 64, 1024]), 76)
    assert (np.diff(efficiency) > 0).all() and efficiency[-1] > 0.9
    assert ecmp_efficiency_fraction(5, 1, 1) == 1.0


def test_loss() -> None:
    """1e-5 with 12,207 packets (50 MB of 4 KiB) in flight costs go-back-N a tenth, selective repeat nothing to speak of."""
    assert go_back_n_fraction(1e-5, 12207) == pytest.approx(1 / 1.12207, rel=1e-4)
    assert go_back_n_fraction(1e-5, 1) == pytest.approx(0.99999)  # what selective repeat sends again: one packet
    assert go_back_n_fraction(0.0, 1e6) == 1
