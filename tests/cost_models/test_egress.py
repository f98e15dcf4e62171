"""Bytes between buildings and spending, by hand."""

from __future__ import annotations

import pytest

from instances import plain_topology
from scaleacross.cost_models.egress import UnitPrices, flow_price, group_patterns, unit_prices
from scaleacross.cost_models.spending import Rate, SitePrices, Spending
from scaleacross.cost_models.traffic import Flow, Op
from scaleacross.spec.placement import BuildingShare
from scaleacross.spec.topology import Topology

PRICES = {(0, 1): 2.0, (1, 0): 2.0, (1, 2): 3.0, (2, 1): 3.0, (0, 2): 5.0, (2, 0): 5.0}


@pytest.mark.parametrize(
    ("op", "members", "price"),
    [
        ("all_gather", (4, 4), 10 * 0.5 * (2 + 2)),  # half of the tensor each way
        ("all_gather", (1, 1, 2), 10 * 2 / 3 * (2 + 3 + 5)),
        ("all_reduce", (4, 4), 2 * 10 * 0.5 * (2 + 2)),
        ("all_to_all", (3, 1), 10 * 3 / 4 * (2 + 2)),  # three members send a quarter, one sends three quarters
        ("send", (2, 2), 10 * 2 + 10 * 0.75 * 2),  # neighbours; and 3 of 4 chunks come back
        ("all_gather", (8, 0), 0.0),
    ],
)
def test_one_group_by_hand(op: Op, members: tuple[int, ...], price: float) -> None:
    flow = Flow("pp", op, "", "pp", size_bytes=10.0, phases={"message": 1.0})
    assert flow_price(flow, unit_prices({members: 1}, PRICES), num_chunks=4) == pytest.approx(price)
    assert flow_price(flow, unit_prices({members: 7}, PRICES), num_chunks=4) == pytest.approx(7 * price)


def test_groups_of_unequal_buildings() -> None:
    allocation = (BuildingShare(building="a", num_accelerators=6), BuildingShare(building="b", num_accelerators=2))
    assert group_patterns(allocation, 2, 4) == {(1, 1): 2, (2, 0): 2}  # global ranks 0+4, 1+5 inside; 2+6, 3+7 across
    assert group_patterns(allocation, 4, 1) == {(4, 0): 1, (2, 2): 1}


def test_spending_by_hand() -> None:
    allocation = (BuildingShare(building="a", num_accelerators=6), BuildingShare(building="b", num_accelerators=2))
    power = Spending(
        "tokens_per_s_per_megawatt", "J", 1e6, {"a": Rate(100, 400), "b": Rate(50, 200)}, pays_egress=False
    )
    assert power.parts(allocation, 3.0, 2.0, 99.0) == {"idle power": 700 * 3.0, "computation": 2800 * 2.0}
    assert power.value(1000, 7700.0) == pytest.approx(1000 / 0.0077)
    assert unit_prices({(1, 0): 3}, PRICES) == UnitPrices(0.0, 0.0, 0.0, 0.0)


def test_buildings_and_links_that_a_plan_uses_are_paid_by_the_hour() -> None:
    """A plan pays hourly for the buildings and links that it uses.

    Of three buildings in a row it uses the first and the third. Both links are on the path; the middle building is not
    rented.
    """
    data = plain_topology(1, 1, 1)
    for building, price in zip(data["regions"][0]["buildings"], (36.0, 72.0, 108.0), strict=True):
        building["price_per_hour"] = price
    for trunk, price in zip(data["trunks"], (3600.0, 7200.0), strict=True):
        trunk["price_per_hour"] = price
    topology = Topology.model_validate(data)
    first, middle, last = (building.name for building in topology.buildings)
    prices = SitePrices(topology)
    assert prices.per_s([first]) == pytest.approx(0.01)
    assert prices.per_s([first, middle]) == pytest.approx(0.03 + 1)
    assert prices.per_s([first, last]) == pytest.approx(0.04 + 3)
    assert prices.owned_per_s == pytest.approx(0.06 + 3)
