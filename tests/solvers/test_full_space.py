"""Spaces whose policies are chosen last: interrupts, work limits, and spaces too large for baselines."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import scaleacross as sa
from instances import plain_job
from scaleacross.cli import app
from scaleacross.cli.stopping import first_interrupt
from scaleacross.cost_models.candidates import concatenate
from scaleacross.solvers import open_policies, search_space
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import Job
from scaleacross.spec.progress import Progress
from scaleacross.workloads.problem import problem_of


def full_job() -> Job:
    """A small job with the full space, whose policies the search chooses last (see ``opened``)."""
    job = plain_job(2, 2, degrees={"tp": 1, "cp": 1}, schedules=["1F1B"], micro_batch_sequences=1)
    data = job.model_dump(mode="json", exclude_unset=True)
    return Job.model_validate(data | {"space": "full", "recompute": ["none", "selective", "full"]})


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every space as too large to enumerate, and close only a few blocks at a time."""
    monkeypatch.setattr(open_policies, "MOST_AT_ONCE", 0)
    monkeypatch.setattr(open_policies, "CLOSED_TOGETHER", 4)


@pytest.mark.heavy
@pytest.mark.usefixtures("opened")
def test_an_interrupt_while_policies_are_chosen_gives_the_best_plan_with_its_gap() -> None:
    """An interrupt while policies are chosen returns a plan with its reason and bound.

    SIGINT arrives when the first blocks are closed. A complete search confirms the bound.
    """
    job, stages = full_job(), set[str]()
    whole = sa.plan(job, alternatives=False)
    assert whole.report.status == "optimal"

    with first_interrupt() as stopped:

        def tell(now: Progress) -> None:
            if now.stage == "closing" and not stages:
                stages.add(now.stage)
                signal.raise_signal(signal.SIGINT)

        cut = sa.plan(job, alternatives=False, progress=tell, stopped=stopped)
    assert stages == {"closing"}
    assert cut.report.status == "time_limit"
    assert 0 < cut.report.gap < 1
    assert cut.report.bound_s <= whole.report.objective_s * (1 + 1e-9)
    assert cut.report.objective_s >= whole.report.objective_s * (1 - 1e-9)
    assert any("stopped by hand" in note for note in cut.report.notes)


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize(
    "work_limit", [pytest.param(2, marks=pytest.mark.heavy), pytest.param(6, marks=pytest.mark.slow)]
)
def test_a_limit_in_work_gives_the_same_plan_twice(work_limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A work limit gives the same plan twice, even if an hour passes between two reads of the clock."""
    first = sa.plan(full_job(), work_limit=work_limit, alternatives=False)
    hours = itertools.count()
    for name in ("perf_counter", "process_time", "monotonic", "time"):
        monkeypatch.setattr(time, name, lambda: 3600.0 * next(hours))
    second = sa.plan(full_job(), work_limit=work_limit, alternatives=False)
    assert second.decision == first.decision
    assert (second.report.bound_s, second.report.num_placed) == (first.report.bound_s, first.report.num_placed)
    assert any("work limit" in note for note in first.report.notes)


@pytest.mark.heavy
@pytest.mark.usefixtures("opened")
def test_compare_refuses_a_space_that_baselines_cannot_enumerate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``compare`` refuses a space that baselines cannot enumerate, although the search can.

    The message has the number of candidates and a fix, which works.
    """
    problem = problem_of(full_job())
    pool = pools(problem.topology)[0]
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit, policies_open=True)
    monkeypatch.setattr(search_space, "MOST_PARTIALS", len(concatenate(list(space.partials(Refusals())))) + 1)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(full_job().model_dump(mode="json", exclude_unset=True)))
    assert CliRunner().invoke(app, ["plan", str(file), "--work-limit", "2", "--quiet"]).exit_code == 0
    refused = CliRunner().invoke(app, ["compare", str(file), "--work-limit", "2"])
    assert refused.exit_code == 2
    for part in ("combinations, more than memory holds", "state fewer values", "space: quick"):
        assert part in " ".join(refused.stderr.split())
    taken = ["--set", "space=quick", "--set", "recompute=none", "--work-limit", "2", "--quiet"]
    assert CliRunner().invoke(app, ["compare", str(file), *taken]).exit_code == 0
