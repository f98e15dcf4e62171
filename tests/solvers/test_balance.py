"""Layers per stage and batch shares agree with hand arithmetic and brute force, and they keep monotone laws."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.exhaustive_balance import _compositions
from scaleacross.cost_models.differing_ranks import LayerCosts
from scaleacross.cost_models.stages import equal_stages, layers_of_ranks
from scaleacross.solvers.partition_stages import StagePaces, partition_stages
from scaleacross.solvers.share_batch import share_batch

SLOW, FAST, BOTH = frozenset({"slow"}), frozenset({"fast"}), frozenset({"slow", "fast"})


def costs(
    counts: tuple[int, ...] = (12,),
    layer_s: tuple[tuple[float, ...], ...] = ((2.0,), (1.0,)),
    ends_s: tuple[float, float] = (0.0, 0.0),
    layer_bytes: float = 1.0,
    capacity: tuple[float, float] = (100.0, 100.0),
    pp: int = 2,
) -> LayerCosts:
    """Stage costs for a test.

    By default type slow takes 2 s per layer and type fast 1 s. A layer takes 1 byte of 100.
    """
    return LayerCosts(
        ("slow", "fast"),
        counts,
        np.array(layer_s),
        np.array([ends_s, ends_s]),
        np.zeros(pp),
        np.full((pp, len(counts)), layer_bytes),
        np.array(capacity),
    )


def test_twice_the_speed_twice_the_layers() -> None:
    assert partition_stages(costs(), (SLOW, FAST), 1) == ((4,), (8,))
    assert partition_stages(costs(), (FAST, SLOW), 1) == ((8,), (4,))


def test_a_stage_on_both_types_is_as_slow_as_the_slower() -> None:
    assert partition_stages(costs(), (BOTH, FAST), 1) == ((4,), (8,))


def test_memory_takes_layers_back() -> None:
    assert partition_stages(costs(capacity=(100.0, 6.0)), (SLOW, FAST), 1) == ((6,), (6,))
    assert partition_stages(costs(capacity=(5.0, 6.0)), (SLOW, FAST), 1) is None


def test_the_head_counts() -> None:
    assert partition_stages(costs(ends_s=(0.0, 4.0)), (SLOW, FAST), 1) == ((5,), (7,))


def test_equally_fast_ranks_are_as_even_as_they_can_be() -> None:
    """The head limits a fast rank to eleven layers. Only one rank needs as many."""
    types = (SLOW,) * 8 + (FAST,) * 4
    found = partition_stages(costs((80,), ends_s=(0.0, 1.5), pp=12), types, 1)
    assert found == ((5,),) * 8 + ((10,), (10,), (11,), (9,))


def test_dense_layers_at_the_front_are_light() -> None:
    """Three layers of 1 s and nine of 4 s on equal ranks take 39 s in all. The best cut is 19 + 20."""
    found = partition_stages(costs((3, 9), ((1.0, 4.0), (1.0, 4.0))), (FAST, SLOW), 1)
    assert found == ((7,), (5,))


def test_chunks_share_the_layers_of_their_rank() -> None:
    assert partition_stages(costs(), (SLOW, FAST), 2) == ((2, 2), (4, 4))
    assert partition_stages(costs(counts=(3,)), (SLOW, FAST), 2) is None


def test_paces_remembered_of_one_layout_serve_the_others() -> None:
    of_candidate = costs(ends_s=(1.0, 4.0), pp=3)
    shared = StagePaces(of_candidate, 1)
    for types in product((SLOW, FAST, BOTH), repeat=3):
        assert shared.partition(types) == partition_stages(of_candidate, types, 1)


@given(num_layers=st.integers(4, 40), pp=st.integers(1, 8), num_chunks=st.integers(1, 3))
def test_equal_ranks_get_the_equal_split(num_layers: int, pp: int, num_chunks: int) -> None:
    if num_layers < pp * num_chunks:
        return
    found = partition_stages(costs((num_layers,), pp=pp), (FAST,) * pp, num_chunks)
    assert found is not None
    equal = equal_stages(num_layers, pp, num_chunks)
    assert max(map(sum, found)) == -(-num_layers // pp) or max(map(sum, found)) == max(map(sum, equal))
    if num_chunks == 1:
        assert found == equal


@settings(max_examples=60, deadline=None)
@given(
    counts=st.tuples(st.integers(1, 3), st.integers(2, 6)),
    seconds=st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=4, max_size=4),
    types=st.lists(st.sampled_from([SLOW, FAST, BOTH]), min_size=2, max_size=4),
    capacity=st.tuples(st.integers(2, 9), st.integers(2, 9)),
    head=st.sampled_from([0.0, 1.5]),
)
def test_no_other_split_is_faster_or_as_fast_and_evener(
    counts: tuple[int, int],
    seconds: list[float],
    types: list[frozenset[str]],
    capacity: tuple[int, int],
    head: float,
) -> None:
    layer_s = ((seconds[0], seconds[1]), (seconds[2], seconds[3]))
    given_costs = costs(counts, layer_s, (0.5, head), capacity=capacity, pp=len(types))
    pace, squares = {}, {}
    for split in _compositions(sum(counts), len(types), 1):
        table = layers_of_ranks(counts, [(count,) for count in split])
        if (given_costs.bytes(table) <= given_costs.least_capacity_bytes(types)).all():
            paces = given_costs.slowest_pass_s(table, types)
            pace[split], squares[split] = float(paces.max()), float((paces**2).sum())
    found = partition_stages(given_costs, types, 1) if sum(counts) >= len(types) else None
    if not pace:
        assert found is None
        return
    assert found is not None
    split = tuple(sum(stage) for stage in found)
    assert pace[split] == pytest.approx(min(pace.values()))
    equal = [sum(stage) for stage in equal_stages(sum(counts), len(types), 1)]
    away = {one: sum(map(abs, np.subtract(one, equal))) for one in pace if pace[one] <= pace[split] * (1 + 1e-9)}
    assert away[split] == min(away.values())
    assert squares[split] == pytest.approx(min(squares[one] for one in away if away[one] == away[split]))


def test_replicas_of_twice_the_speed_take_twice_the_micro_batches() -> None:
    assert share_batch([2.0, 1.0], [3, 3], 18, 0.0, range(1, 19)) == (2, 4)
    assert share_batch([1.0, 1.0], [3, 3], 18, 1.0, range(1, 19)) == (3, 3)


def test_shares_follow_the_schedule() -> None:
    assert share_batch([2.0, 1.0], [1, 1], 12, 0.0, range(4, 13, 4)) == (4, 8)
    assert share_batch([9.0, 1.0], [1, 1], 12, 0.0, range(3, 13)) == (3, 9)
    assert share_batch([2.0, 1.0], [1, 1], 13, 0.0, range(4, 14, 4)) is None
    assert share_batch([2.0, 1.0], [2, 3], 5, 0.0, range(2, 6)) is None


@settings(max_examples=80, deadline=None)
@given(
    classes=st.lists(st.tuples(st.sampled_from([1.0, 1.3, 2.0, 5.0]), st.integers(1, 3)), min_size=1, max_size=3),
    mean=st.integers(1, 5),
    idle=st.sampled_from([0.0, 0.5, 3.0]),
    legal=st.sets(st.integers(1, 45), min_size=1),
)
def test_no_other_shares_are_faster(classes: list[tuple[float, int]], mean: int, idle: float, legal: set[int]) -> None:
    pace, replicas = [c[0] for c in classes], [c[1] for c in classes]
    total = mean * sum(replicas)
    every = {
        m: max((one + idle) * seconds for one, seconds in zip(m, pace, strict=True))
        for m in product(*(range(1, total + 1) for _ in classes))
        if sum(one * count for one, count in zip(m, replicas, strict=True)) == total and all(one in legal for one in m)
    }
    found = share_batch(pace, replicas, total, idle, sorted(one for one in legal if one <= total))
    if not every:
        assert found is None
    else:
        assert found is not None
        assert every[found] == pytest.approx(min(every.values()))
