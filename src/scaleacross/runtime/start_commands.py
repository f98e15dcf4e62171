"""How the ranks of a launch file are started: torchrun on this machine, or one command per host.

The static rendezvous gives node R the ranks after those of nodes 0..R−1, which is the order of the launch file. No torch here.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scaleacross.runtime.launch_file import LAUNCH_VARIABLE
from scaleacross.runtime.requirement import require_torch
from scaleacross.spec.launch import LaunchConfig

GRACE_S: Final = 10.0


def commands(config: LaunchConfig, path: Path, program: Sequence[str], port: int, local: bool) -> list[str]:
    """One shell line per host, in rank order; a single one where all ranks run on this machine."""
    variable = f"{LAUNCH_VARIABLE}={shlex.quote(str(path.resolve()))}"
    if local or len(config.hosts) == 1:
        return [f"{variable} {shlex.join(['torchrun', *_local(config), *program])}"]
    first = config.hosts[0].name
    lines = []
    for number, host in enumerate(config.hosts):
        options = [
            f"--nnodes={len(config.hosts)}",
            f"--nproc-per-node={host.num_ranks}",
            f"--node-rank={number}",
            f"--master-addr={first}",
            f"--master-port={port}",
        ]
        lines.append(f"{variable} {shlex.join(['torchrun', *options, *program])}  # on {shlex.quote(host.name)}")
    return lines


def start(config: LaunchConfig, path: Path, program: Sequence[str], extra: dict[str, str] | None = None) -> int:
    """Run ``program`` on all ranks on this machine and wait.

    Returns:
        torchrun's exit code.

    Raises:
        InputError: torch is missing.
    """
    require_torch()
    environment = {**os.environ, LAUNCH_VARIABLE: str(path.resolve()), **(extra or {})}
    for variable in config.env:
        environment.setdefault(variable.name, variable.value)
    environment.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "torch.distributed.run", *_local(config), *program]
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


def _local(config: LaunchConfig) -> list[str]:
    return ["--standalone", f"--nproc-per-node={config.world_size}"]
