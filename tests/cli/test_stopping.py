"""The first Ctrl-C ends a search, the second one aborts."""

from __future__ import annotations

import signal

import pytest

import scaleacross as sa
from instances import plain_job
from scaleacross.cli.frame import guarded
from scaleacross.cli.stopping import first_interrupt
from scaleacross.spec.progress import Progress


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
