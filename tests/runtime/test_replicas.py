"""Replicas that are killed, stopped and started again: no committed step is lost or taken twice, and the bits are those of a run
that had the same members at every step."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import replica_cases as cases
import torch
import torch.distributed as dist

from scaleacross.errors import InputError
from scaleacross.runtime import functions
from scaleacross.runtime.replicas.member import Replicas
from scaleacross.runtime.replicas.state import TrainingState

LIMIT_S = 150.0


class Job:
    """A coordinator and replicas, each a process."""

    def __init__(self, folder: Path, expected: int, hooked: bool = False, pace_s: float = 0.1) -> None:
        self.folder, self.hooked, self.pace_s = folder, hooked, pace_s
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["torch", "torch.distributed", "scaleacross.runtime.replicas.member"])
        self.processes: dict[str, Any] = {}
        self.coordinator = self.context.Process(
            target=cases.coordinate, args=(str(folder / "port"), str(folder / "history.jsonl"), expected), daemon=True
        )
        self.coordinator.start()
        self.until(lambda: (folder / "port").exists())
        self.address = f"127.0.0.1:{(folder / 'port').read_text()}"

    def start(self, replica: str, steps: int) -> None:
        how = (self.address, replica, steps, str(self.folder / f"{replica}.jsonl"), self.pace_s, self.hooked)
        self.processes[replica] = self.context.Process(target=cases.train, args=how, daemon=True)
        self.processes[replica].start()

    def signal(self, replica: str, number: int) -> None:
        os.kill(self.processes[replica].pid, number)

    def lines(self, replica: str) -> list[Any]:
        path = self.folder / f"{replica}.jsonl"
        return (
            [json.loads(line) for line in path.read_text().splitlines() if line.endswith(("]", "}"))]
            if path.exists()
            else []
        )

    def history(self, event: str) -> list[dict[str, Any]]:
        lines = (self.folder / "history.jsonl").read_text().splitlines()
        return [one for line in lines if (one := json.loads(line))["event"] == event]

    def until(self, reached: Any) -> None:
        end = time.monotonic() + LIMIT_S
        while not reached():
            assert time.monotonic() < end, "nothing goes on"
            time.sleep(0.02)

    def until_step(self, replica: str, step: int) -> None:
        self.until(lambda: any(line[0] >= step for line in self.lines(replica) if isinstance(line, list)))

    def close(self) -> None:
        for process in [*self.processes.values(), self.coordinator]:
            process.kill()
            process.join()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def reference(steps: list[dict[str, Any]]) -> tuple[dict[tuple[int, str], float], str]:
    """(step, replica) -> loss, and the digest of the weights, of one process that never fails: a model, and for every step a sum
    among as many groups as the step had members."""
    torch.set_num_threads(1)
    model = cases.model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, groups = {}, dict[int, list[Any]]()
    for step in steps:
        sums, total = [], 0
        for replica in step["members"]:
            loss, samples = cases.loss_of(model, step["step"], replica)
            loss.backward()
            losses[step["step"], replica] = float(loss.detach())
            sums.append(torch.cat([p.grad.view(-1) for p in model.parameters()]) * samples)
            optimizer.zero_grad()
            total += samples
        n = len(sums)
        if n > 1 and n not in groups:
            store = dist.HashStore()
            groups[n] = [functions.group(store, rank, n, {"all_reduce": "ring"}, name=f"of{n}") for rank in range(n)]
        works = [
            functions.all_reduce(group, one, async_op=True) for group, one in zip(groups.get(n, []), sums, strict=False)
        ]
        for work in works:
            work.wait()
        at = 0
        for parameter in model.parameters():
            parameter.grad = (sums[0][at : at + parameter.numel()] / total).view_as(parameter)
            at += parameter.numel()
        optimizer.step()
        optimizer.zero_grad()
    for made in groups.values():
        for group in made:
            group.shutdown()
    return losses, cases.weights_of(model)


@pytest.mark.parametrize("hooked", [False, True], ids=["after_backward", "ddp_hook"])
def test_a_replica_is_killed_and_one_comes_back(folder: Path, hooked: bool) -> None:
    job, last = Job(folder, 3, hooked), 60
    try:
        for replica in "012":
            job.start(replica, last)
        job.until_step("0", 8)
        job.signal("1", signal.SIGKILL)
        job.until_step("0", 12)
        job.start("1", last)
        for replica in "012":
            job.until(lambda replica=replica: isinstance((job.lines(replica) or [0])[-1], dict))
    finally:
        job.close()
    commits = job.history("commit")
    assert [one["step"] for one in commits] == list(range(last))
    members = {e["epoch"]: e["members"] for e in job.history("epoch")}
    steps = [{"step": one["step"], "members": members[one["epoch"]]} for one in commits]
    counts = [len(step["members"]) for step in steps]
    assert counts[0] == 3 and 2 in counts and counts[-1] == 3, "one is lost and joins again"
    assert [counts[at] - counts[at - 1] for at in range(1, last)].count(-1) == 1
    losses, weights = reference(steps)
    for replica in "012":
        lines = job.lines(replica)
        taken = [line for line in lines if isinstance(line, list)]
        assert {line[0]: line[4] for line in taken} == {
            step["step"]: losses[step["step"], replica]
            for step in steps
            if replica in step["members"] and step["step"] in {line[0] for line in taken}
        }
        assert len({line[0] for line in taken}) == len(taken), "a step is taken twice"
        assert lines[-1]["weights"] == weights
        assert all(line[3] == sum(cases.SAMPLES[int(m)] for m in line[2]) for line in taken)
    dead = next(e["time_s"] for e in job.history("dead"))
    after = next(c["time_s"] for c in commits if c["time_s"] > dead)
    assert after - dead < LIMIT_S / 2


def test_a_stopped_replica_is_left_behind_and_a_lost_coordinator_ends_all(folder: Path) -> None:
    job = Job(folder, 3, pace_s=0.05)
    try:
        for replica in "012":
            job.start(replica, 10_000)
        job.until_step("0", 5)
        job.signal("2", signal.SIGSTOP)
        job.until(lambda: job.history("silent"))
        job.until_step("0", max(line[0] for line in job.lines("0")) + 3)
        job.signal("2", signal.SIGCONT)
        job.until(lambda: not job.processes["2"].is_alive())
        assert [e["replica"] for e in job.history("silent")] == ["2"]
        job.coordinator.kill()
        for replica in "01":
            job.processes[replica].join(LIMIT_S)
            assert job.processes[replica].exitcode == 1
        last = {replica: job.lines(replica)[-1][0] for replica in "01"}
        assert abs(last["0"] - last["1"]) <= 1
    finally:
        job.close()


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
