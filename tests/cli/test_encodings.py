"""Every command that reads a table refuses one that is not UTF-8, with a message about the user's file."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaleacross.cli import app
from scaleacross.validation.runs import REQUIRED, read_runs

TEXT = "source,gpu,note\nmine,H100-80GB,g\u00e9n\u00e9reux\n"


@pytest.mark.parametrize(
    "command",
    [
        ("calibrate", "--runs"),
        ("calibrate", "--gemm"),
        ("calibrate", "--collectives"),
        ("validate",),
        ("validate", "--attention"),
        ("validate", "--collectives"),
        ("goodput",),
    ],
)
@pytest.mark.parametrize(
    ("encoding", "said"), [("latin-1", "its text is not UTF-8 (byte 0xE9"), ("utf-16", "its text is UTF-16, not UTF-8")]
)
def test_the_encoding_is_named(tmp_path: Path, command: tuple[str, ...], encoding: str, said: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(TEXT.encode(encoding))
    done = CliRunner().invoke(app, [*command, str(path)])
    shown = " ".join(done.stderr.split())
    assert done.exit_code == 2 and said in shown and "save it as UTF-8" in shown, done.output
    assert "codec" not in shown and str(path) in shown.replace(" ", "")


def test_the_way_out_is_read(tmp_path: Path) -> None:
    """The suggested fix works.

    Spreadsheets write a mark before UTF-8, and the first column keeps its name.
    """
    path = tmp_path / "runs.csv"
    path.write_text(",".join(REQUIRED) + "\n", encoding="utf-8-sig")
    assert read_runs(path) == []
