"""The first Ctrl-C ends a search, the second one aborts."""

from __future__ import annotations

import inspect
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import scaleacross as sa
from instances import plain_job
from scaleacross.cli import app
from scaleacross.cli.frame import guarded
from scaleacross.cli.stopping import first_interrupt
from scaleacross.spec.progress import STOPPED_BY_HAND, Progress

EXAMPLES = Path(__file__).parents[2] / "examples" / "recommendation"


def test_first_interrupt_is_heard_and_the_second_aborts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), first_interrupt() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stopped_search_gives_its_best_plan_and_a_true_gap() -> None:
    """A stopped search returns its best plan with a valid gap.

    It stops after the first result. The plan says so, and its bound is at most what the whole search finds.
    """
    job = plain_job(2, 2, degrees={"tp": 1, "cp": 1}, schedules=["1F1B"], recompute=["none"])
    whole = sa.plan(job, alternatives=False)
    found: list[float] = []

    def tell(now: Progress) -> None:
        if now.incumbent_s is not None:
            found.append(now.incumbent_s)

    cut = sa.plan(job, alternatives=False, progress=tell, stopped=lambda: bool(found))
    assert cut.report.status == "time_limit"
    assert cut.report.bound_s <= whole.cost.step_s <= cut.cost.step_s
    assert any("stopped by hand" in note for note in cut.report.notes)


def _after_a_report(verb: Any, job: str, **more: Any) -> Any:
    """A plan of a search that is stopped at its second report."""
    reports: list[Progress] = []
    return verb(EXAMPLES / job, progress=reports.append, stopped=lambda: len(reports) > 1, time_limit_s=300, **more)


def test_a_stopped_search_of_tables_gives_its_best_plan() -> None:
    begin = time.monotonic()
    plan = _after_a_report(sa.plan_recommendation, "mlperf_dcnv2.yaml", gap_tolerance=0.0)
    assert STOPPED_BY_HAND in plan.report.notes
    assert plan.report.bound_s <= plan.report.objective_s
    assert time.monotonic() - begin < 60


def test_a_stopped_search_of_cards_gives_its_best_plan() -> None:
    begin = time.monotonic()
    plan = _after_a_report(sa.plan_inference, "six_cards.yaml")
    assert plan.queries_per_s <= plan.bound_queries_per_s
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("job", ["mlperf_dcnv2.yaml", "six_cards.yaml"])
def test_ctrl_c_during_a_command_for_tables_keeps_the_best_plan(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ended ``plan`` of tables with code 130, and the best plan was lost."""
    ring = threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGINT))
    before, begin = signal.signal(signal.SIGINT, signal.default_int_handler), time.monotonic()
    ring.start()
    try:
        done = CliRunner().invoke(app, ["plan", str(EXAMPLES / job), "--time-limit", "300", "--json"])
    finally:
        ring.cancel()
        signal.signal(signal.SIGINT, before)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["decision"]
    assert time.monotonic() - begin < 90


@pytest.mark.parametrize(
    ("verb", "job"), [("plan_recommendation", "four_ranks.yaml"), ("plan_inference", "six_cards.yaml")]
)
def test_work_limits_give_the_same_plan_again(verb: str, job: str) -> None:
    ways = [getattr(sa, verb)(EXAMPLES / job, work_limit=60) for _ in range(2)]
    assert ways[0].decision == ways[1].decision


def test_the_three_searches_take_the_same_limits() -> None:
    limits = {"time_limit_s", "seed", "gap_tolerance", "overrides", "progress", "clock", "stopped", "work_limit"}
    for verb in (sa.plan, sa.plan_recommendation, sa.plan_inference):
        assert limits <= inspect.signature(verb).parameters.keys()


def test_sigterm_lets_a_command_clean_up() -> None:
    cleaned = []

    @guarded
    def command() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append(True)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            command()
        assert ended.value.code == 143 and cleaned
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
