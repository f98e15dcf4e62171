"""A trunk becomes thinner in mid-run: the trace must name it, and planning again with what is measured must pay.

The rate to begin with is searched: the thinnest at which our plan still sends gradients over the trunk, so that with a half of it
another plan is faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from scaleacross import api
from scaleacross.errors import InputError
from scaleacross.spec.plan import Plan
from scaleacross.spec.testbed import Degraded
from scaleacross.spec.topology import Topology
from scaleacross.testbed import fabric
from scaleacross.testbed.cases import time_cases
from scaleacross.testbed.layout import TrunkWire
from scaleacross.testbed.link_figures import link_cases, link_figures, measured_topology
from scaleacross.testbed.session import Testbed, standing
from scaleacross.testbed.training import Calibrated, Say, on_topology, train

RATES_BYTES_PER_S: Final = tuple(megabits * 1e6 / 8 for megabits in (200, 300, 400, 600, 800, 1200, 1600, 2400))
SLOW_RATIO: Final = 1.3


def crossing_rate(known: Calibrated) -> tuple[float, Plan]:
    """The least rate of ``RATES_BYTES_PER_S`` at which halving the trunk changes the plan's degrees, and the plan before.

    Raises:
        InputError: there is none.
    """
    plans = {
        rate: _plan_at(known, rate) for rate in sorted({r / 2 for r in RATES_BYTES_PER_S} | set(RATES_BYTES_PER_S))
    }
    for rate in RATES_BYTES_PER_S:
        if plans[rate].degrees != plans[rate / 2].degrees:
            return rate, plans[rate]
    raise InputError(
        f"{known.job.name}: halving the trunk changes no plan between "
        f"{RATES_BYTES_PER_S[0] * 8e-6:g} and {RATES_BYTES_PER_S[-1] * 8e-6:g} Mbit/s"
    )


def degrade(known: Calibrated, name: str, num_steps: int, folder: Path, say: Say) -> Degraded:
    """Train, halve the first trunk in the middle, diagnose the trace, measure, plan again, train both plans.

    Args:
        known: the job on a measured topology; the rate of its trunk is chosen here.
        name: of the testbed that is made.

    Raises:
        InputError: no rate of the trunk makes a difference.
        EmulationError: a rank failed.
    """
    rate, old = crossing_rate(known)
    with standing(_at(known.topology, rate), name) as testbed:
        wire = testbed.layout.trunks[0]
        say(f"training over {rate * 8e-6:g} Mbit/s, half of it from the middle on")
        cut = _HalvedOnTheWay(wire, folder / "first" / "steps.now", num_steps)
        traces = folder / "traces"
        _, steps = train(testbed, known.shape, "old", old, 2 * num_steps, folder / "first", watch=cut, traces=traces)
        found = api.diagnose(traces, slow_ratio=SLOW_RATIO)
        say("measuring the trunk again")
        topology = _measured(testbed, known.topology, rate / 2, folder / "links")
        again = on_topology(known, topology)
        old_price = api.evaluate((again.job, old.decision))
        new = api.plan(again.job)
        before, _ = train(testbed, known.shape, "old plan", old_price, num_steps, folder / "old")
        after, _ = train(testbed, known.shape, "new plan", new, num_steps, folder / "new")
    hosts = [host.name for host in testbed.layout.hosts]
    link = [hosts[rank] for rank in (found.root.link if found.root and found.root.link else ())]
    return Degraded(
        trunk=wire.name,
        before_bytes_per_s=rate,
        after_bytes_per_s=rate / 2,
        verdict=found.verdict,
        named=tuple(link),
        is_right=len({host.rpartition("-h")[0] for host in link} & set(wire.between)) == len(wire.between),
        measured_bytes_per_s=topology.trunks[0].efficiency_fraction * rate / 2,
        old=before,
        new=after,
        step_before_s=statistics.median(steps[: num_steps - 1]),
    )


class _HalvedOnTheWay:
    """Halves the rate of a trunk once so many steps are done."""

    def __init__(self, wire: TrunkWire, steps_now: Path, after: int) -> None:
        self._wire, self._file, self._after, self._done = wire, steps_now, after, False

    def __call__(self, elapsed_s: float) -> None:
        if not self._done and self._file.exists() and self._file.stat().st_size > self._after:
            fabric.set_trunk(self._wire, self._wire.rate_bytes_per_s / 2)
            self._done = True


def _plan_at(known: Calibrated, rate: float) -> Plan:
    return api.plan(on_topology(known, _at(known.topology, rate)).job)


def _at(topology: Topology, rate: float) -> Topology:
    """The first trunk at ``rate``."""
    first, *others = topology.trunks
    update: dict[str, Any] = {"bandwidth_bytes_per_s": rate, "oversubscription_ratio": 1.0}
    return topology.model_copy(update={"trunks": (first.model_copy(update=update), *others)})


def _measured(testbed: Testbed, topology: Topology, rate: float, folder: Path) -> Topology:
    """What the links do now."""
    stated: Sequence[Any] = link_cases(testbed)
    figures = link_figures(time_cases(testbed, stated, folder))
    return measured_topology(_at(topology, rate), figures, "this testbed, after the change")
