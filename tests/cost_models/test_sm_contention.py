"""Computation that shares an accelerator with a collective: multiprocessors and HBM."""

from __future__ import annotations

import pytest

from scaleacross.cost_models.network.sm_contention import hbm_s, held_fraction


def test_held_multiprocessors_are_lost_to_products() -> None:
    assert held_fraction(24, 132) == pytest.approx(24 / 132)
    assert held_fraction([0, 132, 200], 132).tolist() == [0, 1, 1]


def test_hbm_of_a_gigabyte() -> None:
    """1 GB received and passed on, at 3 TB/s: 5/3 ms through the library's buffers, 2/3 ms zero-copy."""
    assert hbm_s(1e9, 3e12) == pytest.approx(5e-3 / 3)
    assert hbm_s(1e9, 3e12, 2) == pytest.approx(2e-3 / 3)
