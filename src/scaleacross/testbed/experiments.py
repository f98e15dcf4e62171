"""Training measurements of the testbed's page: a job over several inter-building links, and one that is halved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scaleacross.errors import InputError
from scaleacross.spec.testbed import Bar, Degraded, TrainingResults, TrainingSetting
from scaleacross.spec.topology import Topology
from scaleacross.testbed.collectives import off_bar
from scaleacross.testbed.conditions import conditions, load_average
from scaleacross.testbed.degrading import degrade
from scaleacross.testbed.session import standing
from scaleacross.testbed.training import OURS, Calibrated, Say, calibrate, contest_of, on_topology, train_all

PRODUCTION: Final = "production"
THIN_BYTES_PER_S: Final = 200e6 / 8
"""Inter-building links of at most this rate are called thin."""
LOSS_TOLERANCE: Final = 1e-3
NOISE: Final = 0.05
"""Fraction of a step by which ours may be slower than production before it counts."""


@dataclass(frozen=True)
class Trunks:
    """Rate (bytes/s) and one-way latency (s) of all inter-building links of a setting."""

    rate_bytes_per_s: float
    delay_s: float

    def __str__(self) -> str:
        return f"{self.rate_bytes_per_s * 8e-6:g} Mbit/s, {self.delay_s * 1e3:g} ms"


TWO_BUILDINGS: Final = (
    Trunks(100e6 / 8, 0.0),
    Trunks(100e6 / 8, 20e-3),
    Trunks(400e6 / 8, 5e-3),
    Trunks(1e9 / 8, 0.0),
)
THREE_BUILDINGS: Final = (Trunks(200e6 / 8, 2e-3), Trunks(400e6 / 8, 10e-3))


def measure_training(
    stated: Calibrated,
    other: Calibrated | None,
    name: str,
    folder: Path,
    num_steps: int,
    say: Say,
    two: Sequence[Trunks] = TWO_BUILDINGS,
    three: Sequence[Trunks] = THREE_BUILDINGS,
    halved: Calibrated | None = None,
) -> Iterator[TrainingResults]:
    """Calibrate, plan and train in every setting; then halve a link. Yield the results so far after each of them.

    Args:
        stated: the job on two buildings.
        other: a job on three; None: settings of two buildings only.
        name: name of the testbeds that are made.
        halved: another job, one of whose inter-building links is halved in mid-run; None: none is.

    Raises:
        InputError: this machine cannot emulate a topology, or production has no plan that can be trained.
        EmulationError: a rank failed.
    """
    before, fixed = load_average(), False
    settings: list[TrainingSetting] = []
    cores: dict[str, Topology] = {}

    def so_far(degraded: Degraded | None = None) -> TrainingResults:
        held = tuple(bars(settings, degraded))
        where = conditions(before, fixed)
        return TrainingResults(conditions=where, settings=tuple(settings), degraded=degraded, bars=held)

    places = [(stated, trunks) for trunks in two] + ([] if other is None else [(other, trunks) for trunks in three])
    for number, (job, trunks) in enumerate(places, 1):
        place = on_topology(job, with_trunks(job.topology, trunks))
        say(f"setting {number} of {len(places)}: {job.topology.name}, {trunks}")
        here = folder / f"setting-{number}"
        with standing(place.topology, name) as testbed:
            fixed = testbed.fixed_shares
            known = calibrate(testbed, place, here, say, cores.get(job.topology.name))
            cores[job.topology.name] = known.topology
            contest = contest_of(known, None)
            if PRODUCTION in contest.refused:
                raise InputError(
                    f"{PRODUCTION}, which all is held against, is not trained: {contest.refused[PRODUCTION]}"
                )
            settings.append(train_all(testbed, known, contest, num_steps, here, say))
        yield so_far()
    if halved is not None:
        yield so_far(measure_halved(halved, name, folder / "halved", num_steps, say))


def measure_halved(stated: Calibrated, name: str, folder: Path, num_steps: int, say: Say) -> Degraded:
    """Calibrate, then ``degrade``. Raises what that raises."""
    say(f"halving a trunk under {stated.job.name}")
    with standing(stated.topology, name) as testbed:
        known = calibrate(testbed, stated, folder, say)
        return degrade(testbed, known, max(4, num_steps // 2), folder, say)


def with_trunks(topology: Topology, trunks: Trunks) -> Topology:
    """Return ``topology`` with all its inter-building links like ``trunks``."""
    update: dict[str, Any] = {
        "bandwidth_bytes_per_s": trunks.rate_bytes_per_s,
        "one_way_latency_s": trunks.delay_s,
        "oversubscription_ratio": 1.0,
    }
    return topology.model_copy(update={"trunks": tuple(one.model_copy(update=update) for one in topology.trunks)})


def bars(settings: Sequence[TrainingSetting], degraded: Degraded | None) -> Iterator[Bar]:
    """Yield what must hold of training."""
    gains = [setting.speed_up(PRODUCTION) for setting in settings]
    yield Bar(
        what="our step is never slower than production's by more than noise",
        wanted=f"speed-up ≥ {1 - NOISE:g}x",
        measured=", ".join(f"{gain:.2f}x" for gain in gains),
        is_met=min(gains) >= 1 - NOISE,
    )
    thin = [gain for gain, s in zip(gains, settings, strict=True) if s.thinnest_bytes_per_s <= THIN_BYTES_PER_S]
    if thin:
        yield Bar(
            what="speed-up over production, trunks ≤ 200 Mbit/s",
            wanted="≥ 1.5x",
            measured=", ".join(f"{gain:.2f}x" for gain in thin),
            is_met=min(thin) >= 1.5,
        )
    gains = [min(plan.measured_s / s.ours.measured_s for plan in s.plans[1:]) for s in settings]
    yield Bar(
        what="our step is never slower than any baseline's by more than noise",
        wanted=f"speed-up over the best ≥ {1 - NOISE:g}x",
        measured=", ".join(f"{gain:.2f}x" for gain in gains),
        is_met=min(gains) >= 1 - NOISE,
    )
    off = [plan.off_fraction for setting in settings for plan in setting.plans if plan.name == OURS]
    yield off_bar("predicted step of our plans", off, 0.1, 0.25)
    every = [plan.off_fraction for setting in settings for plan in setting.plans if plan.same_as is None]
    yield off_bar("predicted step of all plans", every, 0.1, 0.25)
    apart = max(setting.loss_difference_fraction for setting in settings)
    yield Bar(
        what="losses of all plans are equal, step by step",
        wanted=f"within {LOSS_TOLERANCE:.1%}",
        measured=f"{apart:.1e}",
        is_met=apart <= LOSS_TOLERANCE,
    )
    if degraded is not None:
        hosts = " → ".join(degraded.named) or "no link"
        yield Bar(
            what="trunk halved in mid-run: the trace names its link",
            wanted=f"a link across {degraded.trunk}",
            measured=f"{degraded.verdict}: {hosts}",
            is_met=degraded.is_right,
        )
        gain = degraded.old.measured_s / degraded.new.measured_s
        yield Bar(
            what="planned again with the measured link, over the old plan",
            wanted="> 1x",
            measured=f"{gain:.2f}x",
            is_met=gain > 1,
        )
