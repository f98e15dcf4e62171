"""Runs processes on emulated hosts: one command, or every rank of a plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from scaleacross.errors import EmulationError, InputError
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE
from scaleacross.spec.launch import DEFAULT_PORT, LaunchConfig
from scaleacross.testbed.fabric import in_host
from scaleacross.testbed.session import Testbed

POLL_S: Final = 0.05
KILL_S: Final = 5.0
LAST_LINES: Final = 12
TASK_VARIABLE: Final = "SCALEACROSS_TESTBED_TASK"
"""Names the file that says what ranks are to do."""


def run_on(testbed: Testbed, host: str, command: Sequence[str]) -> int:
    """Run ``command`` on a host, wait, and return its exit code. Raises InputError for a host that is not there."""
    hosts = testbed.layout.hosts
    for index, one in enumerate(hosts):
        if one.name == host:
            return subprocess.call(in_host(one, index, len(hosts), command))
    raise InputError(f"no host '{host}'; there are {', '.join(one.name for one in hosts)}")


def run_ranks(
    testbed: Testbed,
    hosts: Sequence[str],
    program: Sequence[str],
    logs: Path,
    extra: dict[str, str] | None = None,
    watch: Callable[[float], None] | None = None,
) -> None:
    """Run ``program`` with this Python as ranks 0, 1, … on these hosts and wait. It must call ``cpus.take_share``.

    Args:
        hosts: [rank] -> name of its host.
        logs: folder for one ``rank-N.log`` each.
        extra: environment in addition to torch's.
        watch: called repeatedly, with the seconds since the start.

    Raises:
        InputError: a host that is not there.
        EmulationError: a rank failed; the others are ended, and the message has the end of its log.
    """
    there = testbed.layout.hosts
    places = {host.name: index for index, host in enumerate(there)}
    for host in hosts:
        if host not in places:
            raise InputError(f"rank {hosts.index(host)} is to run on '{host}'; the testbed has {', '.join(places)}")
    shared = {**os.environ, **(extra or {}), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    shared |= {
        "MASTER_ADDR": there[places[hosts[0]]].address,
        "MASTER_PORT": str(DEFAULT_PORT),
        "WORLD_SIZE": str(len(hosts)),
    }
    logs.mkdir(parents=True, exist_ok=True)
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for rank, name in enumerate(hosts):
            place, local = places[name], hosts[:rank].count(name)
            command = in_host(there[place], place, len(there), [sys.executable, *program], waits=True)
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(local)}
            with (logs / f"rank-{rank}.log").open("wb") as log:
                running[rank] = subprocess.Popen(
                    command, env=own, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
        _wait(running, logs, watch)
    finally:
        _end(running.values())


def asked(testbed: Testbed, program: Sequence[str], folder: Path, task: Mapping[str, object]) -> Any:
    """Run one rank on every host, in the order of the layout, and return the JSON that they write about ``task``.

    Raises:
        EmulationError: a rank failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    question, answer = folder / "task.json", folder / "answer.json"
    question.write_text(json.dumps({**task, "out": str(answer)}), encoding="utf-8")
    run_ranks(testbed, [host.name for host in testbed.layout.hosts], program, folder, {TASK_VARIABLE: str(question)})
    return json.loads(answer.read_text(encoding="utf-8"))


def run_plan(
    testbed: Testbed,
    config: LaunchConfig,
    launch: Path,
    program: Sequence[str],
    logs: Path,
    extra: dict[str, str] | None = None,
    watch: Callable[[float], None] | None = None,
) -> None:
    """Run every rank of a plan on the host that it names, with its environment and its launch file (``run_ranks``)."""
    planned = {variable.name: variable.value for variable in config.env}
    hosts = [config.host(rank).name for rank in range(config.world_size)]
    own = {**planned, **(extra or {}), LAUNCH_VARIABLE: str(launch.resolve())}
    run_ranks(testbed, hosts, program, logs, own, watch)


def _wait(running: dict[int, subprocess.Popen[bytes]], logs: Path, watch: Callable[[float], None] | None) -> None:
    began, left = time.monotonic(), dict(running)
    while left:
        time.sleep(POLL_S)
        if watch is not None:
            watch(time.monotonic() - began)
        for rank, process in list(left.items()):
            code = process.poll()
            if code:
                raise EmulationError(f"rank {rank} ended with exit code {code}:\n{_tail(logs / f'rank-{rank}.log')}")
            if code == 0:
                del left[rank]


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:])


def _end(processes: Collection[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
        if process.poll() is None:
            process.kill()
            process.wait()
