"""The log of a coordinator: its counted failures, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scaleacross.api import measured_goodput
from scaleacross.cli import app
from scaleacross.errors import InputError
from scaleacross.runtime.replicas.membership import Membership, Place


def run_of(path: Path, samples: tuple[int, ...] = (10, 10, 10, 10), short_s: float = 1.0, lost: str = "3") -> Path:
    """A log of four replicas with a step per second.

    One replica dies in step 5, which takes a second more, and returns in step 9. Steps without it take ``short_s``.
    """
    membership, now = Membership(4), 0.0
    for name in "0123":
        membership.hello(Place(name), 0, now)
    for step in range(12):
        now += 1.0 if len(membership.current.members) == 4 else short_s
        if step == 5:
            membership.lost([lost], "dead", now)
            now += 1.0
        if step == 7:
            membership.hello(Place(lost), 0, now)
        if step == 8:
            membership.level(Place(lost), 8, now)
        for name in membership.current.members:
            membership.done(Place(name), membership.current.number, step, samples[int(name)], now)
    path.write_text("".join(json.dumps(event) + "\n" for event in membership.history))
    return path


def test_time_goes_where_it_went(tmp_path: Path) -> None:
    run = measured_goodput(run_of(tmp_path / "run.jsonl"))
    assert (run.steps, run.seconds, run.most_members, run.median_step_s) == (12, 12.0, 4, 1.0)
    assert run.lost == {"dead": 1} and run.joined == 1
    assert run.samples == 12 * 40 - 4 * 10
    assert run.useful_fraction == pytest.approx((11 * 40 - 40) / (40 * 12))
    assert run.stall_fraction == pytest.approx(1 / 12) and run.missing_fraction == pytest.approx(4 * 0.25 / 12)
    assert run.mean_step_s == 1.0 and run.simulated_fraction == pytest.approx(run.useful_fraction, abs=0.003)
    assert run.useful_fraction + run.stall_fraction + run.missing_fraction == pytest.approx(1)
    assert [(stall.step, stall.seconds) for stall in run.stalls] == [(5, 1.0)]


def test_replicas_that_leave_after_the_last_step_are_not_lost(tmp_path: Path) -> None:
    """The end of a finished run counted as one loss and one epoch more a replica. A death then is still a loss."""
    log = run_of(tmp_path / "run.jsonl")
    before = measured_goodput(log)
    end: list[dict[str, Any]] = [
        {"event": "left", "replica": "0"},
        {"event": "epoch", "epoch": 9, "members": ["1", "2", "3"], "begins": 12},
        {"event": "dead", "replica": "1"},
    ]
    log.write_text(log.read_text() + "".join(json.dumps({"time_s": 99.0, **event}) + "\n" for event in end))
    after = measured_goodput(log)
    assert (after.lost, after.epochs) == ({"dead": 2}, before.epochs)


@pytest.mark.parametrize(
    "text", ["", "no log\n", '{"goodput": 1}\n', '{"time_s": 0.0, "event": "joined", "replica": "0"}\n']
)
def test_a_log_without_an_epoch_is_not_called_good(tmp_path: Path, text: str) -> None:
    log = tmp_path / "run.jsonl"
    log.write_text(text)
    found = CliRunner().invoke(app, ["diagnose", str(log)])
    assert found.exit_code == 2 and not found.stdout
    assert "no epoch begins in it" in found.stderr


def test_the_simulation_loses_the_share_of_the_replica_that_was_lost_at_the_pace_of_the_others(tmp_path: Path) -> None:
    log = run_of(tmp_path / "heavy.jsonl", samples=(10, 10, 10, 70), short_s=1.5)
    run = measured_goodput(log)
    assert run.short_pace == pytest.approx(1 / 1.5)
    assert run.simulated_fraction == pytest.approx(run.useful_fraction, abs=0.003) and run.useful_fraction < 0.65
    light = run_of(tmp_path / "light.jsonl", samples=(10, 10, 10, 70), short_s=1.5, lost="0")
    ahead = measured_goodput(light, like=log)  # the cost of a loss is from ``log``, the lost replica from ``light``
    assert ahead.simulated_fraction == pytest.approx(ahead.useful_fraction, abs=0.003) and ahead.useful_fraction > 0.7
    shown = CliRunner().invoke(app, ["goodput", str(light), "--like", str(log), "--json"])
    assert json.loads(shown.output)["simulated_fraction"] == ahead.simulated_fraction
    equal = run_of(tmp_path / "equal.jsonl")
    equal.write_text(equal.read_text().replace('"3"', '"4"'))
    with pytest.raises(InputError, match="other replicas"):
        measured_goodput(light, like=equal)


def test_what_is_printed(tmp_path: Path) -> None:
    log = run_of(tmp_path / "run.jsonl")
    shown = CliRunner().invoke(app, ["goodput", str(log)])
    assert shown.exit_code == 0 and "12 steps, 440 samples" in shown.output and "dead replica 3" in shown.output
    facts = json.loads(CliRunner().invoke(app, ["goodput", str(log), "--json"]).output)
    assert facts["useful_fraction"] == pytest.approx(0.8333, abs=1e-3)


def edited(log: Path, change: Any) -> Path:
    lines = log.read_text().splitlines()
    log.write_text("\n".join(change(lines)) + "\n")
    return log


def test_a_log_that_ends_in_the_middle_is_read_and_one_that_is_none_is_not(tmp_path: Path) -> None:
    assert measured_goodput(edited(run_of(tmp_path / "cut"), lambda lines: [*lines, '{"time_s": 1'])).steps == 12
    with pytest.raises(InputError, match="line 3: no event"):
        measured_goodput(edited(run_of(tmp_path / "bad"), lambda lines: [*lines[:2], "[]", *lines[2:]]))
    (tmp_path / "plan.json").write_text('{\n"job": {}\n}\n')
    with pytest.raises(InputError, match="'scaleacross simulate PLAN --days N' says what a plan loses"):
        measured_goodput(tmp_path / "plan.json")
    gap = lambda lines: [line for line in lines if '"step": 4,' not in line]  # noqa: E731
    with pytest.raises(InputError, match="step 5 is committed after step 3"):
        measured_goodput(edited(run_of(tmp_path / "gap"), gap))
    (tmp_path / "empty").write_text("")
    with pytest.raises(InputError, match="0 committed steps"):
        measured_goodput(tmp_path / "empty")
    with pytest.raises(InputError, match="No such file"):
        measured_goodput(tmp_path / "none")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--listen", "29400"], "HOST:PORT is expected"),
        (["--listen", "0.0.0.0:29400"], "set SCALEACROSS_REPLICAS_TOKEN"),
        (["--log", "old.jsonl"], "holds another run"),
        (["--listen", "127.0.0.1:99999"], "HOST:PORT is expected"),
    ],
)
def test_a_coordinator_that_cannot_be(
    options: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.jsonl").write_text("{}\n")
    result = CliRunner().invoke(app, ["coordinate", "--replicas", "2", *options])
    assert result.exit_code == 2 and text in result.output


def test_diagnose_names_who_held_an_epoch_up(tmp_path: Path) -> None:
    membership = Membership(3, silent_s=5.0)
    for name in "012":
        membership.hello(Place(name), 0, 0.0)
    for name in "01":
        membership.done(Place(name), membership.current.number, 0, 10, 1.0)
    membership.heard(Place("2"), 4.0)
    for now in (5.9, 6.1, 7.0):  # it is alive, but does not join the sum
        membership.tick(now)
    membership.failed(Place("0"), membership.current.number, 0, "rank 2 is stopped", 8.0)
    log = tmp_path / "run.jsonl"
    log.write_text("".join(json.dumps(event) + "\n" for event in membership.history))
    shown = CliRunner().invoke(app, ["diagnose", str(log)])
    assert shown.exit_code == 0 and shown.output.splitlines() == [
        "epoch 1 of replicas 0, 1, 2, step 0, its first step: all others have their sums and wait for replica 2, heard 2.1 s ago",
        "epoch 1 of replicas 0, 1, 2, step 0, its first step: replica 0 could not sum: rank 2 is stopped",
    ]
    assert "nothing held" in CliRunner().invoke(app, ["diagnose", str(run_of(log))]).output
