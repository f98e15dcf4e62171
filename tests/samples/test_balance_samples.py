"""Assignments of samples to ranks keep every rule, are near the exact optimum, and never get worse.

Invalid input is refused.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scaleacross.errors import InputError
from scaleacross.samples.balance import balanced, busiest, idle_share, sample_costs


def lengths_of(seed: int, count: int, spread: float = 1.3) -> NDArray[np.float64]:
    """Lognormal lengths, cut at 21,500, as in published user histories."""
    return np.minimum(np.exp(np.random.default_rng(seed).normal(7.5, spread, count)), 21_500).round()


def least_busiest(costs: NDArray[np.float64], ranks: int, fixed: bool) -> float:
    """Cost of the busiest rank in the best of all assignments."""
    every = np.indices((ranks,) * len(costs)).reshape(len(costs), -1)
    loads = np.stack([costs @ (every == rank) for rank in range(ranks)])
    if fixed:
        counts = np.stack([(every == rank).sum(axis=0) for rank in range(ranks)])
        loads = loads[:, (counts == len(costs) // ranks).all(axis=0)]
    return float(loads.max(axis=0).min())


@settings(max_examples=80, deadline=None)
@given(
    costs=st.lists(st.floats(0, 1e6), min_size=0, max_size=40),
    ranks=st.integers(1, 5),
    fixed=st.booleans(),
    room=st.booleans(),
)
def test_every_sample_has_a_rank_with_room(costs: list[float], ranks: int, fixed: bool, room: bool) -> None:
    own = np.array(costs[: len(costs) // ranks * ranks])
    tokens = np.sqrt(own)
    capacity = 2 * max(tokens.sum() / ranks, tokens.max(initial=0)) + 1 if room and not fixed else np.inf
    rank = balanced(own, ranks, fixed_counts=fixed, tokens=tokens, capacity=capacity)
    assert rank.shape == own.shape and ((rank >= 0) & (rank < ranks)).all()
    if fixed:
        assert (np.bincount(rank, minlength=ranks) == len(own) // ranks).all()
    assert (np.bincount(rank, tokens, ranks) <= capacity).all()
    assert busiest(own, rank, ranks) <= busiest(own, np.arange(len(own)) % ranks, ranks) * (1 + 1e-9) or not fixed


@pytest.mark.parametrize(
    ("ranks", "each", "fixed"), [(2, 5, True), (3, 3, True), (3, 4, True), (3, 3, False), (2, 5, False)]
)
def test_within_one_percent_of_the_best(ranks: int, each: int, fixed: bool) -> None:
    for seed in range(4):
        costs = sample_costs(lengths_of(seed, ranks * each, (0.6, 1.3)[seed % 2]), 1.0, (0.0, 1e-3)[seed // 2])
        least = least_busiest(costs, ranks, fixed)
        ours = busiest(costs, balanced(costs, ranks, fixed_counts=fixed), ranks)
        assert least * (1 - 1e-9) <= ours <= 1.01 * least


@pytest.mark.parametrize("quadratic", [0.0, 1e-3])
@pytest.mark.parametrize("fixed", [True, False])
def test_sixteen_ranks_of_32_samples_hardly_idle(quadratic: float, fixed: bool) -> None:
    costs = sample_costs(lengths_of(1, 16 * 32), 1.0, quadratic)
    assert idle_share(costs, np.arange(16 * 32) % 16, 16) > 0.2
    assert idle_share(costs, balanced(costs, 16, fixed_counts=fixed), 16) < 1e-3


def test_what_is_refused() -> None:
    for call, message in (
        (lambda: balanced([1, 2, 3], 2), "need a multiple"),
        (lambda: balanced([1, np.nan], 2), "finite"),
        (lambda: balanced([1, 2], 0), "one rank or more"),
        (lambda: balanced([1, 2], 2, capacity=3), "variable counts"),
        (lambda: balanced([1, 2], 2, fixed_counts=False, capacity=3), "needs the tokens"),
        (lambda: balanced([1, 2], 2, fixed_counts=False, tokens=[1]), "1 numbers of tokens for 2 samples"),
        (lambda: balanced([1, 1, 1], 1, fixed_counts=False, tokens=[2, 2, 2], capacity=5), "find no room on 1 ranks"),
        (lambda: sample_costs([1, -1], 1, 0), "sample 1 has a length of -1"),
        (lambda: sample_costs([[1]], 1, 0), "2 dimensions"),
        (lambda: sample_costs([1], 0, 0), "above 0"),
    ):
        with pytest.raises(InputError, match=message):
            call()
