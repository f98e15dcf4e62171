"""Published shares of useful time next to our closed forms and long-run simulation, from published inputs only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from scaleacross.cost_models.goodput.share import (
    best_interval_s,
    failures_until_group_lost,
    periodic_share,
    useful_share,
)
from scaleacross.errors import InputError
from scaleacross.simulation.long_run import long_run
from scaleacross.spec.goodput import FaultModel, Strike, TracedFailure

MINUTE, HOUR = 60.0, 3600.0

FT_HSDP: Final = "arXiv 2602.00277 (abstract; 10 and 3 min second-hand)"
POOL: Final = "github.com/inigogonzalezgarcia/12-gpu-goodput-mtbi, docs/results.md, scenarios/"
SPARE: Final = "arXiv 2603.00357"
LLAMA: Final = "arXiv 2407.21783, section 3.3.4"


@dataclass(frozen=True)
class PublishedRow:
    """One published share and ours, all as fractions of all time. ``note`` names a differing definition."""

    setting: str
    source: str
    published: float
    closed_form: float
    simulated: float | None
    note: str = ""

    @property
    def difference(self) -> float:
        """Closed form minus published, as a fraction of all time."""
        return self.closed_form - self.published


def published_goodput(draws: int = 100, seed: int = 0) -> tuple[PublishedRow, ...]:
    """Return the rows of all publications.

    Raises:
        InputError: ``draws`` is below 1.
    """
    if draws < 1:
        raise InputError(f"{draws} draws simulate nothing: give 1 or more")
    return (*_ft_hsdp(draws, seed), *_pool(draws, seed), *_grouped(), _llama(draws, seed))


def ft_hsdp(num_units: int, between_s: float = 18 * MINUTE) -> FaultModel:
    """Return FT-HSDP on 98,304 accelerators: a failure every 18 min, 10 min to recover, 3 min of stall for the others."""
    return FaultModel(
        num_units=num_units,
        strikes=(Strike(cause="host", rate_per_s=1 / between_s, units_hit=1),),
        recover_s=10 * MINUTE,
        restart_s=10 * MINUTE,
        stall_s=3 * MINUTE,
        unit_loss=1 / num_units,
    )


def _ft_hsdp(draws: int, seed: int) -> Iterator[PublishedRow]:
    """Yield rows of FT-HSDP. The published pair assumes evenly spaced failures; Poisson failures overlap, which loses
    less.
    """
    days, between_s = 54.0, 18 * MINUTE
    even = [TracedFailure(time_s=n * between_s) for n in range(int(days * 24 * HOUR / between_s))]
    for units, published in ((1, 0.44), (12, 0.80)):
        model, what = ft_hsdp(units), f"{'restart all' if units == 1 else f'{units} fault units'}, failures"
        simulated = long_run(model, days=days, draws=1, seed=seed, trace=even).goodput_fraction["mean"]
        share = periodic_share(between_s, model.recover_s, model.stall_s, units)
        yield PublishedRow(f"{what} evenly spaced", FT_HSDP, published, share, simulated)
    for units, computed in ((1, 0.571), (12, 0.823)):
        model, what = ft_hsdp(units), f"{'restart all' if units == 1 else f'{units} fault units'}, failures"
        simulated = long_run(model, days=days, draws=draws, seed=seed).goodput_fraction["mean"]
        note = "no published figure: an independent simulation of the same inputs"
        yield PublishedRow(f"{what} Poisson", FT_HSDP, computed, useful_share(model)[0], simulated, note)


NODES_PER_HOUR, JOBS_PER_HOUR = 128 / 3000, 1 / 40


def pool(interval_min: float, blocking_min: float, spares: int, hang_min: float) -> FaultModel:
    """Return the model of 1,024 accelerators in a public simulator; arguments in minutes, except ``spares`` (hosts).

    Nodes fail every 3,000 h, software every 40 h; restart takes 20 min, repair 48 h. Crashes are noticed in 1 to 5 min,
    hangs (45 % of node failures, 40 % of the others) in ``hang_min``. 70 % of the node failures take the node. Hosts of
    a job that waits or restarts do not fail.
    """
    node_min = 0.25 * 3 + 0.2 * 3 + 0.1 * 5 + 0.45 * hang_min
    job_min = 0.6 * 1 + 0.4 * hang_min
    detect_min = (NODES_PER_HOUR * node_min + JOBS_PER_HOUR * job_min) / (NODES_PER_HOUR + JOBS_PER_HOUR)
    stop_s = (20 + detect_min) * MINUTE
    return FaultModel(
        num_units=1,
        strikes=(
            Strike(cause="host", rate_per_s=NODES_PER_HOUR / HOUR, units_hit=1, host_swap_fraction=0.7),
            Strike(cause="software", rate_per_s=JOBS_PER_HOUR / HOUR, units_hit=1),
        ),
        recover_s=stop_s,
        restart_s=stop_s,
        stall_s=0,
        unit_loss=1,
        checkpoint_interval_s=interval_min * MINUTE,
        checkpoint_blocking_s=blocking_min * MINUTE,
        spares=spares,
        repair_s=48 * HOUR,
        idle_hosts_fail=False,
    )


def _pool(draws: int, seed: int) -> Iterator[PublishedRow]:
    rows = (
        ("checkpoint of 5 min every 30", pool(30, 5, 4, 30), 0.796),
        ("Daly's interval, 91 min", pool(91, 5, 4, 30), 0.851),
        ("asynchronous, blocks 0.5 min", pool(30, 0.5, 4, 30), 0.917),
        ("no spares", pool(30, 5, 0, 30), 0.361),
        ("asynchronous, Daly, 8 spares, hangs seen in 5 min", pool(29.8, 0.5, 8, 5), 0.940),
        ("every 10 min", pool(10, 5, 4, 30), 0.627),
        ("every 75 min", pool(75, 5, 4, 30), 0.849),
        ("every 300 min", pool(300, 5, 4, 30), 0.776),
    )
    for setting, model, published in rows:
        simulated = long_run(model, days=28, draws=draws, seed=seed).goodput_fraction["mean"]
        note = "published: 20 draws of 28 days, 26 to 47 % between p10 and p90" if model.spares == 0 else ""
        yield PublishedRow(f"1,024 accelerators, {setting}", POOL, published, useful_share(model)[0], simulated, note)


def _grouped() -> Iterator[PublishedRow]:
    """Yield availability rows of SPARe: a failure every 5 min, restart 60 min, checkpoints of 60 s."""
    for groups, published in ((200, 0.870), (600, 0.939), (1000, 0.965)):
        copies = math.floor(math.log2(groups) + 0.833)
        between_s = failures_until_group_lost(groups, copies) * 5 * MINUTE
        interval_s = best_interval_s(1 / between_s, 60) or math.inf
        available = between_s / (between_s + HOUR) * interval_s / (interval_s + 60)
        note = f"{copies} copies of every shard; availability: neither restarting nor writing a checkpoint"
        yield PublishedRow(f"600,000 accelerators in {groups} groups", SPARE, published, available, None, note)


def _llama(draws: int, seed: int) -> PublishedRow:
    """Return the row of Llama 3: 16,384 accelerators, 54 days, 419 unexpected and 47 planned interruptions."""
    stop_s = 10 * MINUTE
    model = FaultModel(
        num_units=1,
        strikes=(Strike(cause="host", rate_per_s=466 / (54 * 24 * HOUR), units_hit=1),),
        recover_s=stop_s,
        restart_s=stop_s,
        stall_s=0,
        unit_loss=1,
    )
    run = long_run(model, days=54, draws=draws, seed=seed)
    least, most = run.interruptions_range["p5"], run.interruptions_range["p95"]
    note = (
        f"published: more than 90 %, and 466 interruptions; p5 to p95 {run.goodput_fraction['p5']:.1%} to "
        f"{run.goodput_fraction['p95']:.1%}, {least:.0f} to {most:.0f}. "
        "Not published: the restart time (10 min here, as above) and lost work (none here)"
    )
    return PublishedRow(
        "16,384 accelerators, 466 interruptions in 54 days",
        LLAMA,
        0.90,
        useful_share(model)[0],
        run.goodput_fraction["mean"],
        note,
    )
