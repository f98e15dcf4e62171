"""Rows fetched ahead: limits of the exposed time, and collisions compared with drawn batches."""

from __future__ import annotations

import numpy as np
import pytest
from pytest import approx

from scaleacross.cost_models.embedding.early_rows import collision_fraction, exposed_fetch_s
from scaleacross.workloads.recommendation import Locality


def test_limits_of_the_exposed_time() -> None:
    assert float(exposed_fetch_s(1.0, 5.0, 0.0)) == 0  # all overlapped
    assert float(exposed_fetch_s(1.0, 5.0, 1.0, 0.1)) == approx(1.1)  # all late
    assert float(exposed_fetch_s(1.0, 0.0, 0.3)) == approx(1.0)  # nothing to overlap with
    shares = exposed_fetch_s(1.0, 0.6, np.linspace(0, 1, 11))
    assert (np.diff(shares) >= -1e-12).all() and shares[0] == approx(0.4) and shares[-1] == approx(1)


@pytest.mark.parametrize(("exponent", "rows", "reads"), [(None, 1000, 200), (1.05, 2000, 500), (0.8, 500, 100)])
def test_collisions_are_those_of_drawn_batches(exponent: float | None, rows: int, reads: int) -> None:
    locality = Locality() if exponent is None else Locality(kind="power_law", exponent=exponent)
    shares = np.diff([locality.read_share(k / rows, rows) for k in range(rows + 1)])
    generator, found = np.random.default_rng(0), []
    for _ in range(40):
        first, second = (set(generator.choice(rows, reads, p=shares / shares.sum()).tolist()) for _ in "ab")
        found.append(len(first & second) / len(second))
    assert collision_fraction(locality, rows, reads) == approx(np.mean(found), rel=0.06)


def test_few_reads_of_many_rows_hardly_collide() -> None:
    assert collision_fraction(Locality(), 10**9, 1000.0) < 1e-5
    assert collision_fraction(Locality(), 1, 5.0) == approx(1)
