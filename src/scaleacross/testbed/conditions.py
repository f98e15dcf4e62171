"""Records where and when something is measured."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from scaleacross.spec.testbed import Conditions


def conditions(load_before: float, fixed_shares: bool) -> Conditions:
    """Return the present conditions; ``load_before`` is the load average when the measurement began."""
    return Conditions(
        date=datetime.now(UTC).date().isoformat(),
        machine=f"{_processor()}, Linux {platform.release().partition('-')[0]}",
        num_cores=len(os.sched_getaffinity(0)),
        versions=f"Python {platform.python_version()}, {_package('torch')}",
        fixed_shares=fixed_shares,
        load_average=(load_before, load_average()),
    )


def load_average() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _package(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"
