"""Running emitted scripts with stand-ins for the programs that they call."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash on PATH")


def stand_in(folder: Path, name: str, text: str) -> None:
    """An executable ``name`` in ``folder``, which goes first on PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\nset -euo pipefail\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def bash(*words: str | Path, cwd: Path, path: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """``bash words...`` with a clean environment plus ``env``."""
    front = f"{path}:" if path else ""
    keep = {"PATH": front + os.environ.get("PATH", ""), "HOME": str(cwd)}
    command = [str(BASH), *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env={**keep, **env}, capture_output=True, text=True, timeout=60, check=False
    )
