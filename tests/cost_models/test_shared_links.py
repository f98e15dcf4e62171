"""Pipeline ranks on shared links agree with a simulation in ticks and with the two laws that bound it."""

from __future__ import annotations

import numpy as np
import pytest

from scaleacross.cost_models.pipeline.compiled import compile_schedule
from scaleacross.cost_models.pipeline.shared_links import is_crowded
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.schedules.pipeline import Kind, PipelineSchedule, generate

SHAPES = [
    ("1F1B", 4, 6, 1),
    ("GPipe", 3, 5, 1),
    ("Interleaved1F1B", 2, 4, 2),
    ("ZBH1", 4, 5, 1),
    ("ZBVZeroBubble", 3, 6, 2),
]
KINDS = list(Kind)
SEEDS = [0, pytest.param(1, marks=pytest.mark.heavy), *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]


def drawn(seed: int, stages: int) -> tuple[np.ndarray, np.ndarray]:
    """Random whole ticks of F, B, I and W, and of their busy links. Weight gradients use no links."""
    rng = np.random.default_rng(seed)
    lasts = rng.integers(2, 9, (4, stages)).astype(float)
    lasts[1] = lasts[2] + lasts[3]
    busy = lasts * rng.random((4, stages))
    busy[3] = 0.0
    return lasts, busy


def ticked(schedule: PipelineSchedule, lasts: np.ndarray, busy: np.ndarray, tick: float) -> float:
    """End of a step whose messages take no time.

    In every tick each rank works on its next action, if its inputs are ready.
    """
    done: set[tuple[Kind, int, int]] = set()
    at, left = [0] * schedule.num_ranks, [-1.0] * schedule.num_ranks
    now = 0.0
    while any(at[rank] < len(row) for rank, row in enumerate(schedule.actions)):
        running = []
        for rank, row in enumerate(schedule.actions):
            if at[rank] == len(row):
                continue
            action = row[at[rank]]
            stage = schedule.virtual_stage(rank, action.chunk)
            step = -1 if action.kind is Kind.F else 1
            ends = schedule.is_first(stage) if action.kind is Kind.F else schedule.is_last(stage)
            kinds = {Kind.F: (Kind.F,), Kind.W: ()}.get(action.kind, (Kind.B, Kind.I))
            ready = ends or not kinds or any((kind, stage + step, action.microbatch) in done for kind in kinds)
            if ready:
                kind = KINDS.index(action.kind)
                if left[rank] < 0:
                    left[rank] = lasts[kind, stage]
                running.append((rank, stage, action, busy[kind, stage] / lasts[kind, stage]))
        pace = 1 / max(1.0, sum(asked for *_, asked in running))
        now += tick
        for rank, stage, action, asked in running:
            left[rank] -= tick * (pace if asked else 1.0)
            if left[rank] <= 1e-9:
                done.add((action.kind, stage, action.microbatch))
                at[rank], left[rank] = at[rank] + 1, -1.0
    return now


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_actions_slow_down_while_they_ask_for_more_than_links_carry(
    shape: tuple[str, int, int, int], seed: int
) -> None:
    schedule = generate(*shape)
    lasts, busy = drawn(seed, schedule.num_virtual_stages)
    compiled, split = compile_schedule(schedule), {"weight_s": lasts[3], "input_s": lasts[2]}
    rank = np.array([schedule.locate(stage)[0] for stage in range(schedule.num_virtual_stages)])
    assert is_crowded(lasts, busy, rank)
    alone = time_schedule(compiled, lasts[0], lasts[1], 0.0, 0.0, **split).total_s
    times = time_schedule(compiled, lasts[0], lasts[1], 0.0, 0.0, **split, link_s=busy)
    tick = 0.005
    late = tick * 2 * len(compiled.rank)  # each action ends within a tick, so the error is at most one tick each
    assert times.total_s <= ticked(schedule, lasts, busy, tick) + 1e-9 <= times.total_s + late
    assert times.total_s >= alone * (1 - 1e-12)
    often = np.bincount(compiled.kind * busy.shape[1] + compiled.stage, minlength=busy.size).reshape(busy.shape)
    assert times.total_s >= (often * busy).sum()  # links are busy for at most a second per second
    assert all((end - start >= 0).all() for start, end in zip(times.start_s, times.finish_s, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_links_that_are_never_crowded_change_nothing(shape: tuple[str, int, int, int]) -> None:
    schedule = generate(*shape)
    lasts, busy = drawn(1, schedule.num_virtual_stages)
    busy /= schedule.num_ranks
    rank = np.array([schedule.locate(stage)[0] for stage in range(schedule.num_virtual_stages)])
    assert not is_crowded(lasts, busy, rank)
    compiled, split = compile_schedule(schedule), {"weight_s": lasts[3], "input_s": lasts[2]}
    messages = 0.5, 0.25
    alone = time_schedule(compiled, lasts[0], lasts[1], *messages, **split)
    shared = time_schedule(compiled, lasts[0], lasts[1], *messages, **split, link_s=busy)
    for one, other in zip(alone.start_s + alone.arrival_s, shared.start_s + shared.arrival_s, strict=True):
        assert other == pytest.approx(one, abs=1e-9)
