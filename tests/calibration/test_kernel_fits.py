"""Fits recover the parameters of synthetic data, leave whole shapes out, and keep their published errors on real
sweeps."""

from __future__ import annotations

import gzip
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from scaleacross.calibration.kernel_data import AttentionTimes, GemmTimes, read_attention_times, read_gemm_times
from scaleacross.calibration.kernels import (
    NUM_FOLDS,
    Score,
    fit_attention,
    fit_gemm,
    folds,
    predict_attention_s,
    predict_gemm_s,
    score,
    score_attention,
    score_gemm,
)
from scaleacross.calibration.robust_fit import Parameter, fit_times
from scaleacross.calibration.systems import ACCELERATOR_OF
from scaleacross.catalogue import load_accelerator
from scaleacross.cost_models.kernels import (
    ELEMENT_BYTES,
    Machine,
    attention_model_of,
    gemm_model_of,
    machine_of,
)
from scaleacross.errors import InputError
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.kernel_model import AttentionModel, GemmModel

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("SCALEACROSS_DATA", ROOT.parent / "shared" / "data"))
GOLDEN: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "golden" / "kernel_errors.yaml").read_text(encoding="utf-8"))
MACHINE = Machine(peak_flop_per_s=1e15, memory_bandwidth_bytes_per_s=3e12, num_multiprocessors=132)
MODEL = GemmModel(
    compute_efficiency_fraction=0.7,
    memory_efficiency_fraction=0.8,
    launch_s=4e-6,
    tile_overhead_s=2e-6,
    wave_credit_fraction=0.6,
    first_wave_credit_fraction=0.4,
    slowdown_fraction=0.1,
    slowdown_s=3e-4,
    narrow_tile_slowdown=0.2,
    overlap_exponent=3.0,
)

measured = pytest.mark.skipif(
    not (DATA / "gemm_measured.csv.gz").exists(), reason=f"no kernel sweeps in {DATA} (SCALEACROSS_DATA names another)"
)


def shapes(num: int, seed: int = 3) -> GemmTimes:
    """Products of 256 to 16,384 rows, cols and depth, without times."""
    sizes = np.random.default_rng(seed).integers(1, 65, size=(3, num)) * 256.0
    return GemmTimes(*sizes, np.ones(num))


def timed(model: GemmModel, times: GemmTimes, noise: float = 0.0) -> GemmTimes:
    seconds = predict_gemm_s(model, MACHINE, 2.0, times)
    factors = np.exp(noise * np.random.default_rng(5).standard_normal(len(seconds)))
    return GemmTimes(times.rows, times.cols, times.depth, seconds * factors)


@pytest.mark.slow
def test_a_fit_recovers_the_model_that_made_the_times() -> None:
    result = fit_gemm(timed(MODEL, shapes(500)), MACHINE, 2.0)
    assert result.in_sample.p90_abs_error < 5e-3
    assert result.out_of_sample.p90_abs_error < 1e-2
    assert result.model.compute_efficiency_fraction == pytest.approx(0.7, rel=0.02)
    assert result.model.launch_s == pytest.approx(4e-6, rel=0.1)


@pytest.mark.heavy
def test_the_error_left_out_is_the_noise() -> None:
    # |N(0, 4 %)| has its median at 0.674 · 4 % = 2.7 %
    result = fit_gemm(timed(MODEL, shapes(500), noise=0.04), MACHINE, 2.0)
    assert 0.022 < result.in_sample.median_abs_error <= result.out_of_sample.median_abs_error * 1.05 < 0.034


@pytest.mark.slow
def test_rows_left_out_are_not_fitted() -> None:
    # 11 parameters on 60 noisy rows fit the noise; the rows left out show it
    result = fit_gemm(timed(MODEL, shapes(60), noise=0.1), MACHINE, 2.0)
    assert result.out_of_sample.mean_abs_error > 1.2 * result.in_sample.mean_abs_error


def test_a_twentieth_of_wild_times_moves_the_fit_little() -> None:
    clean = timed(MODEL, shapes(500))
    wild = clean.time_s.copy()
    wild[::20] *= 5
    result = fit_gemm(GemmTimes(clean.rows, clean.cols, clean.depth, wild), MACHINE, 2.0)
    assert score_gemm(result.model, MACHINE, 2.0, clean).p90_abs_error < 0.03


def test_attention_is_recovered() -> None:
    made = AttentionModel(compute_efficiency_fraction=0.6, launch_s=1e-5, tile_overhead_s=5e-6, drain_tiles=0.7)
    draw = np.random.default_rng(1)
    columns = [draw.integers(1, high, 200) * unit for high, unit in ((33, 1.0), (17, 1024.0), (65, 1.0), (9, 1.0))]
    times = AttentionTimes(*columns, np.full(200, 128.0), np.ones(200))
    times = AttentionTimes(*columns, times.head_dim, predict_attention_s(made, MACHINE, times))
    assert fit_attention(times, MACHINE).out_of_sample.p90_abs_error < 0.01


def test_equal_shapes_share_a_fold() -> None:
    one = shapes(103).shapes()
    fold = folds(np.concatenate([one, one]))
    assert (fold[:103] == fold[103:]).all()
    distinct = len(np.unique(one, axis=0))
    assert sorted(np.unique(one[fold[:103] == number], axis=0).shape[0] for number in range(NUM_FOLDS)) == sorted(
        len(range(number, distinct, NUM_FOLDS)) for number in range(NUM_FOLDS)
    )


