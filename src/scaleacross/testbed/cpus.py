"""A fixed share of the processor for every emulated host: cores by ``taskset``, time on them by the cpu control group.

A rank that shares its core with another one gets its own part of it even while the other waits, so computation takes the same
time whatever the neighbours do, and what is measured on one host holds on all. Time is dealt out in slices of a millisecond.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

SHARE_FILE: Final = 9
"""File descriptor through which a process that was started to wait joins its control group: in its namespaces it has no path."""
SLICE_US: Final = 1000
"""Least quota that the kernel takes; the period follows from the share."""
ROOTS: Final = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
HEADROOM_FRACTION: Final = 0.1
"""Part of every core that is left to the kernel's network stack, the relay and whatever else runs."""


def controller() -> Path | None:
    """Folder of the cpu controller (version 1 or 2) that we may write to."""
    first, second = ROOTS
    if (first / "cpu.cfs_quota_us").exists() or (first / "cpu.shares").exists():
        return first if os.access(first, os.W_OK) else None
    controllers = second / "cgroup.subtree_control"
    with suppress(OSError):
        if "cpu" in controllers.read_text(encoding="ascii").split() and os.access(second, os.W_OK):
            return second
    return None


def core_of(host: int, num_hosts: int) -> int:
    """The core of a host: hosts are spread evenly, neighbours apart, so that those of a building do not share one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[host % len(cores)] if num_hosts > 1 else cores[0]


def share_of(num_hosts: int) -> float:
    """Share of its core that a host gets."""
    per_core = -(-num_hosts // len(os.sched_getaffinity(0)))
    return (1 - HEADROOM_FRACTION) / per_core


def make_group(root: Path, name: str, share: float) -> Path:
    """A control group that may use ``share`` of one core. Raises OSError."""
    group = root / name
    group.mkdir(exist_ok=True)
    period = round(SLICE_US / min(share, 1.0))
    if root == ROOTS[0]:
        (group / "cpu.cfs_period_us").write_text(str(period), encoding="ascii")
        (group / "cpu.cfs_quota_us").write_text(str(SLICE_US), encoding="ascii")
    else:
        (group / "cpu.max").write_text(f"{SLICE_US} {period}", encoding="ascii")
    return group


def groups_of(prefix: str) -> list[Path]:
    """Control groups of a testbed."""
    root = controller()
    return sorted(root.glob(f"{prefix}*")) if root is not None else []


def pinned(command: Sequence[str], core: int, group: Path | None, *, waits: bool = False) -> list[str]:
    """``command`` on one core, in a control group.

    Args:
        waits: it joins the group by itself, by ``take_share``, when it has started up: loading libraries is not what is measured.
    """
    on_core = ["taskset", "-c", str(core), *command]
    if group is None:
        return on_core
    join = 'exec 9> "$0"' if waits else 'echo $$ > "$0"'
    return ["sh", "-c", f'{join} && exec "$@"', str(group / "cgroup.procs"), *on_core]


def take_share() -> None:
    """Called by a process that was started to wait: join its control group, whose file it has inherited; else do nothing."""
    with suppress(OSError):
        if Path(f"/proc/self/fd/{SHARE_FILE}").readlink().name == "cgroup.procs":
            os.write(SHARE_FILE, str(os.getpid()).encode())
            os.close(SHARE_FILE)
