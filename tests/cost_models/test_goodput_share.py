"""Closed forms of the useful share agree with published rows and keep their laws."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scaleacross.api.published_goodput import ft_hsdp
from scaleacross.cost_models.goodput.recovery import RecoveryTimes
from scaleacross.cost_models.goodput.repair import waiting_units
from scaleacross.cost_models.goodput.share import (
    best_interval_s,
    most_useful_share,
    periodic_share,
    poisson_tail,
    spares_needed,
    stop_rate,
    useful_share,
    waiting_loss,
)
from scaleacross.errors import InputError
from scaleacross.spec.goodput import FaultModel, Strike
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


def erlang_loss(servers: int, load: float) -> float:
    """Erlang's loss probability B(servers, load)."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


def repaired(units: int, hosts: int | None, load: float, spares: int | None, **changes: Any) -> FaultModel:
    """A model of units that fail by hosts.

    ``load`` is the mean number of hosts in repair while all units train.
    """
    strike = Strike(cause="host", rate_per_s=load / (48 * HOUR), units_hit=1, host_swap_fraction=1.0)
    times = {"recover_s": 900, "restart_s": 1200, "stall_s": 180, "repair_s": 48 * HOUR}
    own = {"num_units": units, "num_hosts": hosts, "spares": spares, "strikes": (strike,), "unit_loss": 1 / units}
    return FaultModel.model_validate(own | times | changes)


def test_hosts_in_repair_by_the_laws_that_are_limits() -> None:
    for spares in (0, 1, 5):
        endless = waiting_units(repaired(1, None, 2.5, spares))
        assert endless[1] == pytest.approx(poisson_tail(2.5, spares))
        resting = waiting_units(repaired(1, None, 2.5, spares, idle_hosts_fail=False), 0.8)
        assert resting[1] == pytest.approx(erlang_loss(spares + 1, 2.5 * 0.8))
    engset = waiting_units(
        repaired(6, 6, 3.0, 0)
    )  # a host a unit and no spare: each is down for itself, ρ/(1 + ρ) of the time
    down = 0.5 / 1.5
    assert engset == pytest.approx([math.comb(6, u) * down**u * (1 - down) ** (6 - u) for u in range(7)])


def test_repairs_by_balance_of_neighbouring_states() -> None:
    """Six hosts in three units with one spare, by hand.

    Two hosts can be missing while only one unit waits.
    """
    births = [1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    weights = [1.0]
    for n, birth in enumerate(births):
        weights.append(weights[-1] * birth * 4.0 / (n + 1))
    by_unit = [sum(weights[:2]), sum(weights[2:4]), sum(weights[4:6]), sum(weights[6:])]
    assert waiting_units(repaired(3, 6, 4.0, 1)) == pytest.approx([one / sum(weights) for one in by_unit])


def test_few_spares_take_more_than_one_unit() -> None:
    """Few spares can stop more than one unit.

    Ten of sixteen hosts are in repair, and there is no spare. Earlier the model counted at most one of four units, 25 %
    of the tokens.
    """
    lost = waiting_loss(repaired(4, 16, 10.0, 0))
    assert lost > 0.4
    losses = [waiting_loss(repaired(4, 16, 10.0, spares)) for spares in range(40)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 1e-4
    assert waiting_loss(repaired(4, 16, 10.0, None)) == 0
    assert waiting_loss(repaired(4, 16, 10.0, 0, idle_hosts_fail=False)) < lost
    assert waiting_loss(repaired(4, 16, 1e7, 0)) == pytest.approx(1.0, abs=1e-4)


def test_the_most_useful_share_is_one_where_hosts_differ_in_size() -> None:
    for units in (1, 2, 5):
        for spares in (0, 3, 9):
            model = repaired(units, 40, 8.0, spares)
            assert most_useful_share(model, 40) == pytest.approx(useful_share(model)[0])
            for hosts in (20, 30, 40):
                for factor in (1.0, 1.5):
                    other = model.model_copy(update={"num_hosts": hosts}).scaled(factor)
                    assert most_useful_share(model, 20) >= useful_share(other)[0] - 1e-12


def test_impossible_repairs_are_refused() -> None:
    with pytest.raises(InputError, match="shorter repair_hours"):
        spares_needed(math.inf)


def test_a_checkpoint_is_written_once_a_day_at_least() -> None:
    """A checkpoint is written at least once a day.

    With many fault units the loss of all at once is so rare that the best interval exceeds every job.
    """
    times = RecoveryTimes(recover_s=600, restart_s=600, stall_s=180, blocking_s=1, least_interval_s=60)
    assert times.interval_s(Recovery(), 1e-40) == 86_400
    assert times.interval_s(Recovery(), 1e-5) == best_interval_s(1e-5, 1) < 86_400
    assert times.interval_s(Recovery(), 1.0) == 60  # storage cannot be faster
    assert times.interval_s(Recovery(checkpoint_interval_s=7 * 86_400), 1e-40) == 7 * 86_400
    assert times.interval_s(Recovery(checkpoint_interval_s=1), 1.0) == 60  # nor where it is stated
    assert times.interval_s(Recovery(), 0.0) is None
