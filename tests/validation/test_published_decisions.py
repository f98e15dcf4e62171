"""Searches on published clusters, without the published decision, are never slower than it by our own step time."""

from __future__ import annotations

import published_decisions
import pytest

from scaleacross.validation.runs import read_runs
from validation.test_measured_runs import FILE, pytestmark  # noqa: F401


@pytest.mark.slow
@pytest.mark.parametrize("name", ["m0074", "m0098", "m0137"])
def test_a_plan_is_no_slower_than_what_was_published(name: str) -> None:
    case = published_decisions.priced(next(run for run in read_runs(FILE) if run.id == name))
    assert published_decisions.stated_whole(case)
    published_s, _, step_s = published_decisions.found(case, work=100, gap=0.0)
    assert step_s <= published_s * (1 + 1e-9)
