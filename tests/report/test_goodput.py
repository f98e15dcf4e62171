"""The goodput section shows all losses, however small its parts are."""

from __future__ import annotations

import pytest

from scaleacross.report.goodput import _lost
from scaleacross.spec.goodput import LossCause


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ({}, "nothing"),
        ({"stall": 0.0, "units_out": 0.0}, "nothing"),
        ({"stall": 0.02, "units_out": 0.0}, "everybody stalls 2.0 %"),
        ({"stall": 0.02, "units_out": 1e-5}, "everybody stalls 2.0 %"),
        ({"stall": 0.0004, "restart": 0.00045}, "everybody restarts, everybody stalls 0.1 % together"),
        (
            {"stall": 0.02, "units_out": 0.0004, "checkpoint": 0.0003},
            "everybody stalls 2.0 %, fault units out, blocking checkpoints 0.1 % together",
        ),
        ({"stall": 1e-5, "restart": 1e-9}, "everybody stalls less than 0.1 %"),
    ],
)
def test_small_losses_are_shown_together(lost: dict[LossCause, float], said: str) -> None:
    """Small losses are shown together.

    A goodput of 99.9 % was once printed next to "lost: nothing".
    """
    assert _lost(lost) == said
