"""Finds out what this machine allows (user, tools, kernel features, CPU controls), and runs its tools."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scaleacross.errors import EmulationError, InputError

TOOLS: Final = ("ip", "tc", "taskset")
TUN_DEVICE: Final = Path("/dev/net/tun")
INSIDE_VARIABLE: Final = "SCALEACROSS_TESTBED_INSIDE"
"""Set in the process that ``unshare`` has made root of namespaces of its own."""
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True)
class Machine:
    """What this machine offers.

    Attributes:
        is_root: whether namespaces may be made here, as root or inside ``unshare -Urnm``.
        can_unshare: an ordinary user may make a user namespace.
        missing_tools: tools of ``TOOLS`` that are missing.
        has_netem, has_tun: whether each way to delay packets works.
    """

    is_root: bool
    can_unshare: bool
    missing_tools: tuple[str, ...]
    has_netem: bool
    has_tun: bool

    def require(self) -> None:
        """Raise InputError that names what is missing for any testbed at all."""
        if self.missing_tools:
            raise InputError(f"the testbed needs {', '.join(self.missing_tools)} (packages iproute2 and util-linux)")
        if not self.is_root:
            raise InputError(
                "the testbed makes network namespaces, which needs root"
                + (" or user namespaces, which this kernel refuses (unshare -Urnm)" if not self.can_unshare else "")
                + ": run it with sudo"
            )

    def require_delay(self, what: str) -> None:
        """Raise InputError where packets cannot be delayed or lost."""
        if not (self.has_netem or self.has_tun):
            raise InputError(
                f"{what}: delay and loss need the kernel's netem (module sch_netem) or {TUN_DEVICE}, and neither can be used "
                "here: run it as root, or state one_way_latency_us: 0 and no loss"
            )


def machine() -> Machine:
    """Inspect this machine; makes nothing that stays."""
    missing = tuple(tool for tool in TOOLS if shutil.which(tool) is None)
    is_root, inside = os.geteuid() == 0, INSIDE_VARIABLE in os.environ
    allowed = is_root and (inside or _succeeds(["unshare", "--net", "true"]))
    return Machine(
        is_root=allowed,
        can_unshare=not allowed and _succeeds(["unshare", "-Urnm", "true"]),
        missing_tools=missing,
        has_netem=allowed and not missing and _has_netem(),
        has_tun=os.access(TUN_DEVICE, os.R_OK | os.W_OK),
    )


def _has_netem() -> bool:
    """Return whether netem works, by trying it on the loopback of a namespace that ends with the process."""
    return _succeeds(["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])


def _succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def do(*command: str, tolerate: bool = False) -> str:
    """Run a tool of this machine and return what it printed.

    Args:
        tolerate: a failure is no error (clean-up of what may be gone).

    Raises:
        EmulationError: it failed; the message has the command and its own words.
    """
    parent = os.getpid()

    def with_us() -> None:
        """End the command with this process: it could make again what a clean-up has just removed."""
        die_with_parent()
        if os.getppid() != parent:  # killed meanwhile
            os._exit(1)

    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=with_us)
    if done.returncode and not tolerate:
        reason = (done.stderr or done.stdout).strip().splitlines()
        raise EmulationError(f"`{' '.join(command)}` failed: {reason[0] if reason else f'exit {done.returncode}'}")
    return done.stdout


def die_with_parent() -> None:
    """Make this process end when the one that started it ends, even if that is killed."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        error = ctypes.get_errno()
        raise OSError(error, f"prctl: {os.strerror(error)}")
