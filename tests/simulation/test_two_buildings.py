"""Simulated times of an all-reduce agree with those measured among four processes in two emulated buildings."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from oracles.messages import Route, add_collective
from scaleacross.schedules import collective as c
from scaleacross.simulation.engine import Simulation
from two_buildings import INSIDE_BYTES_PER_S, MEASURED, MIB, SHAPED, tolerances

BUILDINGS: Final = ((0, 1), (2, 3))
ALL_REDUCE: Final = c.Operation.ALL_REDUCE
VARIANTS: Final = {
    "interleaved ring": c.flat(ALL_REDUCE, "ring", 4, order=[0, 2, 1, 3]),
    "ring": c.flat(ALL_REDUCE, "ring", 4),
    "hierarchical": c.layered(ALL_REDUCE, BUILDINGS, ["ring", "ring"]),
    "hierarchical, 8 chunks": c.layered(ALL_REDUCE, BUILDINGS, ["ring", "ring"], num_channels=8),
}


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
    off = [abs(time / measured - 1) for time, measured in zip(times, MEASURED[setting], strict=True)]
    assert all(error <= allowed for error, allowed in zip(off, tolerances(setting), strict=True)), off
