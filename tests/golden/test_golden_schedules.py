"""Published figures of pipeline schedules agree with the timing of the generated schedules."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from golden_tables import compare, rows

from oracles.rendezvous import starts_s
from oracles.spans import longest_span_s
from scaleacross.cost_models.pipeline.timing import PipelineTimes, time_schedule
from scaleacross.schedules.pipeline import Action, Kind, PipelineSchedule, generate
from scaleacross.schedules.pipeline.check import check, peak_in_flight
from scaleacross.schedules.pipeline.traffic import messages_over_cut


def over_the_cut(schedule: PipelineSchedule, delay: float) -> np.ndarray:
    """``delay`` at the boundaries of virtual stages across the middle cut, and 0 elsewhere."""
    p = schedule.num_ranks
    over = [
        {schedule.locate(stage)[0], schedule.locate(stage + 1)[0]} == {p // 2 - 1, p // 2}
        for stage in range(schedule.num_virtual_stages - 1)
    ]
    return np.where(over, delay, 0.0)


def timed(
    schedule: PipelineSchedule,
    F: float,
    I: float,  # noqa: E741
    W: float,
    latency: float = 0.0,
    occupancy: float = 0.0,
) -> PipelineTimes:
    """Timed schedule with times of a whole rank, split over its chunks, and delays across the middle cut."""
    check(schedule)
    v, delays = schedule.num_chunks // schedule.num_copies, (over_the_cut(schedule, x) for x in (latency, occupancy))
    return time_schedule(schedule, F / v, (I + W) / v, *delays, weight_s=W / v)


@pytest.mark.parametrize("row", rows("zero_bubble"))
def test_zero_bubble_family(row: dict[str, Any]) -> None:
    for p, m in row["shapes"]:
        schedule, reference = generate(row["schedule"], p, m, row["chunks"]), generate("1F1B", p, m, 1)
        bubble = longest_span_s(timed(schedule, 1, 1, 1)) - 3 * m
        assert bubble / (3 * (p - 1)) == pytest.approx(row["bubble"], abs=max(row["tolerance"], 1e-9))
        held = max(peak_in_flight(schedule)) / row["chunks"]
        assert held == pytest.approx(row["activations"] * p, abs=row.get("tolerance_activations", 1e-9))
        assert messages_over_cut(schedule, p // 2) == row["volume"] * messages_over_cut(reference, p // 2)


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_interleaving_crosses_a_cut_by_its_loop_backs_too(chunks: int) -> None:
    # 2v + 2(v−1) crossings per micro-batch, both directions together (CrossPipe: 6 for a loop of 2, 4 for a wave of 2)
    crossings = 2 * messages_over_cut(generate("Interleaved1F1B", 4, 8, chunks), 2) / 8
    assert crossings == 2 * chunks + 2 * (chunks - 1)
    assert 2 * messages_over_cut(generate("ZBVZeroBubble", 4, 8, 2), 2) / 8 == 4
    assert 2 * messages_over_cut(generate("DualPipe", 4, 8, 2), 2) / 8 == 2


@pytest.mark.parametrize("row", rows("crosspipe_simulator"))
def test_crosspipe_simulator(row: dict[str, Any]) -> None:
    schedule = generate(row["schedule"], row["ranks"], row["micro_batches"], row["chunks"])
    times = timed(schedule, row["F"], row["B"] - row["W"], row["W"], latency=row["delay"])
    compare(longest_span_s(times) if row.get("span") else times.total_s, row["published"], row["tolerance"], "")


def two_sites(row: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Seconds per micro-batch of the static schedules.

    Receives are posted right before computation, and ahead.
    """
    F, I, W = (row["fitted"][name] for name in "FIW")  # noqa: E741
    latency, occupancy = row["latency"] * F, row["transfer"] * F
    late, ahead = [], []
    for name, v in row["schedules"].items():
        schedule = generate(name, row["ranks"], row["micro_batches"], v)
        seconds = {Kind.F: F / v, Kind.I: I / v, Kind.W: W / v, Kind.B: (I + W) / v}
        _, end = starts_s(schedule, seconds, *(over_the_cut(schedule, delay) for delay in (latency, occupancy)))
        late.append(end / row["micro_batches"])
        ahead.append(timed(schedule, F, I, W, latency, occupancy).total_s / row["micro_batches"])
    return late, ahead


