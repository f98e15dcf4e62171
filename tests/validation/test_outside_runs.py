"""Published runs outside the fit are read completely, and no other data set has their sources."""

from __future__ import annotations

from pathlib import Path

from scaleacross.validation.runs import read_runs, unread_columns
from scaleacross.validation.score import usable_cases

FILE = Path(__file__).parents[2] / "benchmarks" / "outside_runs.csv"


def test_every_row_is_read_and_states_a_time_and_where_it_comes_from() -> None:
    runs = read_runs(FILE)
    assert unread_columns(FILE) == ""
    assert [run.unreadable for run in runs if run.unreadable] == []
    assert all(run.step_time_s and run.source and run.source_ref for run in runs)
    assert len({run.id for run in runs}) == len(runs) > 500


def test_a_row_of_every_source_can_be_expressed() -> None:
    first = {run.source: run for run in reversed(read_runs(FILE))}
    cases, skipped = usable_cases(list(first.values()))
    assert skipped == []
    assert {case.run.source for case in cases} == set(first)
