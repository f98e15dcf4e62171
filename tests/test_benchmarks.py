"""Benchmarks that reach into the package still find what they switch off."""

from __future__ import annotations

from unittest import mock

from ablation import MECHANISMS


def test_every_mechanism_can_be_switched_off() -> None:
    for switched in MECHANISMS.values():
        for where, new in switched:
            with mock.patch(where, new):
                pass
