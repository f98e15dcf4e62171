"""Closed forms of pipelines agree with the timing of generated schedules."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from scaleacross.cost_models.pipeline import closed_form as pipeline
from scaleacross.cost_models.pipeline.compiled import CompiledSchedule, compile_schedule
from scaleacross.cost_models.pipeline.delay import BoundaryDelays, microbatches_per_round
from scaleacross.cost_models.pipeline.timed_bounds import max_in_flight
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.schedules.pipeline import generate, refusal
from scaleacross.schedules.pipeline import interleaved_1f1b as interleaved
from scaleacross.schedules.pipeline.check import peak_in_flight
from scaleacross.spec.parallelism import ScheduleName

CLOSED: tuple[ScheduleName, ...] = ("GPipe", "1F1B", "Interleaved1F1B")
SHAPES = list(itertools.product(CLOSED, range(1, 13), range(1, 33), range(1, 4)))
LEGAL = [shape for shape in SHAPES if refusal(*shape) is None]


def _delays(inner: float = 0.0, slow: float = 0.0, loop: float = 0.0, **slow_boundaries: int) -> BoundaryDelays:
    return BoundaryDelays(inner_s=inner, slow_s=slow, loop_s=loop, occupancy_s=0.0, **slow_boundaries)


def _undelayed_s(*of: Any) -> np.ndarray:
    return pipeline.lower_bound_s(*of, _delays())


def _boundaries(p: int, v: int, delays: BoundaryDelays, tails: list[int]) -> np.ndarray:
    """Delay of each of the p·v−1 boundaries.

    Slow boundaries are in front of the last ``tails`` ranks.
    """
    row = np.full(p, float(delays.inner_s))  # type: ignore[arg-type]
    row[[p - 1 - tail for tail in tails]] = delays.slow_s
    row[p - 1] = delays.loop_s
    return np.tile(row, v)[: p * v - 1]


def _timed(compiled: CompiledSchedule, F: float, B: float, delay: np.ndarray | float, occupancy: float = 0.0) -> float:
    """Timed seconds if every boundary occupies its link for ``occupancy`` of its delay, at most for all of it."""
    v = compiled.schedule.num_chunks
    busy = np.minimum(delay, occupancy)
    return time_schedule(compiled, F / v, B / v, delay - busy, busy).total_s


def test_rounds_equal_the_generators() -> None:
    p, m = np.meshgrid(np.arange(1, 20), np.arange(1, 60))
    expected = [interleaved.microbatches_per_round(*pair) for pair in zip(p.flat, m.flat, strict=True)]
    assert microbatches_per_round(p, m).ravel().tolist() == expected


def test_in_flight_equals_the_count() -> None:
    for shape in LEGAL:
        counted = peak_in_flight(generate(*shape))
        assert max_in_flight(*shape, np.arange(shape[1])).tolist() == list(counted)


@pytest.mark.parametrize(
    ("F", "B"), [(1.0, 2.0), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((2.0, 1.0), (0.0, 3.0)))]
)
@pytest.mark.parametrize("first", [0, *(pytest.param(one, marks=pytest.mark.heavy) for one in (1, 2))])
def test_zero_delay_equals_timing(F: float, B: float, first: int) -> None:
    name, p, m, v = (np.array(column) for column in zip(*LEGAL[first::3], strict=True))
    timed = [_timed(compile_schedule(generate(*shape)), F, B, 0.0) for shape in LEGAL[first::3]]
    np.testing.assert_allclose(_undelayed_s(name, p, m, v, F, B), timed, rtol=1e-12)


# Bubbles of Narayanan et al., arXiv 2104.04473, section 2.2: (p-1)(F+B), divided by v when interleaved.
@pytest.mark.parametrize(("name", "v"), [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("Interleaved1F1B", 5)])
def test_published_bubble(name: ScheduleName, v: int) -> None:
    for p, rounds in itertools.product(range(1, 17), range(1, 6)):
        m = p * rounds
        assert _undelayed_s(name, p, m, v, 10, 20) == pytest.approx(30 * m + 30 * (p - 1) / v)


@each("beyond", (0,), heavy=(1, 2))
def test_one_f_one_b_with_one_slow_boundary_is_exact(beyond: int) -> None:
    """With one slow boundary 1F1B takes c·(2 + 2·⌊(m−q)/2⌋) more, whatever F, B and c.

    The test covers all p ≤ 10, every third m ≤ 24 and every boundary.
    """
    count = 0
    for p in range(2, 11):
        for m in range(p + beyond, 25, 3):
            compiled = compile_schedule(generate("1F1B", p, m, 1))
            for tail in range(1, p):
                for F, B, c in ((1.0, 2.0, 0.25), (2.0, 1.5, 4.0)):
                    delays = _delays(slow=c, num_slow=1, slow_tail=tail)
                    timed = _timed(compiled, F, B, _boundaries(p, 1, delays, [tail]))
                    law = (m + p - 1) * (F + B) + c * (2 + 2 * ((m - tail) // 2))
                    assert timed == pytest.approx(law)
                    assert pipeline.lower_bound_s("1F1B", p, m, 1, F, B, delays) == pytest.approx(law)
                    count += 1
    assert count > 500


def test_one_f_one_b_with_equal_delays_is_exact() -> None:
    """If all boundaries take c, 1F1B takes 2c·[(p−1) + (m−1) − ⌈(m−1)/p⌉] more."""
    for p, m in [(p, m) for p, m in itertools.product(range(1, 13), range(1, 33)) if p <= m]:
        timed = _timed(compile_schedule(generate("1F1B", p, m, 1)), 1.0, 2.0, np.full(p - 1, 0.75))
        penalty = 2 * 0.75 * (p - 1 + m - 1 - -(-(m - 1) // p))
        assert timed == pytest.approx(3.0 * (m + p - 1) + penalty)
        delayed = pipeline.lower_bound_s("1F1B", p, m, 1, 1.0, 2.0, _delays(inner=0.75))
        assert delayed - _undelayed_s("1F1B", p, m, 1, 1.0, 2.0) == pytest.approx(penalty)


SECONDS = st.floats(0.1, 4.0)
Case = tuple[tuple[ScheduleName, int, int, int], float, float, dict[str, Any], list[int]]


@st.composite
def _cases(draw: st.DrawFn, names: tuple[ScheduleName, ...], max_slow: int, unequal: bool) -> Case:
    """Cases of (name, p, m, v), F, B, fields of BoundaryDelays without occupancy, and the tails of the slow boundaries."""
    name, p, m, v = draw(st.sampled_from([shape for shape in LEGAL if shape[0] in names and shape[1] <= 9]))
    count = draw(st.integers(0, min(max_slow, p - 1)))
    if unequal:
        tails = sorted(draw(st.lists(st.integers(1, max(1, p - 1)), min_size=count, max_size=count, unique=True)))
        spacing = max([b - a for a, b in itertools.pairwise(tails)], default=1)
    else:
        spacing = draw(st.integers(1, max(1, (p - 2) // max(1, count - 1)))) if count > 1 else 1
        first = draw(st.integers(1, max(1, p - 1 - spacing * (count - 1)))) if count else 1
        tails = [first + i * spacing for i in range(count)]
    F, B = draw(SECONDS), draw(SECONDS)
    slow = draw(st.floats(0.0, 4.0)) * (F + B) / v
    fast = draw(st.sampled_from([0.0, 0.01, 0.3, 1.0])) * slow
    fields = {"inner_s": fast, "slow_s": slow, "loop_s": draw(st.sampled_from([0.0, fast, slow]))}
    fields |= {"num_slow": count, "slow_tail": tails[0] if tails else 1, "slow_spacing": spacing}
    return (name, p, m, v), F, B, fields, tails


@given(_cases(("1F1B",), max_slow=1, unequal=False), st.floats(0.0, 1.0))
def test_one_f_one_b_is_exact_without_queues(case: Case, share: float) -> None:
    shape, F, B, fields, tails = case
    delays = BoundaryDelays(**fields, occupancy_s=share * min(F, B))
    timed = _timed(compile_schedule(generate(*shape)), F, B, _boundaries(shape[1], 1, delays, tails), share * min(F, B))
    assert pipeline.lower_bound_s(*shape, F, B, _within(delays)) == pytest.approx(timed)


@given(_cases(("GPipe",), max_slow=3, unequal=True), st.floats(0.0, 4.0))
def test_gpipe_is_exact_with_queues(case: Case, share: float) -> None:
    shape, F, B, fields, tails = case
    delays = BoundaryDelays(**fields, occupancy_s=share * min(F, B))
    timed = _timed(compile_schedule(generate(*shape)), F, B, _boundaries(shape[1], 1, delays, tails), share * min(F, B))
    assert pipeline.lower_bound_s(*shape, F, B, _within(delays)) == pytest.approx(timed)


@given(_cases(("Interleaved1F1B",), max_slow=3, unequal=True), st.floats(0.0, 1.0))
def test_interleaved_is_exact_while_delays_are_overlapped(case: Case, share: float) -> None:
    shape, F, B, fields, tails = case
    p, v = shape[1], shape[3]
    limit = (F + B) / (2 * v)
    scale = min(1.0, limit / max(fields["slow_s"], fields["inner_s"], fields["loop_s"], 1e-9))
    fields |= {key: fields[key] * scale for key in ("inner_s", "slow_s", "loop_s")}
    delays = BoundaryDelays(**fields, occupancy_s=share * min(F, B) / v)
    timed = _timed(compile_schedule(generate(*shape)), F, B, _boundaries(p, v, delays, tails), share * min(F, B) / v)
    assert pipeline.lower_bound_s(*shape, F, B, _within(delays)) == pytest.approx(timed)


def test_hidden_delays_cost_two_trips() -> None:
    # p 4, m 8, v 2, F 1, B 2: D = 1.5; delays .25 and P + loop = 1.0 ≤ 4·0.5, so 2·(2·0.75 + 0.25)
    shape = ("Interleaved1F1B", 4, 8, 2, 1, 2)
    delayed = pipeline.lower_bound_s(*shape, _delays(inner=0.25, loop=0.25))
    assert delayed - _undelayed_s(*shape) == pytest.approx(3.5)


@given(_cases(("GPipe", "1F1B", "Interleaved1F1B"), max_slow=4, unequal=True), st.floats(0.0, 4.0))
@settings(max_examples=200)
def test_bound_never_exceeds_timing(case: Case, share: float) -> None:
    shape, F, B, fields, tails = case
    p, v = shape[1], shape[3]
    occupancy = share * min(F, B) / v
    delays = BoundaryDelays(**fields, occupancy_s=occupancy)
    timed = _timed(compile_schedule(generate(*shape)), F, B, _boundaries(p, v, delays, tails), occupancy)
    assert pipeline.lower_bound_s(*shape, F, B, _within(delays)) <= timed * (1 + 1e-12)


@pytest.mark.parametrize("name", ["1F1B", "Interleaved1F1B"])
def test_a_thin_boundary_carries_its_messages_one_by_one(name: ScheduleName) -> None:
    """A narrow boundary sends its messages one by one.

    On two ranks the bound is the first pass, all forward messages and the last message back. With two micro-batches
    this is the step.
    """
    for m, busy, latency in itertools.product((2, 4, 8), (5.0, 50.0), (0.0, 7.0)):
        v = 1 if name == "1F1B" else 2
        delays = BoundaryDelays(inner_s=busy + latency, slow_s=0.0, loop_s=busy + latency, occupancy_s=busy)
        timed = time_schedule(compile_schedule(generate(name, 2, m, v)), 1 / v, 1 / v, latency, busy).total_s
        bound = float(pipeline.lower_bound_s(name, 2, m, v, 1.0, 1.0, delays))
        assert bound <= timed * (1 + 1e-12), (m, busy, latency)
        if v == 1 and m == 2:
            assert bound == pytest.approx(4 + 2 * (busy + latency) + busy) == timed, (busy, latency)


@pytest.mark.slow
def test_bound_never_exceeds_timing_on_a_grid() -> None:
    """The bound never exceeds the timed step on a grid, and it stays close.

    The grid has delays of many sizes against D, every slow boundary, and fast and slow loop-back.
    """
    worst = 0.0
    for p, rounds, v in itertools.product(range(2, 9), (1, 2, 4), (2, 3, 4)):
        compiled = compile_schedule(generate("Interleaved1F1B", p, p * rounds, v))
        for tail, c, B, loop_slow in itertools.product(
            range(1, p), (0.2, 0.5, 0.8, 1.5, 4.0), (1.0, 2.5), (False, True)
        ):
            slow = c * (1 + B) / v
            delays = _delays(slow=slow, loop=slow * loop_slow, num_slow=1, slow_tail=tail)
            timed = _timed(compiled, 1.0, B, _boundaries(p, v, delays, [tail]))
            bound = float(pipeline.lower_bound_s("Interleaved1F1B", p, p * rounds, v, 1.0, B, delays))
            assert bound <= timed * (1 + 1e-12)
            worst = max(worst, 1 - bound / timed)
    assert worst < 0.16


@given(_cases(("1F1B",), max_slow=4, unequal=False))
def test_one_f_one_b_with_several_slow_boundaries_is_tight(case: Case) -> None:
    shape, F, B, fields, tails = case
    delays = BoundaryDelays(**fields, occupancy_s=0.0)
    timed = _timed(compile_schedule(generate(*shape)), F, B, _boundaries(shape[1], 1, delays, tails))
    bound = float(pipeline.lower_bound_s(*shape, F, B, delays))
    assert bound <= timed * (1 + 1e-12)
    assert timed - bound <= 0.01 * timed


def test_arrays_are_estimated_like_scalars() -> None:
    rng = np.random.default_rng(0)
    rows = [LEGAL[i] for i in rng.integers(0, len(LEGAL), 200)]
    name, p, m, v = (np.array(column) for column in zip(*rows, strict=True))
    fields = {
        "inner_s": rng.uniform(0, 0.1, 200), "slow_s": rng.uniform(0.1, 2, 200), "loop_s": rng.uniform(0, 2, 200),
        "occupancy_s": rng.uniform(0, 0.1, 200), "num_slow": np.minimum(p - 1, rng.integers(0, 4, 200)),
        "slow_tail": rng.integers(1, 4, 200), "slow_spacing": rng.integers(1, 4, 200),
    }  # fmt: skip
    at_once = pipeline.lower_bound_s(name, p, m, v, 1.0, 2.0, BoundaryDelays(**fields))
    for i, row in enumerate(rows):
        one = BoundaryDelays(**{key: values[i] for key, values in fields.items()})
        assert pipeline.lower_bound_s(*row, 1.0, 2.0, one) == at_once[i]


def _within(delays: BoundaryDelays) -> BoundaryDelays:
    """``delays`` with the occupancy that ``_timed`` gives the slowest boundary, at most its delay."""
    largest = delays.slow_s if delays.num_slow else delays.inner_s
    return BoundaryDelays(**{**delays.__dict__, "occupancy_s": min(float(delays.occupancy_s), float(largest))})  # type: ignore[arg-type]
