"""Reads the launch file of a job. ``SCALEACROSS_LAUNCH`` names it, and ``scaleacross run`` sets that. No torch here."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from scaleacross.errors import InputError
from scaleacross.schedules.collective import PHASES
from scaleacross.spec.launch import LaunchConfig
from scaleacross.spec.network_choice import ALGORITHM_NAMES

LAUNCH_VARIABLE: Final = "SCALEACROSS_LAUNCH"
LOOPBACK: Final = "127.0.0.1"
ORIGIN: Final = "`scaleacross plan JOB -o DIR` and `scaleacross emit PLAN --to launch -o DIR` write launch.json"
EXCHANGES: Final = ("direct", "pairwise", "two_level")
"""Algorithms of all-to-alls."""
KNOWN: Final = (*ALGORITHM_NAMES, *EXCHANGES)
"""Algorithms of predicted collectives, besides the names of ``PHASES``."""
DUMPS_VARIABLE: Final = "SCALEACROSS_DUMPS"
"""Folder into which every rank writes its trace when it ends."""


def read_launch(path: str | Path) -> LaunchConfig:
    """Return the launch file at ``path``. Raises InputError if it is missing or no valid launch file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(f"launch file {path}: {reason}. {ORIGIN}") from None
    try:
        config = LaunchConfig.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{path} is no launch file: {where}: {first['msg']}. {ORIGIN}") from None
    for groups in config.process_groups:
        for one in groups.collectives:
            if one.algorithm not in (*KNOWN, *PHASES):
                known = ", ".join(dict.fromkeys((*PHASES, *KNOWN)))
                raise InputError(f"{path}: {one.name}: no algorithm '{one.algorithm}'; there are {known}")
    return config


def launch_digest(config: LaunchConfig) -> str:
    """Return the SHA-256 that all ranks must share: that of the launch file without ``rendezvous``.

    The rendezvous is left out because it may go by several names.
    """
    return hashlib.sha256(config.model_dump_json(exclude={"rendezvous"}).encode()).hexdigest()


def require_world_size(config: LaunchConfig) -> None:
    """Raise InputError if the launcher started another number of processes than the plan has ranks, in all or here.

    All of them on one machine are allowed: a trial of the plan (``scaleacross run --local``).
    """
    world = int(os.environ.get("WORLD_SIZE", config.world_size))
    if world != config.world_size:
        raise InputError(
            f"{world} processes, and a launch file for {config.world_size} ranks on {len(config.hosts)} hosts: start as many as "
            f"the plan has ranks, or plan for {world} (--set num_accelerators={world})"
        )
    rank, here = os.environ.get("RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    if not (rank.isdecimal() and here.isdecimal()) or int(here) == world or int(rank) >= world:
        return
    host, hosts = config.host(int(rank)), len(config.hosts)
    if int(here) != host.num_ranks:
        raise InputError(
            f"rank {rank} is one of {here} processes on its host; the launch file has {host.num_ranks} on {host.name}, one of "
            f"{hosts} hosts: start torchrun there with --nnodes={hosts} --nproc-per-node={host.num_ranks} "
            "(`scaleacross run LAUNCH.json --dry-run -- PROGRAM` prints every host's command)"
        )
