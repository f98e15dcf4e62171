"""Break-even of fault units and spare hosts."""

from __future__ import annotations

import pytest

from scaleacross.api.published_goodput import ft_hsdp
from scaleacross.cost_models.goodput.share import useful_share
from scaleacross.cost_models.goodput.what_if import (
    paying_rate_factor,
    spare_break_even,
    units_break_even,
    with_units,
)


def test_a_longer_step_by_the_break_even_gives_equal_tokens() -> None:
    model = ft_hsdp(8)
    for one in units_break_even(model):
        share = useful_share(model.scaled(one.rate_factor))[0]
        assert one.goodput_fraction / (1 + one.step_longer_fraction) == pytest.approx(share)
        assert one.num_units == 16
    gains = [one.step_longer_fraction for one in units_break_even(model)]
    assert gains == sorted(gains), "more failures make units more useful"


def test_the_paying_rate_is_where_one_percent_is_even() -> None:
    model = ft_hsdp(16)
    factor = paying_rate_factor(model)
    assert factor is not None
    ratio = useful_share(ft_hsdp(32).scaled(factor))[0] / useful_share(model.scaled(factor))[0]
    assert ratio == pytest.approx(1.01)
    assert paying_rate_factor(ft_hsdp(4096)) is None


def test_units_apart_are_those_of_a_fresh_model() -> None:
    assert with_units(ft_hsdp(4), 12) == ft_hsdp(12)


def test_the_last_spare_pays_and_the_next_does_not() -> None:
    strike = ft_hsdp(1).strikes[0].model_copy(update={"host_swap_fraction": 0.6, "rate_per_s": 1e-4})
    model = ft_hsdp(1).model_copy(update={"strikes": (strike,), "repair_s": 48 * 3600.0})
    found = spare_break_even(model, 2048)
    assert found is not None

    def lost(spares: int) -> float:
        return 1 - useful_share(model.model_copy(update={"spares": spares}))[0] / useful_share(model)[0]

    assert lost(found.spares - 1) - lost(found.spares) > 1 / 2048 > lost(found.spares) - lost(found.spares + 1)
    assert found.lost_without_fraction > 0.9
    assert found.lost_with_fraction < 0.01
    assert spare_break_even(ft_hsdp(1), 2048) is None
