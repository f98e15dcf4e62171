"""A folder that cannot be written is refused before the search whose result it is for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaleacross.cli import app

JOB = "llama3_8b_one_building"
COMMANDS = (
    ["plan", JOB],
    ["compare", JOB],
    ["pareto", JOB],
    ["sweep", "two_buildings_trunk"],
    ["simulate", "none.json"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_folder_that_cannot_be_made_is_said_before_the_search(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(*_: object, **__: object) -> None:
        raise AssertionError("the search began")

    monkeypatch.setattr("scaleacross.solvers.joint.search", searched)
    (tmp_path / "taken").write_text("")
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "taken" / "sub")], env={"COLUMNS": "400"})
    assert done.exit_code == 2 and "taken is a file: a folder is needed there" in done.stderr, done.output
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "new" / "sub")], env={"COLUMNS": "400"})
    assert done.exit_code == 2 and "permission denied; choose another place" in done.stderr, done.output
    assert not (tmp_path / "new").exists()
