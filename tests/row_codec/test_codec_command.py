"""``scaleacross codec``: figures of the user's batches, the CSV of a job, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from scaleacross.api.row_coding import measure_codec, read_batches
from scaleacross.cli import app
from scaleacross.errors import InputError

RUNNER = CliRunner()


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(20, 8)).astype(np.float32)
    near = rows + np.float32(1e-4)  # equal to rows once the bound is larger
    path = tmp_path / "batch.npz"
    np.savez(path, user=np.concatenate([rows, near, rows]), item=rows)
    return path


def test_figures(batch: Path, tmp_path: Path) -> None:
    out = tmp_path / "codecs.csv"
    asked = ["codec", str(batch), "--bounds", "1e-6,0.1", "--encoders", "packed,rans", "--json", "-o", str(out)]
    result = RUNNER.invoke(app, asked)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(one["table"], one["bound_fraction"], one["encoder"]) for one in found[:4]] == [
        ("user", 1e-6, "packed"),
        ("user", 1e-6, "rans"),
        ("user", 0.1, "packed"),
        ("user", 0.1, "rans"),
    ]
    assert found[0]["merged_fraction"] == 0
    assert 0.3 < found[2]["merged_fraction"] <= 0.5  # most of the 20 similar rows become equal to another of 40
    assert found[2]["ratio"] > found[0]["ratio"] > 1
    assert out.read_text().splitlines()[0].startswith("table,encoder,bound_fraction")
    assert len(out.read_text().splitlines()) == 1 + len(found)


def test_bounds_and_encoders_count_once_whatever_the_blanks(batch: Path) -> None:
    result = RUNNER.invoke(
        app, ["codec", str(batch), "--bounds", "0.1, 0.10", "--encoders", "packed, packed,", "--json"]
    )
    assert [(one["table"], one["encoder"]) for one in json.loads(result.stdout)] == [
        ("user", "packed"),
        ("item", "packed"),
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([[0, 1], [2, np.nan]], np.float32), "first: row 1, column 1"),
        (np.zeros((2, 2)), "not float64 of (2, 2): convert them"),
        (np.zeros(4, np.float32), "not float32 of (4,)"),
    ],
)
def test_a_batch_that_no_bound_holds_for_says_where(tmp_path: Path, rows: np.ndarray, message: str) -> None:
    np.save(tmp_path / "t.npy", rows)
    result = RUNNER.invoke(app, ["codec", str(tmp_path / "t.npy")])
    assert result.exit_code == 2
    assert message in result.output.replace("\n", "")


def test_report_names_every_table_once(batch: Path) -> None:
    result = RUNNER.invoke(app, ["codec", str(batch), "--bounds", "0.1,0.2", "--encoders", "packed"])
    assert result.stdout.count("user") == 1 and result.stdout.count("item") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bounds", "2"], "at most 1"),
        (["--bounds", "0"], "above 0"),
        (["--bounds", "x"], "shares with commas"),
        (["--encoders", "lz4"], "no stage 'lz4'"),
    ],
)
def test_what_is_refused(batch: Path, arguments: list[str], message: str) -> None:
    result = RUNNER.invoke(app, ["codec", str(batch), *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_files_that_are_no_batches(tmp_path: Path) -> None:
    raw, text = tmp_path / "t.f32", tmp_path / "t.txt"
    raw.write_bytes(b"\0" * 20)
    text.write_text("no")
    (tmp_path / "t.npy").write_bytes(b"no")
    for path, width, message in (
        (raw, None, "--width"),
        (raw, 3, "no whole number of vectors"),
        (text, None, "are .npz"),
        (tmp_path / "t.npy", None, "cannot be read"),
        (tmp_path / "none.npz", None, "cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            read_batches([path], width)
    assert read_batches([raw], 5)["t"].shape == (1, 5)
    with pytest.raises(InputError, match="table 't': rows are fp32"):
        measure_codec({"t": np.zeros((2, 2))}, [0.1])
    with pytest.raises(InputError, match="no vectors"):
        measure_codec({"t": np.zeros((0, 2), np.float32)}, [0.1])
