"""Buckets of gradients and parameters: their number and the share of each rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import candidates

from scaleacross.cost_models.buckets import least_bucket_share, num_buckets
from scaleacross.spec.framework import Overlap
from scaleacross.spec.parallelism import SHARD_LEVELS

SHARDED = SHARD_LEVELS.index("parameters")


def pieces(parameters: float, layers: float = 80, overlap: Overlap | None = None, **columns: int) -> float:
    rows = candidates(**({"shard": SHARD_LEVELS.index("optimizer")} | columns))
    return float(num_buckets(overlap or Overlap(), rows, np.array([layers]), np.array([parameters]))[0])


@pytest.mark.parametrize(
    ("replicas", "cp", "expected"),
    [(8, 1, 25), (40, 1, 25), (100, 1, 10), (50, 2, 10), (1000, 1, 1), (5000, 1, 1)],
)
def test_buckets_grow_with_the_data_parallel_group(replicas: int, cp: int, expected: int) -> None:
    """Buckets grow with the data-parallel group.

    1e9 parameters use buckets of max(40 million, 1 million per data-parallel rank). Ranks of context parallelism count.
    """
    assert pieces(1e9, dp_shard=replicas, cp=cp) == expected


def test_buckets_are_whole_layers_and_every_chunk_has_its_own() -> None:
    assert pieces(1e9, layers=4, dp_shard=8) == 4
    assert pieces(1e9, dp_shard=1000, num_chunks=6) == 6
    assert pieces(1e9, layers=6, num_chunks=3, dp_shard=100) == 6  # 4 buckets for each chunk of 2 layers


def test_sharded_parameters_travel_layer_by_layer() -> None:
    assert pieces(1e9, layers=12, dp_shard=5000, shard=SHARDED) == 12


def test_the_job_may_say_how_large() -> None:
    assert pieces(1e9, dp_shard=8, overlap=Overlap(bucket_parameters=500_000_000)) == 2


def test_without_overlap_a_chunk_is_one_bucket() -> None:
    assert pieces(1e9, dp_shard=8, num_chunks=2, overlap=Overlap(gradient_reduce=False)) == 2


@given(
    least=st.floats(1e6, 1e11),
    more=st.floats(1.0, 10.0),
    layers=st.integers(1, 200),
    num_chunks=st.integers(1, 8),
    replicas=st.integers(1, 4096),
)
def test_no_bucket_of_fuller_ranks_is_smaller_than_the_least_share(
    least: float, more: float, layers: int, num_chunks: int, replicas: int
) -> None:
    columns = {"dp_shard": replicas, "num_chunks": num_chunks}
    rows = candidates(**{"shard": SHARD_LEVELS.index("optimizer")} | columns)
    share = float(least_bucket_share(Overlap(), rows, np.array([least]))[0])
    held = least * more
    assert 0 < share * least <= held / pieces(held, layers=layers, **columns) * (1 + 1e-12)


def test_the_least_share_of_a_rank_that_no_other_is_fuller_than() -> None:
    """The least share of one bucket on the fullest rank.

    1e9 parameters fill ten buckets, so a rank that holds slightly more has eleven.
    """
    rows = candidates(shard=SHARD_LEVELS.index("optimizer"), dp_shard=100)
    assert least_bucket_share(Overlap(), rows, np.array([1e9]))[0] == pytest.approx(0.1 * 10 / 11)
