"""If the full space is too large to place, the quick space provides an incumbent."""

from __future__ import annotations

import pytest

from instances import plain_job, plain_topology
from scaleacross.solvers import quick_space
from scaleacross.solvers.joint import search
from scaleacross.solvers.quick_space import probe, quick_of
from scaleacross.spec.job import Job
from scaleacross.workloads.problem import Problem, problem_of


def problem(**stated: object) -> Problem:
    return problem_of(plain_job(topology=plain_topology(1, 2), **stated))


def test_the_quick_job_has_what_is_in_both_spaces() -> None:
    full = problem(space="full")
    quick = quick_of(full)
    default = Job.model_fields["recompute"].default
    assert set(quick.recompute) == set(default) < set(full.job.recompute)
    assert quick.shard == Job.model_fields["shard"].default


def test_what_a_job_states_stays_where_the_quick_space_has_none_of_it() -> None:
    assert quick_of(problem(space="full", recompute=["full:1/2"])).recompute == ("full:1/2",)


@pytest.mark.parametrize(("space", "many", "tells"), [("full", 0, True), ("full", 10**9, False), ("quick", 0, False)])
def test_only_a_large_full_space_is_searched_so(
    monkeypatch: pytest.MonkeyPatch, space: str, many: int, *, tells: bool
) -> None:
    monkeypatch.setattr(quick_space, "MANY_CANDIDATES", many)
    stages = set[str]()
    stated = problem(space=space, degrees={"tp": 1, "cp": 1, "pp": 2}, schedules="1F1B", micro_batch_sequences=1)
    state = search(stated, time_limit_s=600, probed=(probe,), report=lambda one: stages.add(one.stage))
    assert any(stage.startswith("quick space: ") for stage in stages) is tells
    assert state.best is not None
