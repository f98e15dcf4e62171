"""Halves the rate of an inter-building link in mid-run: the trace must name it, and a new plan must be faster.

The initial rate is searched: the one at which a plan for half of it gains most over the plan for the whole.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Final

from scaleacross import api
from scaleacross.emitters.launch import launch_config
from scaleacross.errors import InputError
from scaleacross.spec.plan import Plan
from scaleacross.spec.testbed import Degraded
from scaleacross.spec.topology import Topology
from scaleacross.testbed import fabric
from scaleacross.testbed.cases import time_cases
from scaleacross.testbed.layout import TrunkWire
from scaleacross.testbed.link_figures import link_cases, link_figures, measured_topology
from scaleacross.testbed.session import Testbed
from scaleacross.testbed.training import Calibrated, Say, on_topology, train

RATES_BYTES_PER_S: Final = tuple(megabits * 1e6 / 8 for megabits in (100, 150, 200, 300, 400, 600, 800, 1200, 1600))
LEAST_GAIN: Final = 1.02
SLOW_RATIO: Final = 1.25


def telling_rate(known: Calibrated) -> tuple[float, Plan]:
    """Return (rate, plan) of the first inter-building link: where halving it makes another plan gain most.

    Raises:
        InputError: at all rates another plan gains hardly anything.
    """
    best: tuple[float, float, Plan | None] = (0.0, 0.0, None)
    for rate in RATES_BYTES_PER_S:
        whole, half = (on_topology(known, _at(known.topology, r)).job for r in (rate, rate / 2))
        plan = api.plan(whole)
        gain = api.evaluate((half, plan.decision)).cost.step_s / api.plan(half).cost.step_s
        best = max(best, (gain, rate, plan), key=lambda found: found[0])
    most, at, chosen = best
    if chosen is None or most < LEAST_GAIN:
        raise InputError(
            f"{known.job.name}: with half of its inter-building link another plan is at most {most:.2f}x faster, at rates from "
            f"{RATES_BYTES_PER_S[0] * 8e-6:g} to {RATES_BYTES_PER_S[-1] * 8e-6:g} Mbit/s; take one with more tokens per parameter"
        )
    return at, chosen


def degrade(testbed: Testbed, known: Calibrated, num_steps: int, folder: Path, say: Say) -> Degraded:
    """Train, halve the first inter-building link, diagnose the trace, measure, plan again, and train both plans.

    Args:
        testbed: two buildings or more; the rate of the first inter-building link is changed.
        known: the job as calibrated there.
        num_steps: steps before the change, and of each plan on the slower link; three times as many run after the
            change.

    Raises:
        InputError: the link makes no difference at any rate.
        EmulationError: a rank failed.
    """
    rate, old = telling_rate(known)
    wire = testbed.layout.trunks[0]
    fabric.set_trunk(wire, rate)
    say(f"training {old.degrees} over {rate * 8e-6:g} Mbit/s, half of that after {num_steps} steps")
    halve, traces = _HalvedOnTheWay(wire, rate / 2, folder / "first" / "steps.now", num_steps), folder / "traces"
    _, steps = train(testbed, known.shape, "old", old, 4 * num_steps, folder / "first", watch=halve, traces=traces)
    found = api.diagnose(traces, slow_ratio=SLOW_RATIO, launch=launch_config(old))
    say("measuring links again")
    figures = link_figures(time_cases(testbed, link_cases(testbed), folder / "links"))
    topology = measured_topology(_at(known.topology, rate / 2), figures, "this testbed, after the change")
    again = on_topology(known, topology)
    say("training the old plan and a new one")
    before, _ = train(testbed, known.shape, "old", api.evaluate((again.job, old.decision)), num_steps, folder / "old")
    after, _ = train(testbed, known.shape, "new", api.plan(again.job), num_steps, folder / "new")
    hosts = [host.name for host in testbed.layout.hosts]
    ranks = found.root.link if found.root and found.root.link else ()
    named = tuple(hosts[rank] for rank in ranks)
    return Degraded(
        trunk=wire.name,
        before_bytes_per_s=rate,
        after_bytes_per_s=rate / 2,
        verdict=found.verdict,
        named=named,
        is_right={host.rpartition("-h")[0] for host in named} == set(wire.between),
        measured_bytes_per_s=topology.trunks[0].efficiency_fraction * rate / 2,
        old=before,
        new=after,
        step_before_s=statistics.median(steps[: num_steps - 1]),
    )


class _HalvedOnTheWay:
    """Changes the rate of an inter-building link once so many steps are done."""

    def __init__(self, wire: TrunkWire, rate_bytes_per_s: float, steps_now: Path, after: int) -> None:
        self._wire, self._rate, self._file, self._after, self._done = wire, rate_bytes_per_s, steps_now, after, False

    def __call__(self, elapsed_s: float) -> None:
        # the file has a byte per step, and the first step is not counted
        if not self._done and self._file.exists() and self._file.stat().st_size > self._after:
            fabric.set_trunk(self._wire, self._rate)
            self._done = True


def _at(topology: Topology, rate: float) -> Topology:
    """Return ``topology`` with its first inter-building link at ``rate``."""
    first, *others = topology.trunks
    update: dict[str, Any] = {"bandwidth_bytes_per_s": rate, "oversubscription_ratio": 1.0}
    return topology.model_copy(update={"trunks": (first.model_copy(update=update), *others)})
