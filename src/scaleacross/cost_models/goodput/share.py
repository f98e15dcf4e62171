"""Closed forms of the share of useful time.

Symbols       λ failures per second of the job; R fault units; D time until a unit that was hit is back; s time that all
              units stall; Δ training between checkpoints, w time that one blocks; S spare hosts; ρ = hosts failing per
              s times repair time
Periodic      failures M = 1/λ apart:  G = (M − D)/M for R = 1;  ((M − D) + (D − s)(R − 1)/R)/M with fault units
Poisson       a strike that hits all units stops all of them for D_all. A strike that hits h < R units stops these for
              D and stalls the others for s. A unit trains at an instant if none of these windows is open, and windows
              of a Poisson process are open with probability 1 − e^{−rate·window}. Nested failures are included: a
              later strike opens its window anew.
                  A = e^{−λ_all·D_all} · e^{−λ_part·s} · (1 − ℓR(1 − e^{−λ_unit(D − s)}))
              λ_unit = Σ λ_h·h/R strikes on one unit, ℓ share of the tokens lost with a missing unit (1/R: nobody
              helps). For ℓ = 1/R and stop-free windows this is exact.
Checkpoints   stops at rate λ_s lose what was not saved (Daly 2006, doi 10.1016/j.future.2004.11.016):
                  C = λ_s·Δ / (e^{λ_s(Δ + w)} − 1)
              λ_s = λ_all + the rate at which the last unit is lost, U·λ_unit·p(1 − p)^{U−1} with p = e^{−λ_unit·D}
              and the U = R − u units that do not wait for a host
              best Δ: x + e^{−x} = 1 + λ_s·w with x = λ_s(Δ + w); Young's √(2w/λ_s) is its first term
Spares        while more than S hosts are in repair, u units wait for a host with probability P(u) (``repair``). The
              others continue: strikes on parts of the job fall to λ_part·(R − u)/R, u units are missing besides those
              out for D, and with u = R nothing is trained
Slow spells   Poisson, of a fixed length; the least speed v of those under way counts. None of class c is under way
              with probability e^{−rate·lasts} (M/G/∞), so V = Σ_c v_c · P(c under way, none slower) + P(none),
              exactly; failures do not change it
Result        G = Σ_u P(u) · (1 − ℓu) · A_u · C_u · V

Where hosts do not fail while the job waits or restarts (``idle_hosts_fail`` False, R = 1), e^{−λD} becomes 1/(1 + λD).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

from scaleacross.cost_models.goodput.repair import waiting_units
from scaleacross.errors import InputError
from scaleacross.spec.goodput import FaultModel, LossCause, SlowSpell

COVERED: Final = 0.999
"""Share of the time in which the advised number of spares suffices."""
NEWTON_STEPS: Final = 40
MANY: Final = 1e5
MOST_IN_REPAIR: Final = 1e12


def periodic_share(between_s: float, recover_s: float, stall_s: float, num_units: int) -> float:
    """Useful share of the time when failures come evenly spaced, ``between_s`` apart; with one unit, all ranks restart.

    Raises:
        InputError: a failure comes before the last one is over.
    """
    if recover_s > between_s:
        raise InputError(
            f"recovery takes {recover_s:g} s but failures are {between_s:g} s apart: nothing is ever trained"
        )
    kept = 0.0 if num_units == 1 else max(recover_s - stall_s, 0.0) * (num_units - 1) / num_units
    return (between_s - recover_s + kept) / between_s


def useful_share(model: FaultModel) -> tuple[float, dict[LossCause, float]]:
    """Expected useful share of the time under Poisson failures, and the share lost by cause; all shares add up to 1."""
    total, lost = 0.0, dict[LossCause, float]()
    for waiting, chance in enumerate(waiting_units(model, _at_work(model)).tolist()):
        left = chance
        for cause, factor in _factors(model, waiting).items():
            lost[cause] = lost.get(cause, 0.0) + left * (1 - factor)
            left *= factor
        total += left
    return total, lost


def most_useful_share(model: FaultModel, fewest_hosts: int) -> float:
    """Upper bound on the useful share of a family of models.

    The family has at least the failures and units hit of ``model``, at least ``fewest_hosts`` hosts, no shorter repair
    times, and no more hosts and spares. Hosts in repair are stochastically fewest where fewest fail at each number of
    them, and so are waiting units. A share may rise with these (fewer units stall more rarely); then the largest share
    beyond counts.
    """
    if model.spares is None:
        return useful_share(model)[0]
    shares = [math.prod(_factors(model, waiting).values()) for waiting in range(model.num_units + 1)]
    most = [max(shares[waiting:]) for waiting in range(len(shares))]
    chances = waiting_units(model, _at_work(model), fewest_hosts).tolist()
    return sum(chance * most[waiting] for waiting, chance in enumerate(chances))


def _at_work(model: FaultModel) -> float:
    """Share of the time with nothing missing in which hosts can fail; below 1 only if restarting hosts cannot."""
    return 1.0 if model.idle_hosts_fail else _restart_factor(model)


def _restart_factor(model: FaultModel) -> float:
    """Share of the time outside of restarts of all units."""
    every = strike_rates(model)[0]
    windows_nest = model.idle_hosts_fail or model.num_units > 1
    return math.exp(-every * model.restart_s) if windows_nest else 1 / (1 + every * model.restart_s)


def _factors(model: FaultModel, waiting: int) -> dict[LossCause, float]:
    """Factor of each cause on the useful share, in this order, while ``waiting`` units wait for a host."""
    units = model.num_units
    going, lost = units - waiting, 1.0 if units == 1 else model.unit_loss
    whole = max(0.0, 1 - lost * waiting) if going else 0.0
    _, part, one = strike_rates(model)
    stall_s = min(model.stall_s, model.recover_s)
    out = whole - model.unit_loss * going * -math.expm1(-one * (model.recover_s - stall_s))
    stops_per_s = _stop_rate(model, going)
    kept, blocked = _checkpoint_factors(stops_per_s, model.checkpoint_interval_s, model.checkpoint_blocking_s)
    return {
        "waiting_for_host": whole,
        "restart": _restart_factor(model),
        "stall": math.exp(-part * stall_s * going / units),
        "units_out": max(out, 0.0) / whole if whole else 1.0,
        "checkpoint": blocked,
        "lost_work": kept,
        **({"slow_steps": mean_speed(model.slow_spells)} if model.slow_spells else {}),
    }


def mean_speed(spells: Sequence[SlowSpell]) -> float:
    """Expected speed over that without spells, in (0, 1]."""
    mean, none_slower = 0.0, 1.0
    for one in sorted(spells, key=lambda one: one.speed):
        idle = math.exp(-one.rate_per_s * one.lasts_s)
        mean += one.speed * none_slower * (1 - idle)
        none_slower *= idle
    return mean + none_slower


def strike_rates(model: FaultModel) -> tuple[float, float, float]:
    """Strikes per second that hit every unit, that hit some, and of the latter those on one given unit."""
    units = model.num_units
    every = sum(one.rate_per_s for one in model.strikes if one.units_hit == units)
    part = [one for one in model.strikes if one.units_hit < units]
    return every, sum(one.rate_per_s for one in part), sum(one.rate_per_s * one.units_hit / units for one in part)


def stop_rate(model: FaultModel) -> float:
    """Rate, per second of training, at which no unit is left, so that all return to the last checkpoint."""
    chances = waiting_units(model, _at_work(model))[: model.num_units].tolist()
    rates = [_stop_rate(model, model.num_units - waiting) for waiting in range(len(chances))]
    trained = sum(chances)
    return sum(map(operator.mul, chances, rates)) / trained if trained else strike_rates(model)[0]


def _stop_rate(model: FaultModel, going: int) -> float:
    """``stop_rate`` while ``going`` units do not wait for a host."""
    every, part, one = strike_rates(model)
    if not part or not going:
        return every
    up = math.exp(-one * model.recover_s)
    return every + min(part, going * one * up * (1 - up) ** (going - 1))


def _checkpoint_factors(stops_per_s: float, interval_s: float | None, blocking_s: float) -> tuple[float, float]:
    """Share of training kept despite restarts from a checkpoint, and share of the time not blocked by checkpoints."""
    if interval_s is None:
        return 1.0, 1.0
    blocked = interval_s / (interval_s + blocking_s)
    exponent = stops_per_s * (interval_s + blocking_s)
    # the fraction below tends to 1 here, and ``expm1`` overflows for large exponents, where it tends to 0
    if exponent < 1e-12:
        return 1.0, blocked
    return (exponent / math.expm1(exponent) if exponent < 700 else 0.0), blocked


def best_interval_s(stops_per_s: float, blocking_s: float) -> float | None:
    """Seconds of training between checkpoints that lose least; None if nothing stops, 0 if a checkpoint is free."""
    if stops_per_s <= 0:
        return None
    blocked = stops_per_s * blocking_s
    x = math.sqrt(2 * blocked) or 0.0
    for _ in range(NEWTON_STEPS):
        if x <= 0:
            return 0.0
        # Newton's method on x + e^{−x} = 1 + λ_s·w, from Young's interval
        x -= (x + math.expm1(-x) - blocked) / -math.expm1(-x)
    return x / stops_per_s - blocking_s


def waiting_loss(model: FaultModel) -> float:
    """Share of the tokens lost to units that wait for a host because all spares are in repair."""
    lost = 1.0 if model.num_units == 1 else model.unit_loss
    chances = waiting_units(model, _at_work(model)).tolist()
    return sum(
        chance * (1.0 if waiting == model.num_units else min(1.0, lost * waiting))
        for waiting, chance in enumerate(chances)
    )


def poisson_tail(mean: float, at_most: int) -> float:
    """P(Poisson(mean) > at_most)."""
    if mean == 0:
        return 0.0
    # logarithms, because powers and factorials of many hosts overflow
    terms = [math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(at_most + 1)]
    return max(0.0, 1 - math.fsum(terms))


def spares_needed(mean: float) -> int:
    """Least S with P(Poisson(mean) > S) ≤ 1 − COVERED; above MANY by two terms of Cornish and Fisher, to one host.

    Raises:
        InputError: the mean exceeds any number of hosts.
    """
    if not mean < MOST_IN_REPAIR:
        raise InputError(
            f"{mean:.3g} hosts would be in repair at a time: state longer times between failures or a shorter repair_hours"
        )
    if mean > MANY:
        z = NormalDist().inv_cdf(COVERED)
        return math.ceil(mean + z * math.sqrt(mean) + (z * z - 1) / 6)
    spares, below = 0, math.exp(-mean)
    if mean > 500:  # exp underflows: start near the quantile
        spares = int(mean)
        below = 1 - poisson_tail(mean, spares)
    while below < COVERED:
        spares += 1
        below += math.exp(spares * math.log(mean) - mean - math.lgamma(spares + 1))
    return spares


def failures_until_group_lost(num_groups: int, copies: int) -> float:
    """Mean number of failures that ``num_groups`` groups survive when every shard has ``copies`` holders.

    Γ(1/r)/r · N^{1 − 1/r}, arXiv 2603.00357.
    """
    return math.gamma(1 / copies) / copies * float(num_groups) ** (1 - 1 / copies)
