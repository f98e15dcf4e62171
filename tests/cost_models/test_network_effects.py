"""Effects of distance, hashing and loss on a link."""

from __future__ import annotations

import numpy as np
import pytest

from scaleacross.cost_models.network.load_balance import ecmp_efficiency_fraction
from scaleacross.cost_models.network.transport import go_back_n_fraction, window_rate_bytes_per_s


def test_window_of_the_shipped_setting_is_far_above_any_campus() -> None:
    """The window of the shipped setting is much larger than any campus needs.

    16 queue pairs × 1 MiB × 128 = 2 GiB are in flight. 50 GB/s over a round trip of 1 ms need 50 MB.
    """
    rates = window_rate_bytes_per_s(np.array([50e6, 2.0**31, 50e6]), np.array([0.5e-3, 0.5e-3, 0.0]))
    assert rates == pytest.approx([50e9, 2**31 / 1e-3, np.inf])


@pytest.mark.parametrize(
    ("flows", "pairs", "links"), [(8, 1, 8), (8, 4, 8), (64, 1, 16), (16, 16, 64), (256, 16, 76), (4, 2, 32)]
)
def test_ecmp_against_drawing_hashes(flows: int, pairs: int, links: int) -> None:
    draws = np.random.default_rng(7).multinomial(flows * pairs, np.full(links, 1 / links), size=4000)
    mean = flows * pairs / links
    assert ecmp_efficiency_fraction(flows * pairs, links) == pytest.approx(mean / draws.max(axis=1).mean(), rel=0.03)


def test_more_queue_pairs_even_out() -> None:
    efficiency = ecmp_efficiency_fraction(64 * np.array([1, 2, 4, 16, 64, 1024]), 76)
    assert (np.diff(efficiency) > 0).all() and efficiency[-1] > 0.9
    assert ecmp_efficiency_fraction(5, 1) == 1.0


def test_loss() -> None:
    """A loss of 1e-5 costs go-back-N a tenth and selective repeat almost nothing.

    12,207 packets are in flight (50 MB of 4 KiB).
    """
    windows = np.array([12207.0, 1.0])  # selective repeat sends one packet again
    assert go_back_n_fraction(np.full(2, 1e-5), windows) == pytest.approx([1 / 1.12207, 0.99999], rel=2e-6)
    assert go_back_n_fraction(np.zeros(1), np.array([1e6])) == 1
