"""Replicas that are killed, stopped and restarted lose no committed step and commit none twice.

The bits are those of a run that had the same members at every step.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import replica_cases as cases
import torch

from scaleacross.errors import InputError
from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import fixed
from scaleacross.runtime.replicas.member import Replicas, policy_of_plan
from scaleacross.runtime.replicas.state import TrainingState
from scaleacross.schedules.collective import Operation


@pytest.mark.parametrize("hooked", [False, True], ids=["after_backward", "ddp_hook"])
def test_a_replica_is_killed_and_one_comes_back(tmp_path: Path, hooked: bool) -> None:
    job = cases.Job(tmp_path, 3, hooked)
    try:
        for replica in "012":
            job.start(replica)
        job.until_step("0", 8)
        job.signal("1", signal.SIGKILL)
        job.until_step("0", 12)
        killed = job.lines("1")[-1][0]
        job.start("1")
        job.until_step("1", killed + 4)
        last = job.lines("0")[-1][0] + 20
        job.stop_at(last)
    finally:
        job.close()
    commits = job.history("commit")
    assert [one["step"] for one in commits] == list(range(last))
    members = {e["epoch"]: e["members"] for e in job.history("epoch")}
    steps = [{"step": one["step"], "members": members[one["epoch"]]} for one in commits]
    counts = [len(step["members"]) for step in steps]
    assert counts[0] == 3 and 2 in counts and counts[-1] == 3, "one is lost and joins again"
    assert [counts[at] - counts[at - 1] for at in range(1, last)].count(-1) == 1
    losses, weights = cases.reference(steps)
    for replica in "012":
        lines = job.lines(replica)
        taken = [line for line in lines if isinstance(line, list)]
        mine = {line[0]: losses[line[0], replica] for line in taken}
        # what a hook sums is cut where buckets end, so blocks of a ring are added in another order than the reference's
        assert {line[0]: line[4] for line in taken} == (pytest.approx(mine, rel=1e-4) if hooked else mine)
        assert {line[0] for line in taken} <= {step["step"] for step in steps if replica in step["members"]}
        assert len({line[0] for line in taken}) == len(taken), "a step is committed twice"
        assert lines[-1]["weights"] == (job.lines("0")[-1]["weights"] if hooked else weights)
        assert all(line[3] == sum(cases.SAMPLES[int(m)] for m in line[2]) for line in taken)
    dead = next(e["time_s"] for e in job.history("dead"))
    after = next(c["time_s"] for c in commits if c["time_s"] > dead)
    assert after - dead < cases.LIMIT_S / 2


def test_a_stopped_replica_is_left_behind_and_a_lost_coordinator_ends_all(tmp_path: Path) -> None:
    job = cases.Job(tmp_path, 3, pace_s=0.05)
    try:
        for replica in "012":
            job.start(replica)
        job.until_step("0", 5)
        job.signal("2", signal.SIGSTOP)
        job.until(lambda: job.history("silent"))
        job.until_step("0", max(line[0] for line in job.lines("0")) + 3)
        job.signal("2", signal.SIGCONT)
        job.until(lambda: not job.processes["2"].is_alive())
        assert [e["replica"] for e in job.history("silent")] == ["2"]
        job.coordinator.kill()
        for replica in "01":
            job.processes[replica].join(cases.LIMIT_S)
            assert job.processes[replica].exitcode == 1
        last = {replica: job.lines(replica)[-1][0] for replica in "01"}
        assert abs(last["0"] - last["1"]) <= 1
    finally:
        job.close()


def test_two_deaths_at_once_a_silent_half_and_a_coordinator_that_nobody_hears(tmp_path: Path) -> None:
    job = cases.Job(tmp_path, 4, pace_s=0.05)
    try:
        for replica in "0123":
            job.start(replica)
        job.until_step("0", 5)
        for replica in "13":
            job.signal(replica, signal.SIGKILL)
        job.until(lambda: len(job.history("dead")) == 2)
        job.until_step("0", job.history("commit")[-1]["step"] + 4)
        assert len(job.history("commit")[-1]["samples"]) == 2, "the others go on"
        job.signal("2", signal.SIGSTOP)
        job.until(lambda: job.history("paused"))
        time.sleep(0.5)
        committed, paused = job.history("commit")[-1], job.history("paused")[0]["time_s"]
        assert committed["time_s"] <= paused, "half of them commit nothing"
        job.signal("2", signal.SIGCONT)
        job.until_step("0", committed["step"] + 4)
        assert not job.history("silent"), "and nobody is given up"
        os.kill(job.coordinator.pid, signal.SIGSTOP)
        for replica in "02":
            job.processes[replica].join(cases.LIMIT_S)
            assert job.processes[replica].exitcode == 1
        last = {replica: job.lines(replica)[-1][0] for replica in "02"}
        assert abs(last["0"] - last["2"]) <= 1
    finally:
        job.close()
    assert [one["step"] for one in job.history("commit")] == list(range(len(job.history("commit"))))


def test_a_sharded_replica_lives_and_dies_as_a_whole(tmp_path: Path) -> None:
    job = cases.Job(tmp_path, 2, shards=2)
    try:
        for replica in "01":
            job.start_sharded(replica)
        job.until_step("0.0", 5)
        job.signal("1.1", signal.SIGKILL)
        job.until_step("0.0", 9)
        for name in ("1.0", "1.1"):  # the one that was not killed ends too: its replica is gone
            job.processes[name].join(cases.LIMIT_S)
            assert job.processes[name].exitcode
        killed = max(line[0] for line in job.lines("1.0"))
        job.start_sharded("1")
        job.until_step("1.0", killed + 4)
        job.stop_at(job.lines("0.0")[-1][0] + 20)
    finally:
        job.close()
    commits = job.history("commit")
    assert [one["step"] for one in commits] == list(range(len(commits)))
    assert {len(one["samples"]) for one in commits} == {1, 2} and len(commits[-1]["samples"]) == 2
    digests = [[job.lines(f"{replica}.{shard}")[-1]["weights"] for shard in range(2)] for replica in "01"]
    assert digests[0] == digests[1] and digests[0][0] != digests[0][1]


def test_bad_input() -> None:
    model = torch.nn.Linear(2, 2)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InputError, match="host:port"):
        Replicas("somewhere", "0", state)
    with pytest.raises(InputError, match="float16"):
        TrainingState(torch.nn.Linear(2, 2).half(), torch.optim.SGD(model.parameters(), lr=0.1))
    other = TrainingState(torch.nn.Linear(3, 2), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InputError, match="other parameters"):
        state.load(other.save())


@pytest.mark.parametrize(
    ("planned", "runs"),
    [("ring", "ring"), ("tree", "double_tree"), ("hierarchical", "ring"), ("measured", "ring"), (None, "ring")],
)
def test_replicas_run_what_the_plan_runs_among_any_number_of_them(planned: str | None, runs: str) -> None:
    groups = SimpleNamespace(axis="dp_replicate", collectives=[SimpleNamespace(op="all_reduce", algorithm=planned)])
    policy = policy_of_plan(SimpleNamespace(process_groups=[groups] if planned else []))
    for num_members in (2, 3, 5):
        chosen, expected = (
            made.choose(Operation.ALL_REDUCE, 1024)
            for made in (
                policy(num_members),
                fixed({Operation.ALL_REDUCE: runs}, tuple(range(num_members)), LinkSettings()),
            )
        )
        assert chosen is not None and expected is not None
        assert chosen.schedule.name == expected.schedule.name
