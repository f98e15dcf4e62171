"""Computation slows if it shares the multiprocessors of an accelerator with a collective."""

from __future__ import annotations

import pytest

from scaleacross.cost_models.network.sm_contention import held_fraction


def test_held_multiprocessors_are_lost_to_products() -> None:
    assert held_fraction(24, 132) == pytest.approx(24 / 132)
    assert held_fraction([0, 132, 200], 132).tolist() == [0, 1, 1]
