"""Error statistics and rank agreement against hand arithmetic."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleacross.validation.metrics import errors, kendall_tau, noise_floor, regret, spearman


def test_errors_by_hand() -> None:
    found = errors([11, 8, 10, 10], [10, 10, 10, 10])  # +10 %, −20 %, 0, 0
    assert (found.rows, found.median_abs, found.worst) == (4, pytest.approx(0.05), pytest.approx(-0.2))
    assert found.mean_abs == pytest.approx(0.075)
    assert found.bias == pytest.approx(-0.025)
    assert found.p90_abs == pytest.approx(0.17)  # between the 3rd and 4th of 0, 0, 0.1, 0.2 at 2.7


def test_no_rows_have_no_figures() -> None:
    found = errors([], [])
    assert found.rows == 0 and math.isnan(found.median_abs)


def test_kendall_counts_pairs() -> None:
    # pairs of 1 2 3 4 against 1 3 2 4: five agree, one does not
    assert kendall_tau([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(4 / 6)
    assert kendall_tau([1, 2, 3], [3, 2, 1]) == -1
    assert math.isnan(kendall_tau([1, 1, 1], [1, 2, 3]))
    # one tie in the first of three pairs: (1 + 1) / sqrt(2 · 3)
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(6))


def test_spearman_by_hand() -> None:
    # squared rank differences 0 1 1 0: 1 − 6·2/(4·15)
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert spearman([5, 5, 9], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)


@given(st.lists(st.floats(0.1, 1e6), min_size=3, max_size=20, unique=True))
def test_rank_agreement_ignores_monotone_changes(values: list[float]) -> None:
    assert kendall_tau(values, [value**3 for value in values]) == pytest.approx(1)
    assert spearman(values, [-1 / value for value in values]) == pytest.approx(1)


def test_regret_is_what_the_predicted_best_loses() -> None:
    assert regret([3, 1, 2], [10, 12, 11]) == pytest.approx(0.2)
    assert regret([1, 2, 3], [10, 12, 11]) == 0


def test_noise_floor_counts_repeats_only() -> None:
    found = noise_floor([[10, 12], [5], [8, 8, 8]])
    assert (found.groups, found.rows) == (2, 5)
    assert found.spread_max == pytest.approx(0.2)
    assert found.spread_median == pytest.approx(0.1)
    # median 11 of 10 and 12: 10 % and 8.33 %; three zeros
    assert found.mean_abs == pytest.approx((0.1 + 1 / 12) / 5)
