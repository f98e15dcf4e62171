"""Gives every emulated host a fixed share of the processor: a core by ``taskset``, time on it by the control group.

A rank that shares its core with another one gets no more than its own part, even while the other waits. So computation
takes the same time whatever the other ranks do, and a measurement on one host holds on all. Time is dealt out in slices
of a millisecond.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

SHARE_FILE: Final = 9
"""Descriptor by which a process started with ``waits`` joins its control group; its namespaces lack the path."""
SLICE_US: Final = 1000
"""Smallest quota that the kernel accepts; the period follows from the share."""
ROOTS: Final = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
HEADROOM_FRACTION: Final = 0.1
"""Fraction of every core that is left to the kernel's network stack, the relay and other processes."""


def controller() -> Path | None:
    """Return the folder of the cpu controller (version 1 or 2) if we may write to it, else None."""
    first, second = ROOTS
    if (first / "cpu.cfs_quota_us").exists() or (first / "cpu.shares").exists():
        return first if os.access(first, os.W_OK) else None
    controllers = second / "cgroup.subtree_control"
    with suppress(OSError):
        if "cpu" in controllers.read_text(encoding="ascii").split() and os.access(second, os.W_OK):
            return second
    return None


def core_of(host: int, num_hosts: int) -> int:
    """Return the core of a host. Neighbours get different cores, so that hosts of a building do not share one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[host % len(cores)] if num_hosts > 1 else cores[0]


def share_of(num_hosts: int) -> float:
    """Return the share of its core that a host gets."""
    per_core = -(-num_hosts // len(os.sched_getaffinity(0)))
    return (1 - HEADROOM_FRACTION) / per_core


def make_group(root: Path, name: str, share: float) -> Path:
    """Make a control group that may use ``share`` of one core. Raises OSError."""
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
    """Return the control groups of a testbed."""
    root = controller()
    return sorted(root.glob(f"{prefix}*")) if root is not None else []


def pinned(command: Sequence[str], core: int, group: Path | None, *, waits: bool = False) -> list[str]:
    """Return ``command`` on one core, in a control group.

    Args:
        waits: it joins the group by itself, by ``take_share``, after it has started up, because loading libraries is
            not measured.
    """
    on_core = ["taskset", "-c", str(core), *command]
    if group is None:
        return on_core
    join = 'exec 9> "$0"' if waits else 'echo $$ > "$0"'
    return ["sh", "-c", f'{join} && exec "$@"', str(group / "cgroup.procs"), *on_core]


def take_share() -> None:
    """Join the control group of a process started with ``waits``, whose file it has inherited; else do nothing."""
    with suppress(OSError):
        if Path(f"/proc/self/fd/{SHARE_FILE}").readlink().name == "cgroup.procs":
            os.write(SHARE_FILE, str(os.getpid()).encode())
            os.close(SHARE_FILE)
