"""Timing of schedules agrees with hand arithmetic, published figures and a second, simpler simulator."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.rendezvous import starts_s
from scaleacross.cost_models.pipeline.compiled import compile_schedule
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import SCHEDULES, Action, Kind, PipelineSchedule, generate, is_legal

SHAPES = [shape for shape in itertools.product(SCHEDULES, range(1, 6), range(1, 9), range(1, 4)) if is_legal(*shape)]


# CrossPipe (arXiv 2507.00217), simulator of C-TC/Megatron-LM branch crossdc: p = 4, m = 8, F = 200, B = 400, no delay.
@pytest.mark.parametrize(("name", "v", "total"), [("1F1B", 1, 6600), ("GPipe", 1, 6600), ("Interleaved1F1B", 2, 5700)])
def test_crosspipe_bounds(name: str, v: int, total: float) -> None:
    schedule = generate(name, 4, 8, v)  # type: ignore[arg-type]
    assert time_schedule(schedule, 200 / v, 400 / v, 0.0, 0.0).total_s == total


def test_message_occupies_the_link_then_travels() -> None:
    # 2 ranks, GPipe, m = 2, F = 1, B = 1, occupancy 3, latency 10. Forwards end at 1 and 2 on rank 0; the link is free at 4 and
    # 7, so they arrive at 14 and 17; rank 1 works 14-15, 17-18, backwards 18-19, 19-20; these arrive at 32 and 35.
    times = time_schedule(generate("GPipe", 2, 2, 1), 1.0, 1.0, [10.0], [3.0])
    assert times.start_s[0].tolist() == [0, 1, 32, 35]
    assert times.start_s[1].tolist() == [14, 17, 18, 19]
    assert times.arrival_s[0].tolist() == [14, 17, 33, 36]
    assert times.total_s == 36


def test_all_chunks_share_the_link() -> None:
    # 2 ranks, v = 2, one micro-batch: the path 0F0 0F0 1F0 1F0 and back crosses boundaries 0, 1 (loop-back), 2 both ways.
    # On the way back rank 1 sends 1B0 to rank 0 over the directed link that carried the loop-back of the forward.
    schedule = generate("Interleaved1F1B", 2, 1, 2)
    assert time_schedule(schedule, 1.0, 2.0, [1.0, 5.0, 1.0], 0.0).total_s == 4 * 1 + 4 * 2 + 2 * (1 + 5 + 1)
    # m = 2, F = 1, occupancy 4 of boundary 0 only, latency 0: forwards of chunk 0 leave rank 0 at 5 and 9; chunk 1 of
    # micro-batch 0 comes back and ends at 5+1+1 = 7, and its free message waits for the link until 9
    times = time_schedule(generate("Interleaved1F1B", 2, 2, 2), 1.0, 1.0, 0.0, [4.0, 0.0, 0.0])
    assert times.arrival_s[0][:3].tolist() == [5, 9, 9]


def test_boundary_inside_a_rank_costs_nothing() -> None:
    schedule = generate("Interleaved1F1B", 1, 3, 2)
    assert time_schedule(schedule, 1.0, 2.0, 7.0, 7.0).total_s == 3 * 2 * 3


def _placed(rows: list[str], m: int, num_copies: int) -> PipelineSchedule:
    actions = tuple(tuple(Action(Kind(c[1]), int(c[2:]), int(c[0])) for c in row.split()) for row in rows)
    return PipelineSchedule("hand-made", len(rows), m, 2, actions, "v", num_copies)


def test_v_placement_crosses_no_boundary_at_the_turn() -> None:
    schedule = _placed(["0F0 1F0 1B0 0B0", "0F0 1F0 1B0 0B0"], m=1, num_copies=1)
    assert time_schedule(schedule, 1.0, 2.0, [3.0, 99.0, 5.0], 0.0).total_s == 4 * 1 + 4 * 2 + 2 * (3 + 5)


def test_bidirectional_copies_run_at_the_same_time() -> None:
    # forwards of both copies start at 0, cross for 10, and turn on the other rank: 1 + 10 + 1 + 2 + 10 + 2
    schedule = _placed(["0F0 1F1 1B1 0B0", "1F1 0F0 0B0 1B1"], m=2, num_copies=2)
    times = time_schedule(schedule, 1.0, 2.0, [10.0, 99.0, 10.0], 0.0)
    assert times.start_s[0].tolist() == times.start_s[1].tolist() == [0, 11, 12, 24]
    assert times.total_s == 26


def test_split_backward() -> None:
    # one rank, F 1, B 5 of which W 2
    actions = (tuple(Action(kind, 0, 0) for kind in (Kind.F, Kind.I, Kind.W)),)
    schedule = PipelineSchedule("split", 1, 1, 1, actions)
    assert time_schedule(schedule, 1.0, 5.0, 0.0, 0.0, weight_s=2.0).finish_s[0].tolist() == [1, 4, 6]
    with pytest.raises(InputError, match="splits its backward: give weight_s"):
        time_schedule(schedule, 1.0, 5.0, 0.0, 0.0)
    with pytest.raises(InputError, match="backward_s - weight_s must be finite and not negative"):
        time_schedule(schedule, 1.0, 1.0, 0.0, 0.0, weight_s=2.0)


@pytest.mark.parametrize(
    ("forward", "latency", "words"),
    [
        ([1.0], 0.0, r"forward_s has shape \(1,\), expected a scalar or \(4,\)"),
        (-1.0, 0.0, "forward_s must be finite and not negative, got -1.0"),
        (1.0, [0.0, np.nan, 0.0], "latency_s must be finite and not negative, got nan"),
        (1.0, [0.0] * 4, r"latency_s has shape \(4,\)"),
    ],
)
def test_bad_times(forward: object, latency: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        time_schedule(generate("1F1B", 4, 4, 1), forward, 1.0, latency, 0.0)  # type: ignore[arg-type]


@given(st.data())
def test_equals_a_naive_event_simulation(data: st.DataObject) -> None:
    schedule = generate(*data.draw(st.sampled_from(SHAPES)))
    stages = schedule.num_virtual_stages
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    forward, gradient, weight = rng.integers(1, 9, (3, stages)).astype(float)
    latency, occupancy = rng.integers(0, 9, (2, stages - 1)).astype(float)
    backward = gradient + weight
    times = time_schedule(compile_schedule(schedule), forward, backward, latency, occupancy, weight_s=weight)
    seconds = {Kind.F: forward, Kind.B: backward, Kind.I: gradient, Kind.W: weight}
    for found, expected in zip(times.start_s, _naive(schedule, seconds, latency, occupancy), strict=True):
        assert found.tolist() == expected


def test_rendezvous_by_hand() -> None:
    # as test_message_occupies_the_link_then_travels, but messages wait for their receiver: rank 1 asks at 0, gets the first at
    # 1 + 13, works until 15, asks again and gets the second, which is ready since 2, at 15 + 13
    seconds = {Kind.F: 1.0, Kind.B: 1.0}
    starts, end = starts_s(generate("GPipe", 2, 2, 1), seconds, np.array([10.0]), np.array([3.0]))
    assert starts == [[0, 1, 30 + 13, 44 + 13], [14, 28, 29, 30]]
    assert end == 58


def _naive(
    schedule: PipelineSchedule, seconds: dict[Kind, np.ndarray], latency: np.ndarray, occupancy: np.ndarray
) -> list[list[float]]:
    """Start times from an event queue in order of time.

    A message is booked on its link when it is produced.
    """
    arrived: dict[tuple[bool, int, int], float] = {}
    link_free: dict[tuple[int, int], float] = {}
    starts: list[list[float]] = [[] for _ in range(schedule.num_ranks)]
    free = [0.0] * schedule.num_ranks
    running: list[tuple[float, int]] = []
    idle = set(range(schedule.num_ranks))
    while True:
        for rank in sorted(idle):
            at = len(starts[rank])
            if at == len(schedule.actions[rank]):
                continue
            action = schedule.actions[rank][at]
            stage = schedule.virtual_stage(rank, action.chunk)
            forward = action.kind is Kind.F
            own = action.kind is Kind.W or (schedule.is_first(stage) if forward else schedule.is_last(stage))
            there = 0.0 if own else arrived.get((forward, stage, action.microbatch))
            if there is None:
                continue
            starts[rank].append(max(free[rank], there))
            free[rank] = starts[rank][-1] + seconds[action.kind][stage]
            idle.discard(rank)
            heapq.heappush(running, (free[rank], rank))
        if not running:
            return starts
        now, rank = heapq.heappop(running)
        idle.add(rank)
        action = schedule.actions[rank][len(starts[rank]) - 1]
        stage = schedule.virtual_stage(rank, action.chunk)
        forward = action.kind is Kind.F
        target = stage + 1 if forward else stage - 1
        if action.kind is not Kind.W and not (schedule.is_last(stage) if forward else schedule.is_first(stage)):
            receiver, boundary = schedule.locate(target)[0], min(stage, target)
            local = receiver == rank
            leave = max(now, link_free.get((rank, receiver), 0.0)) + (0.0 if local else occupancy[boundary])
            link_free[rank, receiver] = leave
            arrived[forward, target, action.microbatch] = leave + (0.0 if local else latency[boundary])


def test_directions_differ() -> None:
    """One micro-batch on two ranks: F 0–1, message of 2 + 3, F 6–7, B 7–9, message of 1 + 5, B 15–17."""
    one = generate("GPipe", 2, 1, 1)
    assert time_schedule(one, 1.0, 2.0, [[3.0], [5.0]], [[2.0], [1.0]]).total_s == 6 + 1 + 2 + 6 + 2
