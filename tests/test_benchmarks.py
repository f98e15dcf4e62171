"""Benchmarks that switch off internals of the package still find them."""

from __future__ import annotations

from ablation import MECHANISMS, switched_off


def test_every_mechanism_can_be_switched_off() -> None:
    for name in MECHANISMS:
        with switched_off(name):
            pass
