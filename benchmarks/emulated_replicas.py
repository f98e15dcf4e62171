"""Replicas on hosts of the testbed, for ``replica_kills.py``: where they run, and how losses end that need cables to be cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import replica_cases as cases

from scaleacross.testbed import fabric
from scaleacross.testbed.session import Testbed

START: Final = "import json, sys; import replica_cases as c; getattr(c, sys.argv[1])(*json.loads(sys.argv[2]))"
STEPS_ON: Final = 10


class Process:
    """A process on an emulated host, as multiprocessing's."""

    def __init__(self, command: list[str], log: Path) -> None:
        with log.open("ab") as out:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        self.pid = self._process.pid

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def kill(self) -> None:
        self._process.kill()


class Job(cases.Job):
    """The coordinator on the first host, replica k on the host after the k-th: each with its network and its share of a core.

    A replica that is started again loads its libraries within the share of its host, so it takes no time from others.
    """

    def __init__(self, folder: Path, expected: int, testbed: Testbed, pace_s: float) -> None:
        self.testbed, self.host = testbed, testbed.layout.hosts[0].address
        super().__init__(folder, expected, pace_s=pace_s)

    def place(self, name: str) -> int:
        return 0 if name == "coordinator" else (1 + int(name)) % len(self.testbed.layout.hosts)

    def launch(self, name: str, work: Any, how: tuple[Any, ...]) -> Process:
        hosts, at = self.testbed.layout.hosts, self.place(name)
        program = [sys.executable, "-c", START, work.__name__, json.dumps(how)]
        return Process(fabric.in_host(hosts[at], at, len(hosts), program), self.folder / f"{name}.log")

    def in_building(self, building: str) -> list[str]:
        """Replicas that stand there."""
        hosts = self.testbed.layout.hosts
        return [name for name in self.processes if hosts[self.place(name)].name.startswith(f"{building}-")]

    def cut(self, building: str, is_cut: bool = True) -> None:
        """All trunks of a building: nothing passes, and nobody is told; or they carry again."""
        for trunk in self.testbed.layout.trunks:
            if building in trunk.between:
                fabric.set_trunk(trunk, trunk.rate_bytes_per_s, is_cut)


def endings(job: Job) -> dict[str, Any]:
    """Half of the members silent, a minority cut off, two deaths at once, the coordinator's death: how each of them ended.

    Raises:
        AssertionError: otherwise than docs/replicas.md says.
    """
    first, *_, last = (building.name for building in job.testbed.layout.buildings)
    found: dict[str, Any] = {}
    _commits_on(job)
    job.cut(first)  # the coordinator's building: it hears no majority
    job.until(lambda: job.history("paused"))
    paused = job.history("commit")[-1]["step"]
    time.sleep(1.0)
    assert job.history("commit")[-1]["step"] == paused, "no majority is heard, and still steps are committed"
    job.cut(first, is_cut=False)
    _commits_on(job)
    assert not job.history("silent"), "all were behind one cut, and some are given up"
    found["majority_silent"] = {"paused_at": paused, "goes_on": True}
    minority = job.in_building(last)
    assert 0 < 2 * len(minority) < len(job.processes), f"{last} holds {len(minority)} replicas: no minority"
    cut = time.time()
    job.cut(last)
    job.until(lambda: {one["replica"] for one in job.history("silent")} >= set(minority))
    _commits_on(job)
    after = next(one["time_s"] for one in job.history("commit") if one["time_s"] > job.history("silent")[-1]["time_s"])
    for name in minority:
        job.processes[name].join(cases.LIMIT_S)
        assert job.processes[name].exitcode == 1, f"replica {name} is cut off and goes on"
    found["minority_cut_off"] = {"replicas": minority, "others_go_on_after_s": round(after - cut, 2), "ended": True}
    job.cut(last, is_cut=False)
    _all_back(job, minority)
    two = [name for name in job.processes if name not in minority][-2:]
    dead = time.time()
    for name in two:
        job.processes[name].kill()
    _commits_on(job)
    assert len(job.history("commit")[-1]["samples"]) == len(job.processes) - 2
    next_s = next(one["time_s"] for one in job.history("commit") if one["time_s"] > dead + 0.01)
    found["two_deaths"] = {"replicas": two, "next_step_after_s": round(next_s - dead, 2)}
    _all_back(job, two)
    job.coordinator.kill()
    for name, process in job.processes.items():
        process.join(cases.LIMIT_S)
        assert process.exitcode == 1, f"replica {name} goes on without a coordinator"
    ends = {name: job.lines(name)[-1][0] for name in job.processes}
    assert max(ends.values()) - min(ends.values()) <= 1, f"steps taken by each: {ends}"
    found["coordinator_dead"] = {"last_steps": ends}
    return found


def _commits_on(job: Job) -> None:
    step = job.history("commit")[-1]["step"]
    job.until(lambda: job.history("commit")[-1]["step"] >= step + STEPS_ON)


def _all_back(job: Job, names: list[str]) -> None:
    for name in names:
        job.processes[name].join()
        job.start(name)
    job.until(lambda: len(job.history("commit")[-1]["samples"]) == len(job.processes))
