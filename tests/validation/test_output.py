"""What a validation prints and writes."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest
from accuracy_page import accuracy_page, why
from measured_rows import TEXT, run, runs
from typer.testing import CliRunner

from scaleacross.cli import app
from scaleacross.errors import InputError
from scaleacross.report.accuracy import grouped_by
from scaleacross.report.accuracy_files import COLUMNS, as_json, rows_csv, scatter_svg
from scaleacross.validation.crosscheck import cross_check
from scaleacross.validation.left_out import apart
from scaleacross.validation.score import Validation, validate_runs
from scaleacross.validation.step_errors import sources_left_out

FIGURES = ("rows", "used", "skipped", "median_abs_error", "mean_abs_error", "p90_abs_error", "bias", "kendall_tau")


@pytest.fixture(scope="module")
def validation() -> Validation:
    return validate_runs([*runs(), replace(run("n1"), id="x", exclude_from_fit=1)])


def test_json_has_the_figures_overall_and_per_group(validation: Validation) -> None:
    data = json.loads(as_json(validation, ("source", "model")))
    assert [data[name] is not None for name in FIGURES[:3]] == [True] * 3
    assert (data["rows"], data["used"], data["skipped"]) == (8, 7, 1)
    assert set(data["groups"]) == {"source", "model"}
    dgxc = data["groups"]["source"]["dgxc"]
    assert set(FIGURES) <= set(dgxc)
    assert (dgxc["rows"], dgxc["used"], dgxc["skipped"]) == (4, 3, 1)
    assert dgxc["kendall_tau"] is None  # no model with four configurations: null, not NaN
    assert data["skipped_rows"] == [{"id": "x", "reason": "excluded by the file (exclude_from_fit = 1)"}]


def test_every_row_has_a_line_and_its_parts_add_up(validation: Validation) -> None:
    lines = list(csv.DictReader(io.StringIO(rows_csv(validation))))
    assert [line["id"] for line in lines] == ["k1", "k2", "n1", "n2", "l1", "v1", "v2", "x"]
    assert tuple(lines[0]) == COLUMNS
    for line in lines[:-1]:
        parts = ("compute_s", "bubble_s", "tp_s", "cp_s", "ep_s", "pp_s", "dp_s", "optimizer_s")
        total = sum(float(line[part]) for part in parts)
        assert total == pytest.approx(float(line["predicted_s"]), rel=1e-4)
        assert float(line["fastest_plausible_s"]) <= float(line["predicted_s"]) <= float(line["slowest_plausible_s"])
        error = float(line["predicted_s"]) / float(line["measured_s"]) - 1
        assert float(line["error"]) == pytest.approx(error, abs=1e-4)
    assert (lines[-1]["used"], lines[-1]["predicted_s"]) == ("0", "")


def test_plot_is_well_formed_and_has_a_point_per_row(validation: Validation) -> None:
    root = ElementTree.fromstring(scatter_svg(validation))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}circle/{space}title")) == len(validation.scored)


def test_unknown_grouping_names_the_known_ones() -> None:
    assert grouped_by(["gpu", "source", "gpu"]) == ("gpu", "source")
    with pytest.raises(InputError, match="no grouping 'colour'; there are source, gpu, model, arch"):
        grouped_by(["colour"])


def test_page_has_its_tables(validation: Validation) -> None:
    rows = apart(validation)
    page = accuracy_page(validation, cross_check(rows), sources_left_out(rows), date(2026, 1, 2))
    for heading in (
        "A cluster never seen",
        "In sample and left out",
        "Step time by source",
        "The 20 worst rows",
        "What was fitted",
    ):
        assert f"## {heading}" in page
    assert "2026-01-02" in page
    assert page.count("| model left out | 7 |") == 1
    assert "training_gemm_ratio.bf16" in page


def test_a_bad_row_is_explained_by_what_is_known_of_it(validation: Validation) -> None:
    (row,) = (row for row in validation.scored if row.run.id == "n1")
    again = replace(row, measured_s=3.4)
    assert "reported at 2.66 to 3.40 s in 2 releases" in why(row, (row, again))
    sharded = replace(row, run=replace(row.run, framework="DeepSpeed ZeRO-3"))
    assert "ZeRO-3 of 2021" in why(sharded, (sharded,))


def test_the_page_names_a_jump_between_micro_batches_that_no_column_explains(validation: Validation) -> None:
    near = next(row for row in validation.scored if row.run.id == "n1")
    slow = replace(near, run=replace(near.run, id="n3", mbs=4), measured_s=2 * near.measured_s)
    assert "100 % slower than with micro-batch 2 (2.66 s" in why(slow, (near, slow))
    assert "micro-batch 4" not in why(near, (near, slow))
    even = replace(slow, measured_s=1.1 * near.measured_s)
    assert "slower than with" not in why(even, (near, even))


def test_command_prints_and_writes(tmp_path: Path) -> None:
    file, out = tmp_path / "runs.csv", tmp_path / "out"
    file.write_text(TEXT, encoding="utf-8")
    done = CliRunner().invoke(app, ["validate", str(file), "--by", "model", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "7 rows used, 0 skipped" in done.output
    assert sorted(path.name for path in out.iterdir()) == ["accuracy.json", "rows.csv", "scatter.svg"]
    as_data = CliRunner().invoke(app, ["validate", str(file), "--json"])
    assert json.loads(as_data.stdout)["used"] == 7


def test_command_refuses_what_is_no_runs_file(tmp_path: Path) -> None:
    file = tmp_path / "other.csv"
    file.write_text("a,b\n1,2\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["validate", str(file)])
    assert done.exit_code == 2
    assert "column model, gpu, n_gpus, seq, gbs is missing" in done.output


@pytest.mark.heavy
def test_the_page_says_what_a_row_holds_that_ran_and_is_predicted_not_to_fit() -> None:
    stated = replace(run("l1"), tp=1, pp=1, cp=1, vpp=None, dp=64, gbs=256)
    page_of = validate_runs([*runs(), replace(stated, id="big")])
    assert page_of.memory.refused == ("big",)
    rows = apart(page_of)
    page = accuracy_page(page_of, cross_check(rows), sources_left_out(rows), date(2026, 1, 2))
    (line,) = (line for line in page.splitlines() if line.startswith("* big states llama3_70b on 64 H100-80GB in bf16"))
    assert "parameters 131.4, gradients 131.4" in line
    assert line.endswith(
        "Other rows of the same model, machine and precision: tp 4 · cp 2 · pp 4, FSDP 0, micro-batch 1 (l1)."
    )
