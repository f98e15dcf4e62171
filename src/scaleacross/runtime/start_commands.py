"""Starts the ranks of a launch file: torchrun on this machine, or one command per host. No torch here.

The static rendezvous gives node R the ranks after those of nodes 0..R−1, which is the order of the launch file.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scaleacross.errors import InputError
from scaleacross.runtime.launch_file import DUMPS_VARIABLE, LAUNCH_VARIABLE, LOOPBACK
from scaleacross.runtime.requirement import require_torch
from scaleacross.spec.launch import DEFAULT_PORT, LaunchConfig
from scaleacross.spec.trace import DUMP_PREFIX

GRACE_S: Final = 40.0
"""Seconds for torchrun to end. It gives ranks 30 s before it kills them; killed earlier, it leaves them running."""
OWN_STORE: Final = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Environment variable that, set to 1, keeps torchrun from opening a store of its own for the ranks."""


def commands(
    config: LaunchConfig, path: Path, program: Sequence[str], port: int | None, local: bool, dumps: Path | None = None
) -> list[str]:
    """Return one shell line per host, in rank order; a single line if all ranks run on this machine.

    Args:
        dumps: folder for the traces of the ranks.
        port: where torchrun's own processes meet; None: the default port, or the port after the rendezvous of the launch file.

    Raises:
        InputError: the port is that of the rendezvous.
    """
    variables = {LAUNCH_VARIABLE: str(path.resolve()), **dumping_into(dumps)}
    stated = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    if local or len(config.hosts) == 1:
        return [f"{OWN_STORE}=1 {stated} {shlex.join(['torchrun', *_local(config), *program])}"]
    where = config.rendezvous
    first = where.address if where else config.hosts[0].name
    if where is not None and port == where.port:
        raise InputError(
            f"--port {port} is the rendezvous of {path}, where rank 0 listens: torchrun needs another one of its own"
        )
    meeting = port or (where.port + 1 if where else DEFAULT_PORT)
    lines = []
    for number, host in enumerate(config.hosts):
        options = [
            f"--nnodes={len(config.hosts)}",
            f"--nproc-per-node={host.num_ranks}",
            f"--node-rank={number}",
            f"--master-addr={first}",
            f"--master-port={meeting}",
        ]
        lines.append(f"{stated} {shlex.join(['torchrun', *options, *program])}  # on {shlex.quote(host.name)}")
    return lines


def start(config: LaunchConfig, path: Path, program: Sequence[str], extra: dict[str, str] | None = None) -> int:
    """Run ``program`` on all ranks on this machine and wait. On an interrupt the ranks write their traces and end.

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
    environment[OWN_STORE] = "1"
    with tempfile.TemporaryDirectory(prefix="scaleacross-run-") as folder:
        meeting = f"--rdzv-endpoint={folder}/meeting"
        command = [sys.executable, "-m", "torch.distributed.run", *_local(config), meeting, *program]
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


def dumping_into(folder: Path | None) -> dict[str, str]:
    """Return the environment of ranks that write their traces into ``folder``.

    Raises:
        InputError: it holds traces already. Those of ranks that leave none this time would be mistaken for new ones.
    """
    if folder is None:
        return {}
    if any(folder.glob(f"{DUMP_PREFIX}*")):
        raise InputError(f"{folder} holds the traces of an earlier run: name another folder, or remove them")
    return {DUMPS_VARIABLE: str(folder.resolve())}


def _local(config: LaunchConfig) -> list[str]:
    """Return torchrun's options for one machine: a rendezvous in a file, so only what the launch file names listens."""
    return [
        "--nnodes=1",
        f"--nproc-per-node={config.world_size}",
        "--rdzv-backend=c10d",
        "--rdzv-conf=store_type=file",
        f"--local-addr={LOOPBACK}",
    ]
