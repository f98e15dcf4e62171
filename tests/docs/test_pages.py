"""The documentation for a new reader: the site builds without broken links, and every command of its pages runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
RUN = (
    *(
        "index.md",
        "how_to.md",
        "tutorial.md",
        "capacity.md",
        "network.md",
        "own_schedule.md",
        "across_buildings.md",
        "reading_a_plan.md",
    ),
    *("calibrating.md", "published_systems.md", "reference/csv.md", "reference/python.md"),
)
"""Pages whose commands run unchanged.

Commands of other pages need a reader's own files or take minutes.
"""
SHOWN = ("sbatch", "cd", "export", "SBATCH_OPTIONS=--test-only", "./submit.sh", "pip", "make")
"""Prefixes of commands in ``console`` blocks, which need a cluster or install packages."""


def blocks(page: str, language: str) -> list[str]:
    """Fenced code of one language, in order."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The examples in an empty folder, so that pages write nowhere else."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A shell in ``folder`` whose ``scaleacross`` is this interpreter's."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": beside, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(["bash", "-ec", command], cwd=folder, env=given, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("page", RUN)
def test_commands_of_a_page_run(page: str, clone: Path) -> None:
    commands, programs = blocks(page, "bash"), blocks(page, "python")
    assert commands or programs
    for command in commands:
        result = run(command, clone)
        assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
        assert "Traceback" not in result.stderr
    for program in programs:
        (clone / "program.py").write_text(program, encoding="utf-8")
        assert run(f"{sys.executable} program.py", clone).returncode == 0


def test_blocks_that_do_not_run_need_a_cluster() -> None:
    for page in RUN:
        for block in blocks(page, "console"):
            for line in block.splitlines():
                assert line.startswith("$ ") and line[2:].split()[0] in SHOWN, line


def test_the_site_builds_and_no_link_is_broken(tmp_path: Path) -> None:
    """The site builds in strict mode.

    A broken link or anchor, a page outside the navigation, or an unreadable docstring is an error.
    """
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-3000:]
    job = (tmp_path / "reference" / "job.html").read_text(encoding="utf-8")
    assert "memory_headroom_fraction" in job and "Fields of a job" in job
    assert "--cpu-limit" in (tmp_path / "reference" / "commands.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "notebook", sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_notebooks_run(notebook: Path, clone: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the extra docs is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the extra docs is not installed")
    cells = nbformat.read(notebook, as_version=4)
    nbclient.NotebookClient(cells, timeout=300, resources={"metadata": {"path": str(clone)}}).execute()
