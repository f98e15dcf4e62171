"""With a work limit the plan does not depend on the clock, even if every read of the clock takes hours."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

import scaleacross as sa
from instances import plain_job
from scaleacross.api.comparison import compare
from scaleacross.solvers import move_layers, search_state
from scaleacross.solvers.backends import cpsat
from scaleacross.spec.plan import Plan

JOB = plain_job(
    2, 2, degrees={"cp": 1}, micro_batch_sequences=[1, 2], recompute=["none", "full"], global_batch_sequences=12
)


def slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which an hour passes between two reads of a clock."""
    hours = itertools.count()
    for name in ("perf_counter", "process_time", "monotonic", "time"):
        monkeypatch.setattr(time, name, lambda: 3600.0 * next(hours))


def planned(work_limit: int, **how: Any) -> Plan:
    return sa.plan(JOB, work_limit=work_limit, **how)


@pytest.mark.heavy
@pytest.mark.parametrize("work_limit", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_slow_machine_has_the_same_plan(work_limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = planned(work_limit)
    slow_down(monkeypatch)
    slow = planned(work_limit)
    assert slow.decision == quick.decision
    assert [one.decision for one in slow.report.alternatives] == [one.decision for one in quick.report.alternatives]
    assert (slow.report.bound_s, slow.report.num_placed) == (quick.report.bound_s, quick.report.num_placed)
    assert any("work limit" in note for note in slow.report.notes)


@pytest.mark.heavy
def test_the_limit_counts_step_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """More work never gives a worse plan, and no candidate is placed after the limit."""
    placed: list[int] = []
    first_found = 4  # number of candidates placed here until one fits
    place = search_state.Search.place

    def counted(self: Any, *args: Any, **named: Any) -> Any:
        assert not self.out_of_time
        placed.append(1)
        return place(self, *args, **named)

    monkeypatch.setattr(search_state.Search, "place", counted)
    steps = []
    for work_limit in (1, 4, 16):
        placed.clear()
        found = planned(work_limit, alternatives=False, simulated=False)
        assert len(placed) <= max(work_limit, first_found)
        assert found.report.status == "time_limit" or len(placed) < work_limit
        steps.append(found.report.objective_s)
    assert steps == sorted(steps, reverse=True)


@pytest.mark.heavy
def test_baselines_count_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every baseline computes what the work limit allows, however slow the machine.

    Less work never gives a better plan.
    """
    job = plain_job(
        2,
        2,
        degrees={"cp": 1, "tp": 2},
        micro_batch_sequences=1,
        recompute="none",
        global_batch_sequences=12,
        schedules=["1F1B", "GPipe"],
        num_accelerators=16,
    )
    least, most = (compare(job, work_limit=work) for work in (1, 100))
    assert all(result.decision is not None for result in most.rivals if result.name in ("production", "megatron_order"))
    for one, other in zip(least.rivals, most.rivals, strict=True):
        assert one.step_s is None or other.step_s is None or other.step_s <= one.step_s * (1 + 1e-9)
    assert any(not result.complete for result in least.rivals)
    assert all(result.complete for result in most.rivals)


def test_solvers_inside_are_limited_by_their_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    solver = cpsat.Solver

    def made() -> Any:
        seen.append(solver())
        return seen[-1]

    monkeypatch.setattr(cpsat, "Solver", made)
    model = cpsat.LinearModel()
    cpsat.solve(model, 5.0)
    assert seen[0].parameters.max_deterministic_time == 5.0
    assert seen[0].parameters.max_time_in_seconds > 1e9


@pytest.mark.parametrize("work_limit", [2, 5])
def test_moves_of_layers_keep_to_the_limit(work_limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves of layers respect the limit.

    They begin when the search may have reached it, and each one times hundreds of neighbours.
    """
    timed: list[float] = []
    step_seconds = move_layers.step_seconds

    def counted(*args: Any, **named: Any) -> float:
        timed.append(step_seconds(*args, **named))
        return timed[-1]

    monkeypatch.setattr(move_layers, "step_seconds", counted)
    job = plain_job(
        4,
        degrees={"tp": 1, "cp": 1, "pp": 4},
        schedules=["Interleaved1F1B"],
        num_chunks=[3, 4],
        workload=plain_job(2).workload | {"num_layers": 43, "vocabulary_size": 30_000},  # type: ignore[operator]
    )
    found = sa.plan(job, work_limit=work_limit, alternatives=False)
    again = sa.plan(job, work_limit=work_limit, alternatives=False)
    assert found.decision == again.decision
    assert 0 < len(timed) <= 2 * 8 * work_limit  # two plans
