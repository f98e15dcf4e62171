"""Rates that must be in another unit are refused wherever a topology states them."""

from __future__ import annotations

import pytest

from instances import plain_topology
from scaleacross.spec.topology import Topology


@pytest.mark.parametrize("where", ["trunk", "level"])
def test_a_rate_in_another_unit_is_refused(where: str) -> None:
    topology = plain_topology(2, 2)
    trunk = topology["trunks"][0]
    level = topology["regions"][0]["buildings"][0]["links"]["rack"]["technology"]
    stated = trunk if where == "trunk" else level
    for key in [key for key in stated if key.startswith("bandwidth_")]:
        del stated[key]
    stated["bandwidth_gbit_per_s"] = 8e5
    Topology.model_validate(topology)
    stated["bandwidth_gbit_per_s"] = 400e9  # 400 Gbit/s in bit/s
    with pytest.raises(ValueError, match=r"5e\+19 bytes/s is more than 1e\+17 bytes/s: check its unit"):
        Topology.model_validate(topology)
