"""Pipeline ranks on shared links agree with a simulation in ticks and with the two laws that bound it."""

from __future__ import annotations

import numpy as np
import pytest

from scaleacross.cost_models.pipeline.compiled import compile_schedule
from scaleacross.cost_models.pipeline.shared_links import States, is_crowded
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


def drawn_states(seed: int, stages: int) -> States:
    """Random states of two communicators. The first crosses buildings, the second does not."""
    rng = np.random.default_rng(seed)
    gradients, parameters = rng.uniform(1, 9, (2, 2, stages))
    share = np.array([[0.6], [0.0]])
    pieces = rng.integers(1, 4, stages).astype(float)
    return States(np.stack([gradients, share * gradients]), np.stack([parameters, share * parameters]), pieces)


class Ticking:
    """A step in ticks.

    Every tick gives each action and call its share of the links. Messages take no time.
    """

    def __init__(self, schedule: PipelineSchedule, lasts: np.ndarray, busy: np.ndarray, states: States) -> None:
        self.schedule, self.lasts, self.busy, self.states = schedule, lasts, busy, states
        self.at, self.left, self.parts = ([0] * schedule.num_ranks for _ in range(3))
        self.done: set[tuple[Kind, int, int]] = set()
        self.lanes: dict[
            tuple[int, int], list[list[float]]
        ] = {}  # of a rank's communicator: stage, part, seconds left, way
        self.there: dict[int, int] = {}
        self.now = self.states_s = 0.0
        for stage in self._by_first_use():
            for part in range(int(states.pieces[stage])):
                self._send(stage, part, communicator=1, forward=True)

    def _by_first_use(self) -> list[int]:
        firsts = {}
        for rank, row in enumerate(self.schedule.actions):
            for at, action in enumerate(row):
                if action.kind is Kind.F:
                    firsts.setdefault(self.schedule.virtual_stage(rank, action.chunk), (rank, at))
        return sorted(firsts, key=lambda stage: firsts[stage])

    def _send(self, stage: int, part: int, communicator: int, forward: bool) -> None:
        seconds = (self.states.parameters_s if forward else self.states.gradients_s)[0, communicator, stage]
        lane = self.schedule.locate(stage)[0], communicator
        self.lanes.setdefault(lane, []).append([stage, part, seconds / self.states.pieces[stage], forward])

    def _outermost(self, rank: int, at: int, kinds: tuple[Kind, ...]) -> bool:
        """Whether an action is the first F of its stage, or the last that computes gradients."""
        row, action = self.schedule.actions[rank], self.schedule.actions[rank][at]
        others = [i for i, one in enumerate(row) if one.chunk == action.chunk and one.kind in kinds]
        return action.kind in kinds and at == (others[0] if kinds == (Kind.F,) else others[-1])

    def _runs(self, rank: int) -> bool:
        action = self.schedule.actions[rank][self.at[rank]]
        stage = self.schedule.virtual_stage(rank, action.chunk)
        step = -1 if action.kind is Kind.F else 1
        ends = self.schedule.is_first(stage) if action.kind is Kind.F else self.schedule.is_last(stage)
        kinds = {Kind.F: (Kind.F,), Kind.W: ()}.get(action.kind, (Kind.B, Kind.I))
        if not (ends or not kinds or any((kind, stage + step, action.microbatch) in self.done for kind in kinds)):
            return False
        return not self._outermost(rank, self.at[rank], (Kind.F,)) or self.there.get(stage, 0) > self.parts[rank]

    def run(self, tick: float) -> tuple[float, float]:
        """Ends of the last action and of the last call."""
        ended = 0.0
        rows = self.schedule.actions
        while any(self.at[rank] < len(row) for rank, row in enumerate(rows)) or any(self.lanes.values()):
            running = [rank for rank, row in enumerate(rows) if self.at[rank] < len(row) and self._runs(rank)]
            own = {
                rank: (KINDS.index(a.kind), self.schedule.virtual_stage(rank, a.chunk))
                for rank in running
                for a in [rows[rank][self.at[rank]]]
            }
            asks = {rank: self.busy[key] / self.lasts[key] for rank, key in own.items()}
            calls = {lane: 0.6 if lane[1] == 0 else 0.0 for lane, queue in self.lanes.items() if queue}
            passes, states = sum(asks.values()), sum(calls.values())
            asking = [one for one in asks.values() if one]
            slower = max(1.0, passes) + (states * float(np.mean(asking)) if asking else 0.0)
            left = min(1.0, (1 - passes / slower) / states) if states else 1.0
            self.now += tick
            for lane, ask in calls.items():
                self._call(lane, tick * (left if ask else 1.0))
            for rank in running:
                if self._act(rank, own[rank], tick / (slower if asks[rank] else 1.0)):
                    ended = self.now
        return ended, self.states_s

    def _call(self, lane: tuple[int, int], passed: float) -> None:
        call = self.lanes[lane][0]
        call[2] -= passed
        if call[2] <= 1e-9:
            stage, part, _, forward = self.lanes[lane].pop(0)
            self.states_s = self.now
            if forward and lane[1] == 1:
                self._send(int(stage), int(part), 0, forward=True)
            elif forward:
                self.there[int(stage)] = self.there.get(int(stage), 0) + 1
            elif lane[1] == 0:
                self._send(int(stage), int(part), 1, forward=False)

    def _act(self, rank: int, own: tuple[int, int], passed: float) -> bool:
        """Advance an action; return whether it has ended."""
        stage = own[1]
        action, first = self.schedule.actions[rank][self.at[rank]], self._outermost(rank, self.at[rank], (Kind.F,))
        last = self._outermost(rank, self.at[rank], (Kind.B, Kind.W))
        parts = int(self.states.pieces[stage]) if first or last else 1
        self.left[rank] += passed
        if self.left[rank] < self.lasts[own] / parts - 1e-9:
            return False
        self.left[rank] = 0
        if last:
            self._send(stage, self.parts[rank], 0, forward=False)
        self.parts[rank] += 1
        if self.parts[rank] < parts:
            return False
        self.parts[rank] = 0
        self.done.add((action.kind, stage, action.microbatch))
        self.at[rank] += 1
        return True


@pytest.mark.parametrize(
    "shape", [*SHAPES[1:3], *(pytest.param(shape, marks=pytest.mark.heavy) for shape in (SHAPES[0], *SHAPES[3:]))]
)
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_gradients_and_parameters_take_their_turns(shape: tuple[str, int, int, int], seed: int) -> None:
    schedule = generate(*shape)
    lasts, busy = drawn(seed, schedule.num_virtual_stages)
    states = drawn_states(seed, schedule.num_virtual_stages)
    split = {"weight_s": lasts[3], "input_s": lasts[2]}
    times = time_schedule(compile_schedule(schedule), lasts[0], lasts[1], 0.0, 0.0, **split, link_s=busy, states=states)
    tick = 0.01
    ended, states_s = Ticking(schedule, lasts, busy, states).run(tick)
    assert times.total_s == pytest.approx(ended, rel=0.03)
    assert times.states_s == pytest.approx(states_s, rel=0.03)
    sent = states.gradients_s[1].sum() + states.parameters_s[1].sum()
    assert max(times.total_s, times.states_s) >= sent  # links are busy for at most a second per second
