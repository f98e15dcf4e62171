"""The least cost of buildings and links for a number of accelerators, by trying every set of buildings."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest

from cases import each
from instances import random_job
from priced import MONEY, priced
from scaleacross.cost_models.spending import SitePrices
from scaleacross.workloads.problem import problem_of


@each("seed", range(40), size=40)
def test_no_buildings_that_hold_as_many_cost_less(seed: int) -> None:
    job = priced(random_job(seed).model_dump(mode="json", exclude_none=True), seed, MONEY)
    topology = problem_of(job).topology
    sites, buildings = SitePrices(topology), topology.buildings
    sets = chain.from_iterable(combinations(buildings, size) for size in range(1, len(buildings) + 1))
    costs = [(sum(b.num_accelerators for b in some), sites.per_s([b.name for b in some])) for some in sets]
    numbers = np.arange(1, topology.num_accelerators + 1)
    least = sites.least_per_s(buildings, numbers)
    for number, bound in zip(numbers.tolist(), least.tolist(), strict=True):
        assert bound <= min(cost for held, cost in costs if held >= number) * (1 + 1e-12)
    assert least[0] == pytest.approx(min(one.price_per_hour or 0.0 for one in buildings) / 3600)
    assert (np.diff(least) >= 0).all()


def test_all_buildings_and_their_links_count_where_all_are_needed() -> None:
    job = priced(random_job(4).model_dump(mode="json", exclude_none=True), 4, MONEY)
    topology = problem_of(job).topology
    chain_of_two = list(topology.buildings[:2])
    trunks = [one for one in topology.trunks if set(one.between) == {one.name for one in chain_of_two}]
    both = SitePrices(topology.model_copy(update={"trunks": tuple(trunks)}))
    held = sum(one.num_accelerators for one in chain_of_two)
    assert both.least_per_s(chain_of_two, np.array([held]))[0] == pytest.approx(
        both.per_s([one.name for one in chain_of_two])
    )
