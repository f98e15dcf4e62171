"""Points of a sweep try the decisions that their neighbours found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scaleacross as sa
from instances import plain_job
from scaleacross.api import sweep_neighbours, sweep_points, sweeping
from scaleacross.api.engines.outcome import Record
from scaleacross.api.study_store import kept_in
from scaleacross.api.sweep_neighbours import neighbours
from scaleacross.catalogue import Point
from scaleacross.errors import TimeLimitError
from scaleacross.spec.study import Study

LATENCY = "topology.regions.0.buildings.0.links.zone.one_way_latency_us"
SMALL: dict[str, Any] = {"schedules": ["1F1B"], "recompute": ["none"], "micro_batch_sequences": [1]}
BAD = ("degrees.tp=1", "degrees.cp=2", "degrees.pp=4")


def study(**changes: Any) -> dict[str, Any]:
    """A study of one job on four latencies."""
    job = plain_job(2, **SMALL).model_dump(mode="json", exclude_none=True)
    return {"name": "line", "base": [job], "grid": {LATENCY: [5, 10, 20, 40]}, "work_limit": 200} | changes


def test_neighbours_are_one_value_apart_on_one_thing() -> None:
    job = plain_job(2, **SMALL).model_dump(mode="json", exclude_none=True)
    of = study(
        base=[job, job],
        grid={LATENCY: [5, 10, 20]},
        zipped=[{"sequence_length": [2048, 4096], "global_batch_sequences": [8, 16]}],
    )
    assert neighbours(Study.model_validate(of)) == [
        [2, 1],
        [3, 0],
        [0, 4, 3],
        [1, 5, 2],
        [2, 5],
        [3, 4],
        [8, 7],
        [9, 6],
        [6, 10, 9],
        [7, 11, 8],
        [8, 11],
        [9, 10],
    ]


def found_at(good: int, otherwise: Any) -> Any:
    """A runner that searches point ``good`` and calls ``otherwise`` for the plans of the others."""

    def run(study: Study, point: Point) -> Record:
        if point.fields[LATENCY] == good:
            return sweep_points.run_point(study, point)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep_points, "plan", otherwise)
            return sweep_points.run_point(study, point)

    return run


def worse(job: Any, **_: Any) -> Any:
    return sa.plan(job, overrides=BAD, work_limit=1)


def late(job: Any, **_: Any) -> Any:
    raise TimeLimitError("no plan")


@pytest.mark.heavy
def test_a_plan_goes_on_along_a_line_while_it_is_faster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alone = sa.sweep(study())
    monkeypatch.setattr(sweeping, "run_point", found_at(5, worse))
    result = sa.sweep(study(), directory=tmp_path)
    assert [row["found_by"] for row in result.rows] == ["search", *["neighbour"] * 3]
    for one, other in zip(result.rows, alone.rows, strict=True):
        assert one["step_s"] == pytest.approx(other["step_s"], rel=0.01)
    bounds = [row["figures"]["bound_s"] for row in kept_in(tmp_path).values()]
    assert [row["bound_s"] for row in result.rows] == bounds  # of the point's own search
    assert all(row["gap"] == pytest.approx(1 - row["bound_s"] / row["estimate_s"]) for row in result.rows)
    again = sa.sweep(study(), directory=tmp_path)
    assert (again.rows, again.num_run) == (result.rows, 0)


def test_points_without_a_plan_in_time_take_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "run_point", found_at(10, late))
    rows = sa.sweep(study()).rows
    assert [row["status"] for row in rows] == ["time_limit", rows[1]["status"], "time_limit", "time_limit"]
    assert all(row["step_s"] > 0 and 0 <= row["gap"] < 1 for row in rows)


def test_a_worker_that_breaks_leaves_what_a_point_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks(*_: Any) -> Any:
        raise RuntimeError("broken")

    def limited(study: Study, point: Point) -> Record:
        decision = {"degrees": {"tp": point.fields[LATENCY]}}
        return {"status": "time_limit", "reason": "", "figures": {"step_s": 1.0}, "decision": decision, "seconds": 1.0}

    monkeypatch.setattr(sweeping, "run_point", limited)
    monkeypatch.setattr(sweep_neighbours, "_outcome", breaks)
    rows = sa.sweep(study(), directory=tmp_path).rows
    assert {(row["status"], row["step_s"]) for row in rows} == {("time_limit", 1.0)}
    assert not any("tried" in record for record in kept_in(tmp_path).values())


@pytest.mark.heavy
def test_what_a_point_cannot_run_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = study(grid={"degrees.pp": [1, 2]})
    rows = sa.sweep(pinned).rows
    assert [row["pp"] for row in rows] == [1, 2]
    assert {row["found_by"] for row in rows} == {"search"}
