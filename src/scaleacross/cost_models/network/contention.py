"""Rates and finishing times of communicators that use the same links at the same moment, and what queues where many meet.

Flows that are alike form a class: the groups of one communicator do the same at the same time. C classes share L links
(uplinks, trunks); a flow of class c cannot exceed ``cap`` (its NICs, its window over the round trip), and n[l, c] of its flows
cross link l (0: it does not; 0.5: half of its bytes do). Rates are max-min fair: nobody can be given more without taking from
somebody who has no more, which is what per-flow congestion control aims at. They are found by progressive filling:

    1. all rates rise together until a class reaches its cap or a link is full:
       limit = min(min_c cap_c, min_l (capacity_l − Σ_stopped n_lc·r_c) / Σ_rising n_lc)
    2. classes at their cap or on a full link stop there; the others go on. At most C rounds.

Hence r ≤ cap, Σ_c n_lc·r_c ≤ capacity_l, and every class is at its cap or crosses a full link on which nobody is faster.
Source: Bertsekas and Gallager, Data Networks (1992), section 6.5.2.

Finishing times let each class move its bytes at these rates and fill again whenever one has ended (fluid limit: no packets,
rates change at once).

All arrays broadcast: ``cap`` and ``size`` (..., C), ``num_flows`` (..., L, C), ``capacity`` (..., L).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_SLACK = 1e-12  # relative; two limits closer than this are reached together


def fair_rates_bytes_per_s(cap_bytes_per_s: ArrayLike, num_flows: ArrayLike, capacity_bytes_per_s: ArrayLike) -> Floats:
    """Max-min fair rate of one flow of every class, (..., C); inf for a class with neither a cap nor a link.

    Args:
        cap_bytes_per_s: (..., C) what one flow reaches alone; inf for no limit, 0 for a class that is silent.
        num_flows: (..., L, C) flows of the class that cross the link.
        capacity_bytes_per_s: (..., L).
    """
    cap, flows, capacity = _together(cap_bytes_per_s, num_flows, capacity_bytes_per_s)
    return _filled(cap, flows, capacity)


def finish_s(
    size_bytes: ArrayLike, cap_bytes_per_s: ArrayLike, num_flows: ArrayLike, capacity_bytes_per_s: ArrayLike
) -> Floats:
    """Seconds until every class has moved ``size_bytes`` (..., C) per flow when all start together, (..., C).

    Never less than alone (``alone_s``), never more than one after the other. A class without bytes ends at 0; one that gets no
    rate never ends (inf).
    """
    cap, flows, capacity = _together(cap_bytes_per_s, num_flows, capacity_bytes_per_s)
    left, cap = np.broadcast_arrays(np.asarray(size_bytes, dtype=np.float64), cap)
    left, done, now = left.copy(), left <= 0, np.zeros(left.shape[:-1])
    end = np.zeros_like(left)
    for _ in range(left.shape[-1]):
        rate = _filled(np.where(done, 0.0, cap), flows, capacity)
        with np.errstate(divide="ignore", invalid="ignore"):
            need = np.where(done, np.inf, left / rate)
        step = need.min(axis=-1)
        running = np.isfinite(step)
        now = now + np.where(running, step, 0.0)
        ends = ~done & running[..., None] & (need <= step[..., None] * (1 + _SLACK))
        moved = np.where(np.isinf(rate) | done, 0.0, rate) * np.where(running, step, 0.0)[..., None]
        end, left, done = np.where(ends, now[..., None], end), np.maximum(left - moved, 0.0), done | ends
    return np.where(done, end, np.inf)


def alone_s(
    size_bytes: ArrayLike, cap_bytes_per_s: ArrayLike, num_flows: ArrayLike, capacity_bytes_per_s: ArrayLike
) -> Floats:
    """Seconds of every class when the other classes are silent: size / min(cap, min_l capacity_l / n_lc), (..., C)."""
    cap, flows, capacity = _together(cap_bytes_per_s, num_flows, capacity_bytes_per_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(flows > 0, capacity[..., None] / flows, np.inf).min(axis=-2, initial=np.inf)
        size = np.asarray(size_bytes, dtype=np.float64)
        return np.where(size > 0, size / np.minimum(cap, share), 0.0)


def incast_queue_bytes(
    num_senders: ArrayLike, window_bytes: ArrayLike, port_bytes_per_s: ArrayLike, one_way_latency_s: ArrayLike
) -> Floats:
    """Bytes that pile up before a port when senders with a window each send to it at once: max(0, n·w − B·RTT).

    Conservation: n·w bytes are under way, the pipe of rate B holds B·RTT of them, the rest waits in the switch (or is paused, or
    dropped, where the buffer is smaller). Per-distance windows keep it small; that is their purpose.
    """
    under_way = np.asarray(num_senders, dtype=np.float64) * np.asarray(window_bytes, dtype=np.float64)
    pipe = np.asarray(port_bytes_per_s, dtype=np.float64) * 2 * np.asarray(one_way_latency_s, dtype=np.float64)
    return np.asarray(np.maximum(0.0, under_way - pipe))


def _together(cap: ArrayLike, num_flows: ArrayLike, capacity: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """The three with equal leading dimensions."""
    caps, flows, links = (np.asarray(one, dtype=np.float64) for one in (cap, num_flows, capacity))
    lead = np.broadcast_shapes(caps.shape[:-1], flows.shape[:-2], links.shape[:-1])
    classes = np.broadcast_shapes(caps.shape[-1:], flows.shape[-1:])
    num_links = np.broadcast_shapes(links.shape[-1:], flows.shape[-2:-1])
    return (
        np.broadcast_to(caps, (*lead, *classes)),
        np.broadcast_to(flows, (*lead, *num_links, *classes)),
        np.broadcast_to(links, (*lead, *num_links)),
    )


def _filled(cap: Floats, flows: Floats, capacity: Floats) -> Floats:
    """Progressive filling of ``fair_rates_bytes_per_s``, leading dimensions side by side."""
    rates, rising = np.where(cap > 0, np.inf, 0.0), cap > 0
    while rising.any():
        load = (flows * rising[..., None, :]).sum(axis=-1)
        taken = (flows * np.where(rising, 0.0, rates)[..., None, :]).sum(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.where(load > 0, np.maximum(capacity - taken, 0.0) / load, np.inf)
        lowest_cap = np.where(rising, cap, np.inf).min(axis=-1, initial=np.inf)
        limit = np.minimum(level.min(axis=-1, initial=np.inf), lowest_cap)[..., None]
        full = level <= limit * (1 + _SLACK)
        stopped_by_link = ((flows > 0) & full[..., None]).any(axis=-2)
        stops = rising & (np.isinf(limit) | (cap <= limit * (1 + _SLACK)) | stopped_by_link)
        rates = np.where(stops, limit, rates)
        rising = rising & ~stops
    return rates
