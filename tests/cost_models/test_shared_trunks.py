"""Pipeline ranks with unlike gradients on one trunk: each ends when those that still send have left it its share."""

from __future__ import annotations

import numpy as np
import pytest
from machines import fill, flat, gpt, job, settings

from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.settings import Floats
from scaleacross.cost_models.shared_trunks import replicas_traffic
from scaleacross.cost_models.step import one_row
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.window_traffic import communicators
from scaleacross.cost_models.work import NO_WORK


def gradients_s(parameters: list[float], trunk_bytes_per_s: float) -> tuple[Floats, Floats]:
    """Seconds of the all-reduces of 4 pipeline ranks over two buildings, shared and as if all sent as much; no latencies."""
    levels = build_levels(
        flat(2, 4, bandwidth_bytes_per_s=trunk_bytes_per_s, latency_s=0.0), fill(("b0", 4), ("b1", 4))
    )
    links = links_of(levels)._replace(latency=np.zeros(len(levels.latency)))
    group = Group(one_row(exact_shape(2, 4, levels)), links, 0.0)
    ranks = np.zeros(4, dtype=np.int64)
    work = NO_WORK.take(ranks)
    columns = {"dense_parameters": np.array(parameters), "buckets": np.ones(4)}
    rows = settings(pp=4, dp_replicate=2).take(ranks)
    volumes = Volumes(job(), gpt().profile(), rows, type(work)(**(vars(work) | columns)), 0.0)
    (apart,) = communicators("dp_replicate", volumes, group)
    return replicas_traffic(volumes, group)[0], apart[0]


def test_equal_shares_of_a_trunk() -> None:
    """1, 2, 3 and 4 GB over 1 GB/s in all: the first is done after 4 · 1 s, the next after 3 more, after 2 and after 1: 10 s."""
    shared, apart = gradients_s([0.25e9, 0.5e9, 0.75e9, 1e9], 1e9)
    assert apart == pytest.approx([4.0, 8.0, 12.0, 16.0])
    assert shared == pytest.approx([4.0, 7.0, 9.0, 10.0])


def test_equal_ranks_and_wide_trunks_are_as_they_were() -> None:
    for parameters, width in (([1e9] * 4, 1e9), ([0.25e9, 0.5e9, 0.75e9, 1e9], 1e15)):
        shared, apart = gradients_s(parameters, width)
        assert shared == pytest.approx(apart)
