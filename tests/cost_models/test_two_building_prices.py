"""Estimates of ``scaleacross collective`` for the two emulated buildings agree with the measurement.

The interleaved ring is no option there, because global ranks use one building after the other. Its estimate is the
bytes of its schedule over the inter-building link.
"""

from __future__ import annotations

import pytest

from oracles.volume import volume
from scaleacross import api
from scaleacross.catalogue import load_accelerator
from scaleacross.schedules import collective as c
from scaleacross.spec.topology import Topology, expand_building_defaults
from two_buildings import INSIDE_BYTES_PER_S, MEASURED, MIB, SHAPED, tolerances

ORDER = [0, 2, 1, 3]


def buildings(trunk_mbit_per_s: float, one_way_ms: float) -> Topology:
    """Two buildings of two hosts with one accelerator each."""
    port = {"name": "veth", "bandwidth_bytes_per_s": INSIDE_BYTES_PER_S, "efficiency_fraction": 1.0}
    link = {"technology": port, "one_way_latency_s": 0.0}
    shared = {
        **{
            "accelerator": load_accelerator("h100-sxm"),
            "accelerators_per_host": 1,
            "hosts_per_rack": 2,
            "racks_per_zone": 1,
        },
        "links": dict.fromkeys(("scale_up", "rack", "zone", "building"), link),
    }
    trunk = {
        **{"between": ["a", "b"], "bandwidth_bytes_per_s": trunk_mbit_per_s * 1e6 / 8, "efficiency_fraction": SHAPED},
        "one_way_latency_s": one_way_ms * 1e-3,
    }
    placed = [{"name": "a", "num_zones": 1}, {"name": "b", "num_zones": 1}]
    data = {
        "name": "emulated",
        "building_defaults": shared,
        "regions": [{"name": "r", "buildings": placed}],
        "trunks": [trunk],
    }
    return Topology.model_validate(expand_building_defaults(data))


def interleaved_ms(trunk_mbit_per_s: float, size_bytes: float, one_way_ms: float) -> float:
    ring = c.flat(c.Operation.ALL_REDUCE, "ring", 4, order=ORDER)
    far = volume(ring, [lambda rank: rank, lambda rank: rank // 2], lambda _: size_bytes / 4)[1]
    return far.entering_bytes / (trunk_mbit_per_s * 1e6 / 8 * SHAPED) * 1e3 + 6 * one_way_ms


@pytest.mark.parametrize("setting", MEASURED)
def test_order_and_prices(setting: tuple[float, float, float]) -> None:
    trunk, size_mib, one_way_ms = setting
    study = api.collective("all_reduce", size_mib * MIB, buildings(trunk, one_way_ms))
    found = {(one.algorithm, one.num_chunks): one.time_s * 1e3 for one in study.options}
    named = [("ring", 1), ("hierarchical(ring, ring)", 1), ("hierarchical(ring, ring)", 8)]
    prices = [interleaved_ms(trunk, size_mib * MIB, one_way_ms), *(found[name] for name in named)]
    assert prices == sorted(prices, reverse=True)
    off = [abs(price / measured - 1) for price, measured in zip(prices, MEASURED[setting], strict=True)]
    assert all(error <= allowed for error, allowed in zip(off, tolerances(setting), strict=True)), off
