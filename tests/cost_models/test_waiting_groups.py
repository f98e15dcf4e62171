"""Pipeline ranks with groups across buildings, and the seconds that they wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from machines import allocation, flat

from scaleacross.cost_models.axes import Calls
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.crossing_shapes import near_shape
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.layout import Axis
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, REGION, Levels, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.step import one_row
from scaleacross.cost_models.waiting_groups import RankGroups, told_apart, waiting_groups

LEVELS = build_levels(flat(2, 60), allocation(("b0", 36), ("b1", 60)))
"""The second of four stages of 24 is in both buildings. The border divides a group of 8 ranks, and none of 4."""
PIPELINE = 4, 24


def found(axis: Axis, pipeline: Axis = PIPELINE, levels: Levels = LEVELS) -> RankGroups | None:
    group = Group(one_row(exact_shape(*axis, levels)), links_of(levels), 0.0)
    return waiting_groups({"tp": group}, {"tp": axis, "pp": pipeline}, levels, names=("tp",)).get("tp")


def gathered(group: Group) -> Calls:
    return Calls(gather_s=group.gather(np.array([1e6])).time_s)


def test_only_the_stage_on_the_border_waits_for_the_trunk() -> None:
    ranks = found((8, 1))
    assert ranks is not None
    near = ranks.kinds[0]
    assert near.shape.span[0] < CAMPUS
    assert [int(ranks.kinds[kind].shape.span[0]) >= CAMPUS for kind in ranks.of] == [False, True, False, False]
    assert all((one.shape.exchanged[0, CAMPUS:] > 0).any() == (one.shape.span[0] >= CAMPUS) for one in ranks.kinds)
    alone, worst = near.gather(np.array([1e6])).time_s[0], Group(one_row(exact_shape(8, 1, LEVELS)), near.links, 0.0)
    seconds = ranks.calls(gathered).gather_s
    assert seconds is not None
    assert alone < worst.gather(np.array([1e6])).time_s[0]
    assert seconds.tolist() == pytest.approx([alone, worst.gather(np.array([1e6])).time_s[0], alone, alone])


def test_all_ranks_wait_alike_where_groups_stay_inside_or_no_building_holds_four_extents() -> None:
    assert found((4, 1)) is None
    assert found((2, 12)) is None  # 4 · 24 global ranks are more than 60
    assert found((8, 1), pipeline=(1, 96)) is None
    assert told_apart(15, 60, 4)
    assert not told_apart(16, 60, 4)


def test_a_rank_waits_no_less_than_for_groups_in_a_building() -> None:
    """A rank waits at least for its groups inside a building.

    A link between buildings may have less latency than hosts. Groups across it would end first, but other groups of the
    rank would not.
    """
    slow = LEVELS.latency.copy()
    slow[:CAMPUS], slow[CAMPUS:] = 1e-3, 0.0
    ranks = found((8, 1), levels=replace(LEVELS, latency=slow))
    assert ranks is not None
    seconds = ranks.calls(gathered).gather_s
    assert seconds is not None
    assert seconds.min() == ranks.kinds[0].gather(np.array([1e6])).time_s[0]


def test_neighbours_across_buildings_are_neighbours_inside_where_groups_stay() -> None:
    shape = one_row(exact_shape(8, 1, LEVELS))
    near = near_shape(shape, np.ones(1, dtype=bool))
    assert near.pairs.sum() == shape.pairs.sum()
    for level in (CAMPUS, REGION):
        measures = (near.fanout, near.crossing, near.exchanged, near.pairs, near.members)
        assert [float(each[0, level]) for each in measures] == [1.0, 1.0, 0.0, 0.0, 8.0]
    kept = near_shape(shape, np.zeros(1, dtype=bool))
    assert all((getattr(kept, name) == getattr(shape, name)).all() for name in GroupShape.__dataclass_fields__)
    assert shape.fanout.shape == (1, NUM_LEVELS)