def test_score_by_hand() -> None:
    errors = score(np.array([1.1, 0.8, 1.0]), np.ones(3))
    assert errors == Score(3, *(pytest.approx(value) for value in (0.1, 0.18, 0.1, -0.1 / 3)))  # type: ignore[arg-type]


def test_a_term_that_nothing_shows_is_fitted_as_zero() -> None:
    size = np.linspace(1, 50, 40)
    free = (Parameter("slope", 1.0, "positive"), Parameter("offset", 1.0, "positive"))
    fitted = fit_times(lambda at: at["slope"] * size + at["offset"], 3 * size, free, scale=0.02)
    assert fitted.values["slope"] == pytest.approx(3, rel=1e-3)
    assert fitted.values["offset"] < 0.02


def test_too_few_shapes_are_refused_with_the_number_needed() -> None:
    with pytest.raises(InputError, match="11 parameters with 5 folds needs 55 distinct shapes; there are 40"):
        fit_gemm(timed(MODEL, shapes(40)), MACHINE, 2.0)
    small = GemmTimes(*(np.full(3, 64.0) for _ in range(3)), np.ones(3))
    with pytest.raises(InputError, match="no product of at least 1 GFLOP among 3"):
        score_gemm(MODEL, MACHINE, 2.0, small)


HEAD = "accelerator,gemm_dtype,m,n,k,time_us\n"


def test_files_are_read_plain_or_compressed(tmp_path: Path) -> None:
    text = HEAD + "x,bfloat16,256,512,1024,10.5\nx,fp8_block,1,2,3,4\n"
    (tmp_path / "a.csv").write_text(text)
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write(text)
    for name in ("a.csv", "a.csv.gz"):
        times = read_gemm_times(tmp_path / name)
        assert set(times) == {("x", "bf16"), ("x", "fp8_block")}
        assert times["x", "bf16"].time_s == pytest.approx([10.5e-6])
        assert times["x", "bf16"].flop == pytest.approx([2 * 256 * 512 * 1024])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accelerator,m,n\n", r"no column gemm_dtype, k, time_us"),
        (HEAD, "no rows"),
        (HEAD + "x,fp8,1,2,3,-1\n", r"line 2, time_us: '-1' is no positive number"),
        (HEAD + "x,fp8,1,2,3,1\nx,fp8,1,two,3,1\n", r"line 3, n: 'two' is no positive number"),
        (HEAD + "x,fp8,1,2\n", r"line 2, k: None is no positive number"),
    ],
)
def test_unreadable_files_are_named_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_gemm_times(path)
    with pytest.raises(InputError, match="nothing"):
        read_attention_times(tmp_path / "nothing.csv")


def figures(errors: Score) -> list[float]:
    return [100 * errors.median_abs_error, 100 * errors.p90_abs_error]


def catalogue_score(measured_on: str, kind: Any) -> Score:
    chip: Accelerator = load_accelerator(ACCELERATOR_OF[measured_on])
    if kind == "attention":
        return score_attention(attention_model_of(chip), machine_of(chip, "bf16"), attentions()[measured_on])
    times = products()[measured_on, kind]
    return score_gemm(gemm_model_of(chip, kind), machine_of(chip, kind), ELEMENT_BYTES[kind], times)


@cache
def products() -> dict[tuple[str, str], GemmTimes]:
    return read_gemm_times(DATA / "gemm_measured.csv.gz")


@cache
def attentions() -> dict[str, AttentionTimes]:
    return read_attention_times(DATA / "attention_measured.csv.gz")


@measured
@pytest.mark.parametrize("name", GOLDEN["rows"])
def test_the_catalogue_holds_its_errors_on_the_sweeps(name: str) -> None:
    errors = catalogue_score(*name.split())
    assert figures(errors) == pytest.approx(GOLDEN["rows"][name]["in_sample"], abs=GOLDEN["tolerance"])
    assert abs(errors.bias) < 0.015


@pytest.mark.parametrize("name", GOLDEN["rows"])
def test_errors_left_out_meet_the_bars_or_are_listed(name: str) -> None:
    out = GOLDEN["rows"][name]["out_of_sample"]
    meets = all(error <= bar for error, bar in zip(out, GOLDEN["bars"][name.split()[1]], strict=True))
    assert meets != (name in GOLDEN["missed"])


@measured
@pytest.mark.slow
def test_left_out_errors_are_those_of_a_fresh_fit() -> None:
    chip = load_accelerator("h100-sxm")
    fresh = fit_gemm(products()["h100_sxm", "bf16"], machine_of(chip, "bf16"), 2.0)
    row = GOLDEN["rows"]["h100_sxm bf16"]
    assert figures(fresh.in_sample) == pytest.approx(row["in_sample"], abs=GOLDEN["tolerance"])
    assert figures(fresh.out_of_sample) == pytest.approx(row["out_of_sample"], abs=3 * GOLDEN["tolerance"])
    attention = fit_attention(attentions()["h100_sxm"], machine_of(chip, "bf16"))
    assert figures(attention.out_of_sample) == pytest.approx(
        GOLDEN["rows"]["h100_sxm attention"]["out_of_sample"], abs=3 * GOLDEN["tolerance"]
    )
