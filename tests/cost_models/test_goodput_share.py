"""Closed forms of the useful share against published rows, and their laws."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scaleacross.api.published_goodput import ft_hsdp
from scaleacross.cost_models.goodput.recovery import RecoveryTimes
from scaleacross.cost_models.goodput.share import (
    best_interval_s,
    erlang_loss,
    periodic_share,
    poisson_tail,
    spares_needed,
    stop_rate,
    useful_share,
)
from scaleacross.errors import InputError
from scaleacross.spec.goodput import Strike
from scaleacross.spec.reliability import Recovery

MINUTE, HOUR = 60.0, 3600.0


def test_failures_closer_than_a_recovery_are_refused() -> None:
    with pytest.raises(InputError, match="recovery takes 20 s but failures are 18 s apart"):
        periodic_share(18, 20, 3, 12)


def test_what_is_lost_and_what_is_useful_are_everything() -> None:
    changes: dict[str, Any] = {
        "spares": 2,
        "repair_s": 48 * HOUR,
        "checkpoint_interval_s": 600,
        "checkpoint_blocking_s": 9,
    }
    for units in (1, 2, 7, 64):
        base = ft_hsdp(units)
        strikes = (
            base.strikes[0].model_copy(update={"host_swap_fraction": 0.01}),
            Strike(cause="zone", rate_per_s=1e-5, units_hit=units),
        )
        share, lost = useful_share(base.model_copy(update={"strikes": strikes, **changes}))
        assert share + sum(lost.values()) == pytest.approx(1)
        assert min(lost.values()) >= 0
        assert 0 < share < 1


def test_more_units_never_hurt_and_more_failures_always_do() -> None:
    shares = [useful_share(ft_hsdp(units))[0] for units in (1, 2, 4, 8, 16, 32)]
    assert shares == sorted(shares)
    rates = [useful_share(ft_hsdp(8).scaled(factor))[0] for factor in (0, 0.5, 1, 2, 4)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1


def test_the_last_unit_that_goes_is_a_stop() -> None:
    assert stop_rate(ft_hsdp(1)) == pytest.approx(1 / 18 / MINUTE)
    assert stop_rate(ft_hsdp(2)) < stop_rate(ft_hsdp(1))
    assert stop_rate(ft_hsdp(16)) < 1e-12


def test_the_best_interval_is_the_best() -> None:
    def kept(interval_s: float) -> float:
        model = ft_hsdp(1).model_copy(
            update={
                "checkpoint_interval_s": interval_s,
                "checkpoint_blocking_s": 60.0,
                "strikes": ft_hsdp(1, 886 * MINUTE).strikes,
            }
        )
        return useful_share(model)[0]

    best = best_interval_s(1 / 886 / MINUTE, 60)
    assert best is not None
    assert kept(best) > max(kept(best * 0.98), kept(best * 1.02))
    assert best == pytest.approx(math.sqrt(2 * 60 * 886 * MINUTE) - 60, rel=0.02), "Young's and Daly's first terms"
    assert best_interval_s(0, 60) is None
    assert best_interval_s(1e-3, 0) == 0


def test_spares_by_the_quantile() -> None:
    assert poisson_tail(2.0, 0) == pytest.approx(1 - math.exp(-2))
    for mean in (0.3, 2.0, 60.0, 900.0):
        spares = spares_needed(mean)
        assert poisson_tail(mean, spares) <= 1e-3 + 1e-9
        assert poisson_tail(mean, spares - 1) > 1e-3
    assert (
        poisson_tail(110_000.0, spares_needed(110_000.0) - 2)
        > 1e-3
        > poisson_tail(110_000.0, spares_needed(110_000.0) + 1)
    )
    assert spares_needed(0.0) == 0
    assert erlang_loss(1, 2.0) == pytest.approx(2 / 3)
    assert erlang_loss(2, 1.0) == pytest.approx(0.2)


def test_impossible_repairs_are_refused() -> None:
    with pytest.raises(InputError, match="shorter repair_hours"):
        spares_needed(math.inf)


def test_a_checkpoint_is_written_once_a_day_at_least() -> None:
    """With many fault units the loss of all at once is so rare that the best interval exceeds every job."""
    times = RecoveryTimes(recover_s=600, restart_s=600, stall_s=180, blocking_s=1, least_interval_s=60)
    assert times.interval_s(Recovery(), 1e-40) == 86_400
    assert times.interval_s(Recovery(), 1e-5) == best_interval_s(1e-5, 1) < 86_400
    assert times.interval_s(Recovery(), 1.0) == 60  # storage cannot follow faster
    assert times.interval_s(Recovery(checkpoint_interval_s=7 * 86_400), 1e-40) == 7 * 86_400
    assert times.interval_s(Recovery(), 0.0) is None
