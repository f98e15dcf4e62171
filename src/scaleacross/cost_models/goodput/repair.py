"""Number of fault units that wait for a repaired host: the machine-repair problem with spares and ample repair crews.

Symbols       N hosts of the job, S spare hosts, R fault units; σ hosts of a complete job that fail per s, τ time to
              repair one; n hosts in repair, m = max(0, n − S) hosts that the job lacks
Units         the units that lack hosts lend theirs to one another, so that the fewest wait: u(n) = min(R, ⌈m·R/N⌉)
Failures      a host in repair does not fail. Hosts of a unit that waits do (they are on, and published rates count days
              of nodes and not of work) or do not (``idle_hosts_fail``): b(n) = σ·(1 − m/N), or σ·(1 − u/R)
Law           births b(n), deaths n/τ:  p_n ∝ Π_{k<n} b(k)·τ/(k + 1),  P(u) = Σ p_n over u(n) = u

This is Palm's machine interference with spares and ample repair (Gross and Harris, Fundamentals of Queueing Theory,
section "Finite-source queues", case of spares; Engset's formula is its case of S = 0 and one host a unit). As nobody
waits for a repair crew, p_n depends on the mean of τ alone. With N infinite it is P(Poisson(στ) > S). If hosts that
wait do not fail either, it is Erlang's B(S + 1, στ).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.spec.goodput import FaultModel

DEVIATIONS: Final = 12
"""Standard deviations of a Poisson law above its mean at which sums over hosts in repair end, plus BEYOND hosts."""
BEYOND: Final = 60


def waiting_units(model: FaultModel, at_work: float = 1.0, fewest_hosts: int | None = None) -> Floats:
    """Share of the time in which 0, 1, … R units wait for a host.

    Args:
        at_work: where hosts of a restarting job do not fail, the share of the time with nothing missing in which they
            can.
        fewest_hosts: replaces N in the failure rate if lower. No distribution of a job with at least so many hosts has
            fewer in repair.
    """
    units, spares = model.num_units, model.spares
    load = model.swaps_per_s * model.repair_s
    if spares is None or load == 0:
        return np.array([1.0])
    hosts = math.inf if model.num_hosts is None else float(model.num_hosts)
    most = load + DEVIATIONS * math.sqrt(load) + BEYOND
    in_repair = np.arange(1 + math.ceil(min(hosts, most) + min(spares, most)))
    missing = np.maximum(0, in_repair - spares)
    short: Ints = np.minimum(units, units_short(missing, units, model.num_hosts))
    if model.idle_hosts_fail:
        births: Floats = np.maximum(0.0, 1 - missing / (hosts if fewest_hosts is None else min(hosts, fewest_hosts)))
    else:
        births = (1 - short / units) * (at_work if units == 1 else 1.0)
    with np.errstate(divide="ignore"):
        # products of many births over deaths overflow, so they are summed as logarithms
        logs = np.concatenate([[0.0], np.cumsum(np.log(births[:-1] * load / in_repair[1:]))])
    share = np.exp(logs - logs.max())
    out: Floats = np.bincount(short, weights=share / share.sum()).astype(np.float64)
    return out


def units_short(missing: Ints, units: int, num_hosts: int | None) -> Ints:
    """Units that cannot be complete without ``missing`` hosts; at most 1 where a unit has infinitely many hosts."""
    if num_hosts is None:
        return np.minimum(missing, 1)
    out: Ints = -(-missing * units // num_hosts)
    return out
