"""Sources left out as a whole: visible data of predictions, intervals that hold, and the value of own runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from measured_rows import HEAD, TEXT, run, runs
from typer.testing import CliRunner

from scaleacross.catalogue import read_step_errors
from scaleacross.cli import app
from scaleacross.errors import InputError
from scaleacross.validation.few_runs import after_runs
from scaleacross.validation.fitting import Linearised
from scaleacross.validation.fitting import moved as moved_to
from scaleacross.validation.knobs import KNOBS
from scaleacross.validation.left_out import FITTED, JUDGES, Apart, apart, left_out
from scaleacross.validation.mapping import case_of
from scaleacross.validation.predict import predict
from scaleacross.validation.score import validate_runs
from scaleacross.validation.step_errors import (
    MIN_SOURCES,
    coverage,
    drift,
    limits,
    paired,
    slopes,
    sources_left_out,
    step_errors,
)

SOURCES, ROWS = 12, 20
KERNELS = 0
"""Index of the rate of 16-bit products."""


def made(spread: float = 0.05, offset: float = 0.1, num_sources: int = SOURCES, seed: int = 1) -> Apart:
    """Rows of sources that differ by an offset and by noise. Every row is predicted at 1 s."""
    random = np.random.default_rng(seed)
    first, cases, logs = case_of(run("n1")), [], []
    for source in range(num_sources):
        own = random.normal(0, offset)
        for row in range(ROWS):
            changed = replace(first.run, id=f"{source}-{row}", source=f"s{source}", gbs=64 * (row + 1))
            cases.append(replace(first, run=changed))
            logs.append(own + random.normal(0, spread))
    jacobian = np.zeros((len(cases), len(KNOBS)))
    jacobian[:, KERNELS] = -1.0
    start = {"Hopper": np.log([knob.prior for knob in KNOBS])}
    linear = Linearised(np.zeros(len(cases)), jacobian, start, ("Hopper",) * len(cases))
    origin, fits = np.tile(start["Hopper"], (len(cases), 1)), np.ones(len(cases), dtype=bool)
    return Apart(tuple(cases), np.exp(logs), linear, linear.base, origin, fits)


@pytest.fixture(scope="module")
def known() -> Apart:
    return apart(validate_runs(runs()))


def test_a_source_is_predicted_without_its_rows(known: Apart) -> None:
    own = np.array([row.run.source == "dgxc" for row in known.cases])
    slower = replace(known, measured_s=known.measured_s * np.where(own, 2.0, 1.0), memory={})
    moved = slower.residuals("dgxc") - known.residuals("dgxc")
    assert moved[own] == pytest.approx(np.log(2))  # the prediction did not change
    # it comes from the model with parameters fitted without the source, not from a linear law
    row = int(np.flatnonzero(own)[0])
    assert known.base[row] == pytest.approx(np.log(predict(moved_to(known.cases[row], known.origin[row])).step_s))
    assert known.residuals("dgxc")[row] == pytest.approx(np.log(known.measured_s[row]) - known.base[row])


def test_nothing_is_fitted_to_rows_that_judge() -> None:
    """Rows that judge a fit do not change it.

    Every source is 10 % slower than predicted. A judge that is twice as slow changes no prediction.
    """
    rows = made(spread=0.0, offset=0.0)
    judge = rows.source == "s0"
    slow = replace(rows, measured_s=np.where(judge, 2.0, 1.1), fits=~judge, memory={})
    fitted, found = slow.fitted_alone(), left_out(slow)
    assert set(fitted.sources) == set(rows.sources) - {"s0"}
    assert replace(slow, fits=np.zeros(len(judge), dtype=bool)).fitted_alone().linear.start == {}
    assert fitted.own_residuals() == pytest.approx(slow.own_residuals()[~judge])
    other = replace(slow, measured_s=np.where(judge, 9.0, 1.1), memory={})
    assert other.own_residuals()[~judge] == pytest.approx(slow.own_residuals()[~judge])
    classes = {one.name: one.errors for one in found.classes}
    assert classes[JUDGES].rows == ROWS
    assert classes[JUDGES].bias < classes[FITTED].bias


def test_errors_are_told_by_class(known: Apart) -> None:
    found = left_out(known)
    classes = {one.name: one.errors.rows for one in found.classes}
    assert classes["dense"] == found.overall.rows == 7
    assert "experts" not in classes
    # v1 and v2 (vTrain) and k1 and k2 share accelerator and precision; only dgxc has rows of the H100
    assert (classes["accelerator and precision seen"], classes["accelerator and precision never seen"]) == (4, 3)


@pytest.mark.heavy
def test_intervals_hold_on_sources_that_they_have_not_seen() -> None:
    rows = made()
    found = coverage(rows)
    inside = np.mean([one.inside for one in found.values()])
    assert 0.75 <= inside <= 0.92  # 80 %, rather more than less with few sources
    low, high = limits(rows)
    assert low < -0.05 < 0.05 < high
    # sources differ only by an offset; intervals from single rows would be as narrow as the noise
    narrow = limits(made(offset=0.0))
    assert narrow[1] - narrow[0] < 0.75 * (high - low)


def test_intervals_need_sources() -> None:
    few = made(num_sources=MIN_SOURCES)
    with pytest.raises(InputError, match="intervals need 4 sources besides the one that is left out; there are 3"):
        coverage(few)
    assert sources_left_out(few).coverage == {}


@pytest.mark.heavy
def test_own_runs_take_the_offset_of_a_fleet_away() -> None:
    rows = made(spread=0.01)
    before, after = (
        np.mean([np.abs(getattr(one, when)).mean() for one in after_runs(rows, 2)]) for when in ("before", "after")
    )
    assert after < 0.4 * before
    found = step_errors(rows, "made up")
    one, two, three = found.calibrated_fraction
    assert 1 > one >= two >= three > 0
    assert sources_left_out(rows).together[2][1].median_abs < 0.02


def test_own_runs_change_little_where_nothing_is_to_be_learned() -> None:
    rows = made(spread=0.05, offset=0.0)
    before, after = (
        np.mean([np.abs(getattr(one, when)).mean() for one in after_runs(rows, 2)]) for when in ("before", "after")
    )
    assert after < 1.25 * before


def test_errors_of_pairs_leave_the_offset_of_the_fleet_out() -> None:
    # the difference of two normal errors of 0.05 has a mean size of 0.05 · 2 / √π
    assert paired(made(offset=0.3))["dense"] == pytest.approx(0.05 * 2 / np.sqrt(np.pi), rel=0.1)


def test_drift_is_the_slope_over_scale() -> None:
    rows = made(spread=0.0, offset=0.0, num_sources=5)
    sizes = [2 ** (3 + index % 5) for index in range(len(rows.cases))]
    cases = tuple(replace(one, run=replace(one.run, n_gpus=n)) for one, n in zip(rows.cases, sizes, strict=True))
    slower = replace(rows, cases=cases, measured_s=np.array(sizes, dtype=float) ** 0.02)
    assert drift(slower) == pytest.approx(0.02 * np.log(2), rel=0.01)
    assert {source: len(each) for source, each in slopes(slower).items()} == {f"s{index}": 1 for index in range(5)}
    two = [f"release {index % 2}, Table 1" for index in range(len(cases))]
    told = tuple(replace(one, run=replace(one.run, source_ref=ref)) for one, ref in zip(cases, two, strict=True))
    assert {len(each) for each in slopes(replace(slower, cases=told)).values()} == {2}


@pytest.mark.heavy
def test_command_reports_and_writes_constants(tmp_path: Path) -> None:
    file, table = tmp_path / "runs.csv", tmp_path / "errors.yaml"
    others = [f"{row.replace('n1,dgxc', f'a{index},s{index}')}" for index in range(5) for row in TEXT.splitlines()[3:4]]
    file.write_text("\n".join([HEAD, *TEXT.splitlines()[1:], *others]) + "\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["validate", str(file), "--left-out", "--json", "--table", str(table)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["left_out"]
    assert found["overall"]["rows"] == 12
    assert set(found["coverage"]) == {"Korthikanti", "dgxc", "vTrain", *(f"s{index}" for index in range(5))}
    written = read_step_errors(table)
    assert {(one.accelerator, one.precision): (one.rows, one.sources, one.largest) for one in written.seen} == {
        ("a100-80gb", "fp16"): (4, 2, 256),
        ("h100-sxm", "bf16"): (7, 6, 64),
        ("h100-sxm", "fp8"): (1, 1, 16),
    }
    assert "runs.csv (sha256" in written.provenance["low_log"].source


def test_command_shows_tables_and_refuses_a_table_alone(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(TEXT, encoding="utf-8")
    shown = CliRunner().invoke(app, ["validate", str(file), "--left-out"])
    assert "every source left out whole, by class" in shown.output
    assert "need five sources" in shown.output
    refused = CliRunner().invoke(app, ["validate", str(file), "--table", str(tmp_path / "errors.yaml")])
    assert refused.exit_code == 2
