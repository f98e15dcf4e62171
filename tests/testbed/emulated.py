"""Requirements of tests that create namespaces.

They skip with the testbed's own message if something is missing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scaleacross.errors import InputError
from scaleacross.testbed.machine import machine

EXAMPLES = Path(__file__).parents[2] / "examples" / "testbed"
MAIN = "from scaleacross.cli import main; main()"


def _missing() -> str:
    here = machine()
    try:
        here.require()
        here.require_delay("trunks of the examples")
    except InputError as error:
        return str(error)
    return ""


MISSING = _missing()
needs_testbed = pytest.mark.skipif(bool(MISSING), reason=MISSING or "all is there")


def scaleacross(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", MAIN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)  # type: ignore[call-overload, no-any-return]
