"""All-reduce among four processes in two emulated buildings: the simulator beside the measurement.

Measured on one two-core Linux machine: a network namespace per process, a bridge per building, the trunk shaped by ``tc tbf``
(iperf3: 384–391 of 400 Mbit/s, 3.9 Gbit/s inside), delay by a user-space relay; median of five, ms. Processes that share two
cores are slower than their links, so times lie below the measured ones; the order of the variants is what must be exact.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from scaleacross.schedules import collective as c
from scaleacross.simulation.collectives import Route, add_collective
from scaleacross.simulation.engine import Simulation

MIB: Final = 2**20
SHAPED: Final = 0.97  # of the stated rate, as iperf3 saw it
INSIDE_BYTES_PER_S: Final = 3.9e9 / 8
BUILDINGS: Final = ((0, 1), (2, 3))
ALL_REDUCE: Final = c.Operation.ALL_REDUCE
VARIANTS: Final = {
    "interleaved ring": c.flat(ALL_REDUCE, "ring", 4, order=[0, 2, 1, 3]),
    "ring": c.flat(ALL_REDUCE, "ring", 4),
    "hierarchical": c.layered(ALL_REDUCE, BUILDINGS, ["ring", "ring"]),
    "hierarchical, 8 chunks": c.layered(ALL_REDUCE, BUILDINGS, ["ring", "ring"], num_channels=8),
}
# (trunk Mbit/s, MiB, one-way ms) -> ms of the variants, in their order
MEASURED: Final = {
    (400, 16, 0): (1252, 573, 419, 363),
    (1000, 16, 0): (464, 248, 208, 164),
    (100, 8, 0): (2671, 1147, 750, 695),
    (400, 16, 5): (1124, 596, 455, 397),
}
TOLERANCE: Final = 0.25


def simulated_ms(schedule: c.CollectiveSchedule, trunk_mbit_per_s: float, size_mib: float, one_way_ms: float) -> float:
    trunk = trunk_mbit_per_s * 1e6 / 8 * SHAPED
    simulation = Simulation(np.array([INSIDE_BYTES_PER_S] * 8 + [trunk] * 2))

    def route(a: int, b: int) -> Route:
        ends = [(a, 1.0), (4 + b, 1.0)]
        return Route([*ends, (8 + a // 2, 1.0)], one_way_ms * 1e-3) if a // 2 != b // 2 else Route(ends)

    add_collective(simulation, schedule, route, lambda _: size_mib * MIB / schedule.num_blocks)
    return simulation.run().total_s * 1e3


@pytest.mark.parametrize("setting", MEASURED)
def test_order_and_times(setting: tuple[float, float, float]) -> None:
    times = [simulated_ms(schedule, *setting) for schedule in VARIANTS.values()]
    assert times == sorted(times, reverse=True)
    assert times == pytest.approx(MEASURED[setting], rel=TOLERANCE)
