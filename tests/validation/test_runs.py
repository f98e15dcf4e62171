"""Reading measured runs: blanks, numbers, and errors in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured_rows import TEXT, run, runs
from typer.testing import CliRunner

from scaleacross.api import validate
from scaleacross.cli import app
from scaleacross.errors import InputError
from scaleacross.validation.runs import read_runs
from scaleacross.validation.score import usable_cases


def test_blank_means_not_stated() -> None:
    assert run("n1").vpp is None
    assert run("k1").vpp == 3
    assert run("k1").mem_gib is None  # a column that the file does not have


def test_numbers_have_the_types_of_their_columns() -> None:
    row = run("l1")
    assert (row.n_gpus, row.tp, row.gbs) == (64, 4, 128)
    assert row.step_time_s == 14.61


def test_rows_without_an_id_are_named_after_their_line() -> None:
    text = "model,gpu,n_gpus,seq,gbs\nx,H100-80GB,8,4096,64\ny,H100-80GB,8,4096,64\n"
    assert [row.id for row in runs(text)] == ["line2", "line3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,gpu,n_gpus,seq,gbs\nx,H100,8,4096,\n", "line 2: gbs is blank"),
        ("model,gpu,n_gpus,seq,gbs,tp\nx,H100,8,4096,64,two\n", "line 2: tp: 'two' is no number"),
        ("model,gpu,n_gpus,seq,gbs\nx,H100,8.5,4096,64\n", "line 2: n_gpus: '8.5' is no whole number"),
        (
            "model,gpu,n_gpus,seq,gbs,loss\nx,H100,8,4096,64,Compile\n",
            "line 2: loss: 'Compile' is not read: 'compiled' is",
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_named_with_its_line_and_skips_it_alone(text: str, message: str) -> None:
    (row,) = runs(text)
    assert message in row.unreadable
    cases, skipped = usable_cases([run("n1"), row])
    assert [case.run.id for case in cases] == ["n1"]
    assert [(one.id, reason) for one, reason in skipped] == [("line2", row.unreadable)]


def test_everything_that_is_wrong_with_a_row_is_listed() -> None:
    (row,) = runs("model,gpu,n_gpus,seq,gbs,tp\nx,H100,8.5,4096,,two\n")
    assert row.unreadable == "golden, line 2: n_gpus: '8.5' is no whole number; tp: 'two' is no number; gbs is blank"


@pytest.mark.parametrize("verb", [["validate"], pytest.param(["calibrate", "--runs"], marks=pytest.mark.heavy)])
def test_a_column_that_nothing_is_read_from_is_named(verb: list[str], tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    names, row = (
        "model,gpu,n_gpus,seq,gbs,tp,pp,dp,mbs,precision,{},{},step_time_s",
        "llama3.1-8b,H100-80GB,64,8192,64,1,1,64,1",
    )
    text = f"{names}\n{row},bf16,full,x,1.2\n"
    path.write_text(text.format("recomputation", "seen"), encoding="utf-8")
    found = CliRunner().invoke(app, [*verb, str(path)])
    assert found.exit_code == 0, found.stderr
    told = " ".join(found.stderr.split())
    assert "columns that nothing is read from: recomputation (nearest that is read: recompute), seen" in told
    path.write_text(text.format("recompute", "notes"), encoding="utf-8")
    assert "nothing is read from" not in CliRunner().invoke(app, [*verb, str(path)]).stderr


@pytest.mark.parametrize(
    ("rows", "said"),
    [("", "no runs: below the line of column names"), ("x,abacus,8,8,8\n", "none of 1 rows can be used")],
)
def test_a_file_of_no_runs_is_named_and_says_what_it_lacks(rows: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"model,gpu,n_gpus,seq,gbs\n{rows}", encoding="utf-8")
    with pytest.raises(InputError, match=f"runs.csv: {said}"):
        validate(path)


def test_a_missing_column_is_bad_input() -> None:
    with pytest.raises(InputError, match="column gbs is missing"):
        runs("model,gpu,n_gpus,seq\n")


def test_a_file_reads_like_its_text(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(TEXT, encoding="utf-8")
    assert read_runs(path) == runs()


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.csv: cannot be read"):
        read_runs(tmp_path / "nothing.csv")


def test_repeats_share_their_configuration_but_not_their_release() -> None:
    again = (
        TEXT.splitlines()[0]
        + "\n"
        + "\n".join(line for line in TEXT.splitlines() if line.startswith("n1")).replace("2.66", "2.84")
    )
    assert runs(again)[0].configuration == run("n1").configuration
    assert run("n1").configuration != run("n2").configuration