@pytest.mark.parametrize("row", rows("crosspipe_two_sites"))
def test_crosspipe_two_sites(row: dict[str, Any]) -> None:
    ours, ahead = two_sites(row)
    for seconds, published in zip(ours, row["published"], strict=True):
        compare(seconds, published, row["tolerance"], "s")
    for (first, a), (second, b) in itertools.combinations(zip(ours, row["published"], strict=True), 2):
        if abs(a / b - 1) > row["ties"]:
            assert (first < second) == (a < b), "the ranking of the schedules"
    assert all(np.array(ahead) <= np.array(ours) + 1e-12), "receives posted ahead never lengthen a step here"


@pytest.mark.parametrize("row", rows("dualpipe"))
def test_dualpipe(row: dict[str, Any]) -> None:
    p, m, (F, I, W) = row["ranks"], row["micro_batches"], row["times"].values()  # noqa: E741
    schedule = generate(row["schedule"], p, m, 2)
    check(schedule)
    v, half = schedule.num_chunks // schedule.num_copies, p * schedule.num_chunks // schedule.num_copies // 2
    B = I + W
    for ratio in row["pair_ratios"]:
        pair = ratio * (F + B)
        total, alone = with_pairs(schedule, F, I, W, pair)
        num_pairs = (m * 2 // schedule.num_copies) - alone
        work = num_pairs * pair + alone * (F + B)
        published = (half - 1) * (pair + B - 3 * W)
        print(f"pairs at {ratio}: published {published:.6g}, ours {total - work:.6g}")
        assert total - work == pytest.approx(published, rel=row["tolerance"])
    assert max(peak_in_flight(schedule)) == 2 * half + 1
    assert timed(schedule, v * F, v * I, v * W).total_s <= with_pairs(schedule, F, I, W, F + B)[0]


def with_pairs(schedule: PipelineSchedule, F: float, I: float, W: float, pair: float) -> tuple[float, int]:  # noqa: E741
    """(seconds, forwards outside pairs of the rank with most pairs). A pair is one operation of ``pair`` seconds."""
    seconds = {Kind.F: F, Kind.I: I, Kind.W: W, Kind.B: I + W}
    operations = [_operations(row) for row in schedule.actions]
    at, free = [0] * schedule.num_ranks, [0.0] * schedule.num_ranks
    done: dict[tuple[int, Action], float] = {}
    left = sum(len(row) for row in operations)
    while left:
        for rank, row in enumerate(operations):
            while at[rank] < len(row):
                operation = row[at[rank]]
                needs = [need for action in operation for need in schedule.predecessors(rank, action)]
                ends = [[done[source, a] for a in actions if (source, a) in done] for source, actions in needs]
                if not all(ends):
                    break
                start = max([free[rank], *itertools.chain(*ends)])
                free[rank] = start + (pair if len(operation) == 2 else seconds[operation[0].kind])
                done.update({(rank, action): free[rank] for action in operation})
                at[rank], left = at[rank] + 1, left - 1
    alone = [sum(len(operation) == 1 and operation[0].kind is Kind.F for operation in row) for row in operations]
    return max(free), min(alone)


def _operations(row: tuple[Action, ...]) -> list[tuple[Action, ...]]:
    """Actions of a rank, in which every F and a following B of the other chunk are one operation."""
    out: list[tuple[Action, ...]] = []
    for action in row:
        before = out[-1][0] if out and len(out[-1]) == 1 else None
        if action.kind is Kind.B and before and before.kind is Kind.F and before.chunk != action.chunk:
            out[-1] = (before, action)
        else:
            out.append((action,))
    return out
