"""Processes on emulated hosts: one command, or every rank of a plan."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from scaleacross.errors import EmulationError, InputError
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE
from scaleacross.spec.launch import LaunchConfig
from scaleacross.testbed.fabric import in_host
from scaleacross.testbed.session import Testbed

PORT: Final = 29500
POLL_S: Final = 0.05
KILL_S: Final = 5.0
LAST_LINES: Final = 12


def run_on(testbed: Testbed, host: str, command: Sequence[str]) -> int:
    """Run ``command`` on a host and wait; its exit code. Raises InputError for a host that is not there."""
    hosts = testbed.layout.hosts
    for index, one in enumerate(hosts):
        if one.name == host:
            return subprocess.call(in_host(one, index, len(hosts), command))
    raise InputError(f"no host '{host}'; there are {', '.join(one.name for one in hosts)}")


def run_ranks(
    testbed: Testbed,
    config: LaunchConfig,
    launch: Path,
    program: Sequence[str],
    logs: Path,
    extra: dict[str, str] | None = None,
    watch: Callable[[float], None] | None = None,
) -> None:
    """Run ``program`` with this Python as every rank of a plan, on the hosts that the plan names, and wait for all.

    Args:
        launch: the launch file, for ``SCALEACROSS_LAUNCH``.
        logs: folder for one ``rank-N.log`` each.
        extra: environment beside torch's and the plan's.
        watch: is called all the time, with the seconds since the start.

    Raises:
        InputError: the plan names a host that is not there.
        EmulationError: a rank failed; the others are ended, and the message has the end of its log.
    """
    hosts = testbed.layout.hosts
    places = {host.name: index for index, host in enumerate(hosts)}
    for host in config.hosts:
        if host.name not in places:
            raise InputError(f"the plan uses host '{host.name}', the testbed has {', '.join(places)}")
    shared = {**os.environ, LAUNCH_VARIABLE: str(launch.resolve()), **(extra or {}), "OMP_NUM_THREADS": "1"}
    shared |= {"MASTER_ADDR": hosts[places[config.host(0).name]].address, "MASTER_PORT": str(PORT)}
    shared |= {"GLOO_SOCKET_IFNAME": "eth0", "WORLD_SIZE": str(config.world_size)}
    for variable in config.env:
        shared.setdefault(variable.name, variable.value)
    logs.mkdir(parents=True, exist_ok=True)
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for rank in range(config.world_size):
            place, local = places[config.host(rank).name], str(config.ranks[rank][1])
            command = in_host(hosts[place], place, len(hosts), [sys.executable, *program])
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": local}
            with (logs / f"rank-{rank}.log").open("wb") as log:
                running[rank] = subprocess.Popen(
                    command, env=own, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
        _wait(running, logs, watch)
    finally:
        _end(running.values())


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
