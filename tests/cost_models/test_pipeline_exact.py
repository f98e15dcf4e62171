"""Exact times from a steady state equal the timing of every action."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike

from scaleacross.cost_models.pipeline import exact as pipeline_exact
from scaleacross.cost_models.pipeline.compiled import CompiledSchedule, compile_schedule
from scaleacross.cost_models.pipeline.exact import exact_ends
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import chosen, generate, is_legal
from scaleacross.spec.parallelism import PipelineChoice, ScheduleName


def total_s(
    name: ScheduleName,
    p: int,
    m: int,
    v: int,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    latency_s: ArrayLike,
    occupancy_s: ArrayLike,
) -> float:
    seconds = (forward_s, backward_s, *np.zeros((4, p * v)))
    return exact_ends(PipelineChoice(schedule=name, num_chunks=v), p, m, seconds, latency_s, occupancy_s).total_s


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "Interleaved1F1B"])
def test_short_runs_equal_timing(name: ScheduleName) -> None:
    rng = np.random.default_rng(1)
    for p, m, v in ((p, m, v) for p in range(1, 7) for m in range(1, 14) for v in (1, 2, 3) if is_legal(name, p, m, v)):
        forward, backward = rng.uniform(0.5, 3, (2, p * v))
        size = p - 1 if v == 1 else p
        latency, occupancy = rng.uniform(0, 2, (2, size))
        virtual = [
            np.tile(np.resize(row, p) if p > 1 or v > 1 else np.zeros(1), v)[: p * v - 1]
            for row in (latency, occupancy)
        ]
        timed = time_schedule(generate(name, p, m, v), forward, backward, *virtual).total_s
        assert total_s(name, p, m, v, forward, backward, latency, occupancy) == pytest.approx(timed, rel=1e-12)


@pytest.mark.parametrize("busy", [0.0, 0.4, 3.0], ids=["latency", "occupancy", "queues"])
@pytest.mark.parametrize("v", [1, 2, 3])
def test_long_runs_equal_timing(v: int, busy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    name: ScheduleName = "1F1B" if v == 1 else "Interleaved1F1B"
    monkeypatch.setattr(pipeline_exact, "_DIRECT_ACTIONS", 0)
    skipped = 0
    for p in range(2, 7):
        m = p * int(rng.integers(50, 90)) + (int(rng.integers(0, p)) if v == 1 else 0)
        size = p - 1 if v == 1 else p
        forward, backward = rng.uniform(0.5, 3, (2, p * v)) if p % 2 else np.ones((2, p * v))
        latency = rng.uniform(0, 3, size) * rng.integers(0, 2, size)
        occupancy = busy * rng.uniform(0, 1, size)
        timed: list[int] = []

        def counted(choice: PipelineChoice, p: int, m: int, timed: list[int] = timed) -> object:
            timed.append(m)
            return chosen(choice, p, m)

        monkeypatch.setattr(pipeline_exact, "chosen", counted)
        found = total_s(name, p, m, v, forward, backward, latency, occupancy)
        virtual = [np.tile(np.resize(row, p), v)[: p * v - 1] for row in (latency, occupancy)]
        assert found == pytest.approx(
            time_schedule(generate(name, p, m, v), forward, backward, *virtual).total_s, rel=1e-11
        )
        skipped += m not in timed
    assert skipped >= 4, "the steady state must be found in almost all of these"


def test_rounds_of_more_than_pp_repeat_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of more than pp micro-batches repeat too.

    28 rounds of 33 micro-batches on 32 ranks are timed from the first eight.
    """
    p, m, v = 32, 924, 2
    forward, backward = np.random.default_rng(1).uniform(0.5, 3, (2, p * v))
    whole = time_schedule(generate("Interleaved1F1B", p, m, v), forward, backward, 0.3, 0.0).total_s
    monkeypatch.setattr(pipeline_exact, "_DIRECT_ACTIONS", 0)
    timed: list[int] = []

    def counted(choice: PipelineChoice, p: int, m: int) -> CompiledSchedule:
        timed.append(m)
        return compile_schedule(chosen(choice, p, m))

    monkeypatch.setattr(pipeline_exact, "compiled_schedule", counted)
    assert total_s("Interleaved1F1B", p, m, v, forward, backward, 0.3, 0.0) == pytest.approx(whole, rel=1e-11)
    assert timed and m not in timed


def test_thousands_of_microbatches() -> None:
    # 1F1B pays c·(2 + 2·⌊(m−q)/2⌋) for one slow boundary
    latency = np.zeros(15)
    latency[7] = 0.002
    law = (6000 + 15) * 0.09 + 0.002 * (2 + 2 * ((6000 - 8) // 2))
    assert total_s("1F1B", 16, 6000, 1, 0.03, 0.06, latency, 0.0) == pytest.approx(law, rel=1e-10)


def test_refuses_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="7 on 8 ranks"):
        total_s("1F1B", 8, 7, 1, 1.0, 2.0, 0.0, 0.0)
    with pytest.raises(
        InputError, match=r"latency_s has shape \(3,\).*each of 4 boundaries, the last for the loop-back"
    ):
        total_s("Interleaved1F1B", 4, 8, 2, 1.0, 2.0, [1.0] * 3, 0.0)
    with pytest.raises(InputError, match=r"forward_s has shape \(3,\)"):
        total_s("GPipe", 4, 8, 1, [1.0] * 3, 2.0, 0.0, 0.0)
    monkeypatch.setattr(pipeline_exact, "MAX_ACTIONS", 100)
    with pytest.raises(InputError, match=r"128 actions.*at most 100 are timed: use at most 12 micro-batches"):
        total_s("1F1B", 4, 16, 1, 1.0, 2.0, 0.0, 0.0)
