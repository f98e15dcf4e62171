"""Closed forms of the share of useful time.

Symbols       λ failures per second of the job; R fault units; D time until a unit that was hit is back; s time that everybody
              stalls; Δ training between checkpoints, w time that one blocks; S spare hosts, ρ = hosts failing per s · repair time
Periodic      failures M = 1/λ apart:  G = (M − D)/M for R = 1;  ((M − D) + (D − s)(R − 1)/R)/M with fault units
Poisson       a strike that hits all units stops everybody for D_all; a strike that hits h < R units takes these for D and stalls
              the others for s. A unit trains at an instant if none of these windows is open, and windows of a Poisson process are
              open with probability 1 − e^{−rate·window}. Nested failures are in it: a later strike opens its window anew.
                  A = e^{−λ_all·D_all} · e^{−λ_part·s} · (1 − ℓR(1 − e^{−λ_unit(D − s)}))
              λ_unit = Σ λ_h·h/R strikes on one unit, ℓ share of the tokens that a missing unit takes (1/R: nobody helps).
              For ℓ = 1/R and stop-free windows this is exact.
Checkpoints   stops at rate λ_s lose what was not saved (Daly 2006, doi 10.1016/j.future.2004.11.016):
                  C = λ_s·Δ / (e^{λ_s(Δ + w)} − 1)
              λ_s = λ_all + the rate at which the last unit goes, R·λ_unit·p(1 − p)^{R−1} with p = e^{−λ_unit·D};
              R − 1 units while one waits for a host
              best Δ: x + e^{−x} = 1 + λ_s·w with x = λ_s(Δ + w); Young's √(2w/λ_s) is its first term
Spares        a host is missing with probability P(Poisson(ρ) > S); where hosts of a waiting job do not fail, with Erlang's
              B(S + 1, ρ) instead. One unit waits; the whole job where R = 1.
Slow spells   Poisson, of a fixed length; the least speed v of those under way counts. None of class c is under way with
              probability e^{−rate·lasts} (M/G/∞), so V = Σ_c v_c · P(c under way, none slower) + P(none),
              exactly; failures do not change it
Result        G = A · C · (1 − P_wait·ℓ) · V

Where hosts do not fail while the job waits or restarts (``idle_hosts_fail`` False, R = 1), e^{−λD} becomes 1/(1 + λD).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

from scaleacross.errors import InputError
from scaleacross.spec.goodput import FaultModel, LossCause, SlowSpell

COVERED: Final = 0.999
"""Share of the time that the spares advised are enough for."""
NEWTON_STEPS: Final = 40
MANY: Final = 1e5
MOST_IN_REPAIR: Final = 1e12


def periodic_share(between_s: float, recover_s: float, stall_s: float, num_units: int) -> float:
    """Useful share of the time when failures come evenly spaced, ``between_s`` apart; one unit: everybody restarts.

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
    """Expected useful share of the time under Poisson failures, and the share lost by cause; together they are 1."""
    factors = _factors(model)
    left, lost = 1.0, dict.fromkeys(factors, 0.0)
    for cause, factor in factors.items():
        lost[cause] = left * (1 - factor)
        left *= factor
    return left, lost


def _factors(model: FaultModel) -> dict[LossCause, float]:
    units = model.num_units
    every, part, one = strike_rates(model)
    stall_s = min(model.stall_s, model.recover_s)
    windows_nest = model.idle_hosts_fail or units > 1
    restart = math.exp(-every * model.restart_s) if windows_nest else 1 / (1 + every * model.restart_s)
    out = 1 - model.unit_loss * units * -math.expm1(-one * (model.recover_s - stall_s))
    kept, blocked = _checkpoint_factors(stop_rate(model), model.checkpoint_interval_s, model.checkpoint_blocking_s)
    lost = 1.0 if units == 1 else model.unit_loss
    return {
        "waiting_for_host": 1 - lost * waiting_share(model, restart),
        "restart": restart,
        "stall": math.exp(-part * stall_s),
        "units_out": max(out, 0.0),
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
    """Times per second that no unit is left, so that all go back to the last checkpoint."""
    every, part, one = strike_rates(model)
    if not part:
        return every
    up = math.exp(-one * model.recover_s)

    def last_goes(units: int) -> float:
        return units * one * up * (1 - up) ** (units - 1) if units else 0.0

    absent = waiting_share(model)
    return every + min(part, (1 - absent) * last_goes(model.num_units) + absent * last_goes(model.num_units - 1))


def _checkpoint_factors(stops_per_s: float, interval_s: float | None, blocking_s: float) -> tuple[float, float]:
    """What restarts from a checkpoint leave, and what blocking leaves."""
    if interval_s is None:
        return 1.0, 1.0
    blocked = interval_s / (interval_s + blocking_s)
    exponent = stops_per_s * (interval_s + blocking_s)
    if exponent < 1e-12:
        return 1.0, blocked
    return (exponent / math.expm1(exponent) if exponent < 700 else 0.0), blocked


def best_interval_s(stops_per_s: float, blocking_s: float) -> float | None:
    """Training between checkpoints that loses least, seconds; None where nothing stops, 0 where a checkpoint is free."""
    if stops_per_s <= 0:
        return None
    blocked = stops_per_s * blocking_s
    x = math.sqrt(2 * blocked) or 0.0
    for _ in range(NEWTON_STEPS):
        if x <= 0:
            return 0.0
        x -= (x + math.expm1(-x) - blocked) / -math.expm1(-x)
    return x / stops_per_s - blocking_s


def waiting_share(model: FaultModel, at_work: float = 1.0) -> float:
    """Share of the time that a host is missing because all spares are being repaired.

    ``at_work``: share of the rest of the time in which hosts can fail, where those of a job that waits do not.
    """
    if model.spares is None:
        return 0.0
    load = model.swaps_per_s * model.repair_s
    if model.idle_hosts_fail or model.num_units > 1:
        return poisson_tail(load, model.spares)
    return erlang_loss(model.spares + 1, load * at_work)


def poisson_tail(mean: float, at_most: int) -> float:
    """P(Poisson(mean) > at_most)."""
    if mean == 0:
        return 0.0
    terms = [math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(at_most + 1)]
    return max(0.0, 1 - math.fsum(terms))


def spares_needed(mean: float) -> int:
    """Least S with P(Poisson(mean) > S) ≤ 1 − COVERED; beyond MANY by two terms of Cornish and Fisher, to one host.

    Raises:
        InputError: the mean is no number that hosts can have.
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


def erlang_loss(servers: int, load: float) -> float:
    """Erlang's loss probability B(servers, load)."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


def failures_until_group_lost(num_groups: int, copies: int) -> float:
    """Failures that ``num_groups`` groups survive in the mean when every shard has ``copies`` holders.

    Γ(1/r)/r · N^{1 − 1/r}, arXiv 2603.00357.
    """
    return math.gamma(1 / copies) / copies * float(num_groups) ** (1 - 1 / copies)
