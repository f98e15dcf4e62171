"""What-if of failures: how much longer a step with more fault units may be, and how many spare hosts are worthwhile."""

from __future__ import annotations

from typing import Final

from scaleacross.cost_models.goodput.share import useful_share, waiting_loss
from scaleacross.spec.explanation import SpareBreakEven, UnitsBreakEven
from scaleacross.spec.goodput import FaultModel

RATE_FACTORS: Final = (0.5, 1.0, 2.0)
"""Failure rates, relative to the plan's, at which more units are evaluated."""
BISECTIONS: Final = 60
ALLOWED_LONGER: Final = 0.01
"""Assumed lengthening of a step by more units, for which the break-even failure rate is computed."""
MOST_SPARES: Final = 4096


def with_units(model: FaultModel, num_units: int) -> FaultModel:
    """The model with ``num_units`` separate units: a failure of one unit still hits one, a failure of all hits all;
    times are the same."""
    strikes = tuple(
        one.model_copy(update={"units_hit": num_units if one.units_hit == model.num_units > 1 else 1})
        for one in model.strikes
    )
    return model.model_copy(update={"num_units": num_units, "unit_loss": 1 / num_units, "strikes": strikes})


def units_break_even(model: FaultModel) -> tuple[UnitsBreakEven, ...]:
    """For twice as many fault units, at several failure rates: the lengthening of a step up to which they gain."""
    twice = with_units(model, 2 * model.num_units)
    return tuple(
        UnitsBreakEven(
            rate_factor=factor,
            num_units=twice.num_units,
            goodput_fraction=useful_share(twice.scaled(factor))[0],
            step_longer_fraction=useful_share(twice.scaled(factor))[0] / useful_share(model.scaled(factor))[0] - 1,
        )
        for factor in RATE_FACTORS
    )


def paying_rate_factor(model: FaultModel) -> float | None:
    """Failure rate, relative to the plan's, above which twice the units outweigh ALLOWED_LONGER; None: at no rate.

    The search ends at the rate at which a third of the time is lost, because the closed form is not used beyond it.
    """
    twice = with_units(model, 2 * model.num_units)

    def pays(factor: float) -> bool:
        return useful_share(twice.scaled(factor))[0] > (1 + ALLOWED_LONGER) * useful_share(model.scaled(factor))[0]

    low, high = 0.0, 1.0
    while not pays(high):
        if useful_share(model.scaled(high))[0] < 2 / 3 or high > 1e9:
            return None
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def spare_break_even(model: FaultModel, num_hosts: int) -> SpareBreakEven | None:
    """Number of spare hosts whose last one adds more useful time than a host that trains; None: no host needs repair.

    A host that trains adds 1/``num_hosts`` of the tokens; spare S + 1 reduces the time in which a host is missing.
    """
    if model.swaps_per_s * model.repair_s == 0:
        return None

    def waits(spares: int) -> float:
        return waiting_loss(model.model_copy(update={"spares": spares}))

    load = int(model.swaps_per_s * model.repair_s)
    spares = max(0, load)  # below the mean every spare reduces the wait by more than the one before
    if waits(0) - waits(spares + 1) < (spares + 1) / num_hosts:
        return SpareBreakEven(spares=0, lost_without_fraction=waits(0), lost_with_fraction=waits(0))
    while spares < MOST_SPARES and waits(spares) - waits(spares + 1) > 1 / num_hosts:
        spares += 1
    return SpareBreakEven(spares=spares, lost_without_fraction=waits(0), lost_with_fraction=waits(spares))
