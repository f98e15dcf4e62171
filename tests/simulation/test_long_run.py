"""Weeks of training equal exact closed forms and are near others, and components account for every second."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scaleacross.api.published_goodput import ft_hsdp
from scaleacross.cost_models.goodput.share import useful_share
from scaleacross.errors import InputError
from scaleacross.simulation.long_run import long_run
from scaleacross.spec.goodput import FaultModel, SlowSpell, Strike, TracedFailure

MINUTE, DAY = 60.0, 86_400.0


def heavy(*values: object) -> Any:
    """A test case that runs in ``make heavy``."""
    return pytest.param(*values, marks=pytest.mark.heavy)


def mean(model: FaultModel, days: float = 18, draws: int = 180, **options: Any) -> float:
    return long_run(model, days=days, draws=draws, **options).goodput_fraction["mean"]


@pytest.mark.parametrize(
    "between_min", [18, heavy(50), *(pytest.param(one, marks=pytest.mark.slow) for one in (13.5, 31))]
)
@pytest.mark.parametrize(("units", "within"), [(1, 0.01), (2, 0.03), (8, 0.01), heavy(16, 0.01), (48, 0.01)])
def test_near_the_closed_form_on_a_grid(units: int, within: float, between_min: float) -> None:
    model = ft_hsdp(units, between_min * MINUTE)
    assert mean(model) == pytest.approx(useful_share(model)[0], abs=within)


@pytest.mark.parametrize("units", [1, heavy(2), 8])
@pytest.mark.parametrize("spares", [0, heavy(2), 6])
def test_near_the_closed_form_with_spares_and_checkpoints(units: int, spares: int) -> None:
    strikes = (Strike(cause="host", rate_per_s=1 / 300 / MINUTE, units_hit=1, host_swap_fraction=0.9),)
    model = ft_hsdp(units).model_copy(
        update={
            "strikes": strikes,
            "spares": spares,
            "repair_s": 20 * 3600.0,
            "checkpoint_interval_s": 1800.0,
            "checkpoint_blocking_s": 60.0,
        }
    )
    assert mean(model, days=120) == pytest.approx(useful_share(model)[0], abs=0.01)


REPAIRED: Any = {
    "few hosts a unit": (4, 8, 3.0, 0),
    "half the spares": (4, 40, 1.0, 20),
    "half a host a unit": (8, 4, 10.0, 2),
    "two hosts a unit": (16, 32, 1.0, 16),
    "no whole number of hosts": (7, 40, 2.0, 3),
    "all restart": (1, 64, 10.0, 2),
}
"""Units, hosts, hours between failures, spares. No model was fitted to these values."""


@pytest.mark.parametrize("idle_hosts_fail", [True, False])
@pytest.mark.parametrize(
    ("units", "hosts", "between_h", "spares"),
    [values if at in (0, 2) else heavy(*values) for at, values in enumerate(REPAIRED.values())],
    ids=REPAIRED,
)
def test_near_the_closed_form_where_spares_run_out(
    units: int, hosts: int, between_h: float, spares: int, idle_hosts_fail: bool
) -> None:
    model = FaultModel(
        num_units=units,
        num_hosts=hosts,
        strikes=(Strike(cause="host", rate_per_s=1 / (between_h * 3600), units_hit=1, host_swap_fraction=0.6),),
        recover_s=900,
        restart_s=1200,
        stall_s=180,
        unit_loss=1 / units,
        checkpoint_interval_s=1800,
        checkpoint_blocking_s=10,
        spares=spares,
        repair_s=2 * DAY,
        idle_hosts_fail=idle_hosts_fail,
    )
    run = long_run(model, days=300, draws=16, seed=3)
    share, lost = useful_share(model)
    assert run.goodput_fraction["mean"] == pytest.approx(share, abs=0.01)
    assert run.lost["waiting_for_host"] == pytest.approx(lost["waiting_for_host"], abs=0.015)
    assert sum(run.lost.values()) + run.goodput_fraction["mean"] == pytest.approx(1)


def test_a_second_unit_waits_once_the_first_has_no_host_left_to_lend() -> None:
    """A second unit waits when the first one has no host left to lend.

    Two units of two hosts have no spare, and three hosts fail an hour apart. One unit waits from the first failure,
    both from the third.
    """
    model = FaultModel(
        num_units=2,
        num_hosts=4,
        strikes=(Strike(cause="host", rate_per_s=0, units_hit=1, host_swap_fraction=1),),
        recover_s=0,
        restart_s=0,
        stall_s=0,
        unit_loss=0.5,
        spares=0,
        repair_s=6 * 3600,
    )
    trace = [TracedFailure(time_s=3600 * hour, host_swap=True) for hour in (1, 2, 3)]
    run = long_run(model, days=1, draws=2, trace=trace)
    # one unit waits from 1 to 9 h, the other from 3 h (three hosts missing) to 7 h (two missing)
    assert run.lost["waiting_for_host"] * 24 == pytest.approx(8 * 0.5 + 4 * 0.5)
    assert run.goodput_fraction["mean"] * 24 == pytest.approx(24 - 6)


def test_one_failure_by_hand() -> None:
    """One day with one failure after 10 h 10 min, by hand.

    It loses 10 min of work and 20 min for the restart. Checkpoints block 4 s of every 604 s.
    """
    model = FaultModel(
        num_units=1,
        strikes=(Strike(cause="host", rate_per_s=0, units_hit=1),),
        recover_s=1200,
        restart_s=1200,
        stall_s=0,
        unit_loss=1,
        checkpoint_interval_s=600,
        checkpoint_blocking_s=4,
    )
    at_s = 60 * 604 + 599.0
    run = long_run(model, days=1, draws=3, trace=[TracedFailure(time_s=at_s)])
    rest_s = DAY - at_s - 1200
    whole = math.floor(rest_s / 604)
    tail = min(rest_s - whole * 604, 600)
    useful = 60 * 600 + whole * 600 + tail
    assert run.goodput_fraction["p50"] * DAY == pytest.approx(useful)
    assert run.lost["lost_work"] * DAY == pytest.approx(599)
    assert run.lost["restart"] * DAY == pytest.approx(1200)


def test_a_strike_on_all_units_stops_and_one_on_half_does_not() -> None:
    half = ft_hsdp(4).model_copy(update={"strikes": (Strike(cause="zone", rate_per_s=0, units_hit=2),)})
    run = long_run(half, days=1, draws=1, trace=[TracedFailure(time_s=3600, cause="zone")])
    assert run.lost["stall"] * DAY == pytest.approx(180)
    assert run.lost["units_out"] * DAY == pytest.approx(420 * 2 / 4)
    every = half.model_copy(update={"strikes": (Strike(cause="zone", rate_per_s=0, units_hit=4),)})
    run = long_run(every, days=1, draws=1, trace=[TracedFailure(time_s=3600, cause="zone")])
    assert run.lost["restart"] * DAY == pytest.approx(600)
    assert run.lost["stall"] == 0


def test_a_failure_during_recovery_restarts_it() -> None:
    trace = [TracedFailure(time_s=3600), TracedFailure(time_s=3600 + 300)]
    run = long_run(ft_hsdp(1), days=1, draws=1, trace=trace)
    assert run.lost["restart"] * DAY == pytest.approx(900)


def test_without_a_spare_the_job_waits_for_the_repair() -> None:
    model = ft_hsdp(1).model_copy(update={"spares": 0, "repair_s": 7200.0})
    run = long_run(model, days=1, draws=1, trace=[TracedFailure(time_s=3600, host_swap=True)])
    assert run.lost["waiting_for_host"] * DAY == pytest.approx(7200)
    assert run.lost["restart"] * DAY == pytest.approx(600)
    with_spare = model.model_copy(update={"spares": 1})
    twice = [TracedFailure(time_s=3600, host_swap=True), TracedFailure(time_s=5400, host_swap=True)]
    run = long_run(with_spare, days=1, draws=1, trace=twice)
    assert run.lost["waiting_for_host"] * DAY == pytest.approx(3600 + 7200 - 5400)


def test_every_second_is_accounted_for() -> None:
    strikes = (
        Strike(cause="host", rate_per_s=1e-3, units_hit=1, host_swap_fraction=0.2),
        Strike(cause="zone", rate_per_s=1e-4, units_hit=3),
        Strike(cause="building", rate_per_s=2e-5, units_hit=5),
    )
    changes = {"spares": 3, "repair_s": 3e4, "checkpoint_interval_s": 900.0, "checkpoint_blocking_s": 20.0}
    model = ft_hsdp(5).model_copy(update={"strikes": strikes, "unit_loss": 0.25, **changes})
    spells = (SlowSpell(cause="slow host", rate_per_s=1e-4, lasts_s=900, speed=0.7),)
    run = long_run(model.model_copy(update={"slow_spells": spells}), days=20, draws=20, paces=(0.9, 1.0, 0.95))
    assert run.goodput_fraction["mean"] + sum(run.lost.values()) == pytest.approx(1)
    assert min(run.lost.values()) >= -1e-12
    assert all(value > 0 for value in run.lost.values())
    assert run.interruptions == pytest.approx(sum(run.interruptions_by_cause.values()))
    assert sum(run.timeline) / len(run.timeline) == pytest.approx(run.goodput_fraction["mean"], abs=0.1)


def test_equal_seeds_give_equal_runs() -> None:
    assert long_run(ft_hsdp(8), days=9, draws=5, seed=3) == long_run(ft_hsdp(8), days=9, draws=5, seed=3)
    assert mean(ft_hsdp(8), days=9, draws=5, seed=3) != mean(ft_hsdp(8), days=9, draws=5, seed=4)


def test_nothing_fails_nothing_is_lost() -> None:
    assert mean(ft_hsdp(8).scaled(0)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"days": 0}, "simulate nothing"),
        ({"draws": 0}, "simulate nothing"),
        ({"days": 1e6, "draws": 10_000}, "take fewer days or draws"),
        ({"trace": [TracedFailure(time_s=1, cause="moon")]}, "class moon; the plan's failures are of class host"),
    ],
)
def test_bad_requests_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        long_run(ft_hsdp(4), **({"days": 1, "draws": 1} | options))


def test_a_unit_takes_its_share_and_the_pace_of_a_smaller_group() -> None:
    """A missing unit loses its share, and a smaller group has its own pace.

    Three units run for a day. The one with half the tokens is out for 6 hours. Another with a quarter is out for 6
    hours that overlap by 2. The remaining units run at 0.8 of full speed.
    """
    model = FaultModel(
        num_units=3,
        strikes=(Strike(cause="host", rate_per_s=0, units_hit=1),),
        recover_s=6 * 3600,
        restart_s=6 * 3600,
        stall_s=0,
        unit_loss=1 / 3,
        unit_shares=(0.25, 0.5, 0.25),
        short_pace=0.8,
    )
    trace = [TracedFailure(time_s=3600.0 * hour, unit=unit) for hour, unit in ((2, 1), (6, 2))]
    run = long_run(model, days=1, draws=2, trace=trace)
    useful_hours = 2 + 0.8 * (4 * 0.5 + 2 * 0.25 + 4 * 0.75) + 12
    assert run.goodput_fraction["mean"] == pytest.approx(useful_hours / 24)
    with pytest.raises(InputError, match="fault unit 3"):
        long_run(model, days=1, draws=2, trace=[TracedFailure(time_s=1.0, unit=3)])
