"""Step times: components add up, slower axes never make a step faster, and arrays equal single candidates."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from machines import accelerator, allocation, building, candidates, gpt, job, topology, trunk

from scaleacross.catalogue import load_workload
from scaleacross.cost_models.axes import Terms, axis_terms
from scaleacross.cost_models.candidates import NOTHING, Candidates, candidate_of, concatenate
from scaleacross.cost_models.groups import largest_children, relaxed_shape
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.memory import PARTS, memory_parts
from scaleacross.cost_models.overlap import TRAFFIC_ROWS
from scaleacross.cost_models.stages import pipeline_groups
from scaleacross.cost_models.step import exact_shapes, placement_free_s, step_times
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.work import Work, work_of
from scaleacross.spec.parallelism import GRID_AXES, SCHEDULE_NAMES, SHARD_LEVELS, Degrees, has_chunks
from scaleacross.spec.recomputation import RECOMPUTES

FLEET = topology([building("a", 96), building("b", 32)], trunks=[trunk("a", "b")])
LEVELS = build_levels(FLEET, allocation(("a", 384), ("b", 128)))
CHIPS = [accelerator(), accelerator("other", gemm_tile_rows=128, memory_bandwidth_bytes_per_s=0.7e12)]
PROFILES = [gpt().profile(), load_workload("mixtral-8x22b").profile()]
JOB = job(2048, 64)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, int]:
    """One legal candidate as columns."""
    schedule = draw(st.sampled_from([name for name in SCHEDULE_NAMES if name != "DualPipe"]))
    chunks = 1 if has_chunks(schedule, 1) else 2
    pp = draw(st.sampled_from([1, 2, 4] if chunks == 1 else [2, 4]))
    dp_shard = draw(st.sampled_from([1, 2, 4]))
    cp = draw(st.sampled_from([1, 2]))
    ep = draw(st.sampled_from([n for n in (1, 2, 4) if dp_shard % n == 0]))
    shard = "none" if dp_shard == 1 else draw(st.sampled_from(SHARD_LEVELS[1:]))
    return {
        "tp": draw(st.sampled_from([1, 2, 4])),
        "cp": cp,
        "dp_shard": dp_shard,
        "dp_replicate": draw(st.sampled_from([1, 2])),
        "pp": pp,
        "ep": ep,
        "micro_batch": draw(st.sampled_from([1, 2])),
        "num_micro_batches": 2 * pp * draw(st.integers(1, 3)),
        "num_chunks": chunks,
        "schedule": SCHEDULE_NAMES.index(schedule),
        "recompute": draw(st.integers(0, len(RECOMPUTES) - 1)),
        "shard": SHARD_LEVELS.index(shard),
    }


def estimated(profile: Any, candidates: Candidates) -> tuple[Volumes, list[Terms]]:
    volumes = Volumes(JOB, profile, candidates, work_of(profile, JOB, CHIPS, candidates), 1e-5)
    sizes, links = largest_children(LEVELS), links_of(LEVELS)
    ones = np.ones(len(candidates), dtype=np.int64)
    expert = relaxed_shape(candidates.dp_shard // candidates.ep, candidates.ep * 8, sizes)
    ep = relaxed_shape(candidates.ep, ones * 8, sizes)
    shapes = {axis: relaxed_shape(getattr(candidates, axis), ones * 8, sizes) for axis in GRID_AXES}
    return volumes, [axis_terms(a, volumes, shapes[a], links, expert, ep) for a in GRID_AXES]


@pytest.mark.heavy
@examples(max_examples=30)
@given(st.lists(rows(), min_size=2, max_size=6), st.sampled_from(PROFILES))
def test_n_candidates_at_once_equal_n_single_calls(columns: list[dict[str, int]], profile: Any) -> None:
    together = candidates(**{name: [row[name] for row in columns] for name in columns[0]})
    volumes, terms = estimated(profile, together)
    times = step_times(volumes, terms)
    for index, row in enumerate(columns):
        alone_volumes, alone_terms = estimated(profile, candidates(**row))
        alone = step_times(alone_volumes, alone_terms)
        for field in fields(Work):
            assert getattr(volumes.work, field.name)[index] == getattr(alone_volumes.work, field.name)[0], field.name
        for term, alone_term in zip(terms, alone_terms, strict=True):
            assert term.window_s[:, index].tolist() == alone_term.window_s[:, 0].tolist()
            for name, seconds in term.serial_s.items():
                assert seconds[index] == alone_term.serial_s[name][0], name
        assert times.step_s[index] == alone.step_s[0]


@examples(max_examples=30)
@given(st.lists(rows(), min_size=2, max_size=6), st.sampled_from(PROFILES))
def test_memory_of_n_candidates_equals_n_single_calls(columns: list[dict[str, int]], profile: Any) -> None:
    together = candidates(**{name: [row[name] for row in columns] for name in columns[0]})
    for classes, group in pipeline_groups(profile, together):
        parts = memory_parts(profile, JOB, together.take(group), classes)
        for position, index in enumerate(group):
            alone = memory_parts(profile, JOB, candidates(**columns[index]), classes)
            for name in PARTS:
                assert parts[name][:, position].tolist() == alone[name][:, 0].tolist(), name


@given(rows(), st.sampled_from(PROFILES))
@examples(max_examples=50)
def test_components_are_not_negative_and_add_up(row: dict[str, int], profile: Any) -> None:
    volumes, terms = estimated(profile, candidates(**row))
    times = step_times(volumes, terms)
    parts = [times.compute_s, times.bubble_s, times.optimizer_s, *times.exposed_s.values()]
    assert all(part[0] >= 0 for part in parts)
    assert sum(part[0] for part in parts) == pytest.approx(times.step_s[0], rel=1e-12)
    assert times.step_s[0] >= placement_free_s(volumes)[0] * (1 - 1e-12)
    assert set(times.exposed_s) == {"tp", "cp", "ep", "pp", "dp"}


@given(rows(), st.floats(1, 10))
@examples(max_examples=50)
def test_slower_communication_is_never_a_faster_step(row: dict[str, int], factor: float) -> None:
    volumes, terms = estimated(PROFILES[0], candidates(**row))
    slower = [
        Terms({name: factor * s for name, s in t.serial_s.items()}, tuple(factor * part for part in t.traffic_s))
        for t in terms
    ]
    assert step_times(volumes, slower).step_s[0] >= step_times(volumes, terms).step_s[0]


def test_a_step_without_communication_is_computation_bubble_and_update() -> None:
    volumes, terms = estimated(PROFILES[0], candidates(pp=1, num_micro_batches=8))
    times, work = step_times(volumes, terms), volumes.work
    assert times.step_s == pytest.approx(8 * (work.forward_s + work.backward_s) + work.optimizer_s)
    assert (times.bubble_s, sum(times.exposed_s.values())) == (0, 0)


def test_the_bubble_is_one_pass_through_the_other_ranks() -> None:
    # pp 4, m 8: the last rank has the head and is the busiest; it waits for one pass through three lighter ones. The
    # tensor-parallel wait counts in all rounds and is listed in 8.
    rows_ = candidates(pp=4, tp=2, num_micro_batches=8)
    volumes, _ = estimated(PROFILES[0], rows_)
    nothing = np.zeros((TRAFFIC_ROWS, 1))
    times = step_times(volumes, [Terms({"tp": np.array([11.0])}, (nothing,))])
    whole = estimated(PROFILES[0], candidates(tp=2, num_micro_batches=8))[
        0
    ].work  # all layers, embedding and head on one rank
    one_pass, busy = (work.forward_s + work.backward_s for work in (whole, volumes.work))
    passes = volumes.work.fill_rounds[0]
    assert passes == 3
    assert times.exposed_s["tp"] == pytest.approx(11 * 8 / (8 + passes))
    assert times.bubble_s == pytest.approx(one_pass - busy + 11 * passes / (8 + passes))
    assert times.bubble_s < 3 * busy + 3.0


def test_settings_and_decisions_are_the_same_thing() -> None:
    columns = {"tp": 2, "cp": 2, "dp_shard": 4, "ep": 2, "dp_replicate": 2, "pp": 4, "num_chunks": 2, "micro_batch": 2}
    one = candidates(schedule="Interleaved1F1B", recompute="full", shard="optimizer", num_micro_batches=4, **columns)
    again = candidate_of(one.decision(0), 4 * 8 * 2)
    for field in fields(Candidates):
        assert getattr(again, field.name).tolist() == getattr(one, field.name).tolist()
    assert (int(one.dp[0]), int(one.world_size[0])) == (8, 128)
    with pytest.raises(ValueError, match="global batch of 60 sequences is no multiple of dp 8 × micro-batch 2 = 16"):
        candidate_of(one.decision(0), 60)
    both = concatenate([one, again])
    assert both.tp.tolist() == [2, 2]
    assert len(concatenate([])) == len(NOTHING) == 0


def test_exact_shapes_follow_the_axis_order() -> None:
    degrees = Degrees(tp=4, dp_shard=8, ep=2, pp=16)
    shapes = exact_shapes(degrees, ("tp", "dp_shard", "cp", "dp_replicate", "pp"), LEVELS)
    assert {name: int(shape.degree) for name, shape in shapes.items()} == {
        "tp": 4, "cp": 1, "cp_inner": 1, "cp_outer": 1, "dp_shard": 8, "dp_replicate": 1, "pp": 16, "ep": 2, "expert": 4,
    }  # fmt: skip
    assert shapes["tp"].fanout.tolist() == [4, 1, 1, 1, 1, 1]
    assert shapes["ep"].fanout.tolist() == [1, 2, 1, 1, 1, 1], "two hosts of a rack"
    assert shapes["pp"].fanout[4] == 2


def test_whole_experts_are_spread_over_neighbouring_tp_ranks() -> None:
    order = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
    inside, spread = (
        exact_shapes(Degrees(tp=4, dp_shard=4, ep=2, expert_lanes=lanes), order, LEVELS)  # type: ignore[arg-type]
        for lanes in (1, 4)
    )
    assert (int(inside["ep"].degree), int(spread["ep"].degree)) == (2, 8)
    assert (inside["ep"].fanout.tolist()[:2], spread["ep"].fanout.tolist()[:2]) == ([1, 2], [4, 2])
