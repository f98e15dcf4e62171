"""A whole validation on the rows copied by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured_rows import run, runs

from scaleacross.errors import InputError
from scaleacross.validation.baseline import constant_mfu, ideal_s, step_flop
from scaleacross.validation.mapping import case_of
from scaleacross.validation.predict import TUNED, predict
from scaleacross.validation.score import validate_runs


def test_predictions_do_not_see_what_was_measured() -> None:
    honest = validate_runs(runs())
    doubled = validate_runs([replace(row, step_time_s=2 * (row.step_time_s or 0)) for row in runs()])
    for one, other in zip(honest.scored, doubled.scored, strict=True):
        assert one.prediction.step_s == other.prediction.step_s
        assert other.error == pytest.approx((one.error - 1) / 2)


def test_of_what_a_row_leaves_open_the_middle_of_what_a_tuned_run_may_be_counts() -> None:
    case = case_of(replace(run("l1"), mbs=None, vpp=None))
    found = predict(case)
    alone = sorted(
        one.step_s for decision in case.decisions if (one := predict(replace(case, decisions=(decision,)))).fits
    )
    near = [seconds for seconds in alone if seconds <= TUNED * alone[0]]
    assert len(near) > 2
    assert found.plausible_s == (near[0], near[-1])
    assert found.step_s == near[len(near) // 2]
    stated = predict(case_of(run("l1")))
    assert stated.plausible_s == (stated.step_s, stated.step_s)


def test_golden_rows_are_predicted_within_their_tolerance() -> None:
    tolerance = {"k1": 0.10, "k2": 0.10, "n1": 0.10, "n2": 0.12, "l1": 0.08, "v1": 0.12, "v2": 0.20}
    off = {row.run.id: row.error for row in validate_runs(runs()).scored if abs(row.error) > tolerance[row.run.id]}
    assert off == {}


def test_skipped_rows_are_kept_with_their_reason() -> None:
    found = validate_runs(
        [*runs(), replace(run("n1"), id="x", exclude_from_fit=1), replace(run("n1"), step_time_s=None)]
    )
    assert len(found.scored) == len(runs())
    assert [reason.split(" (")[0] for _, reason in found.skipped] == [
        "excluded by the file",
        "neither step_time_s nor tflops_per_gpu is stated",
    ]


def test_groups_add_up() -> None:
    found = validate_runs(runs())
    for groups in found.groups.values():
        assert sum(group.ours.rows for group in groups) == found.overall.ours.rows == len(runs())


def test_nothing_usable_is_bad_input() -> None:
    with pytest.raises(InputError, match="none of 1 rows can be used: no machine is known"):
        validate_runs([replace(run("n1"), gpu="abacus")])


def test_rows_with_only_a_rate_get_the_step_time_that_it_implies() -> None:
    case = case_of(run("n1"))
    rate = step_flop(case, recompute=False) / 2.66 / 16 / 1e12
    found = validate_runs([replace(run("n1"), step_time_s=None, tflops_per_gpu=rate)])
    assert found.scored[0].measured_s == pytest.approx(2.66)
    # others than Megatron count half of the attention square: less FLOP, so a shorter step for the same rate
    causal = validate_runs([replace(run("n1"), framework="MaxText", step_time_s=None, tflops_per_gpu=rate)])
    assert causal.scored[0].measured_s == pytest.approx(2.66 * step_flop(case, causal=True) / step_flop(case))
    # the formula that a row states holds for any framework
    for framework, words, same in (
        ("NeMo", "causal half", causal),
        ("MaxText", "12 L h s, attention not halved", found),
    ):
        stated = replace(run("n1"), framework=framework, step_time_s=None, tflops_per_gpu=rate, flops_convention=words)
        assert validate_runs([stated]).scored[0].measured_s == pytest.approx(same.scored[0].measured_s)


def test_step_flop_of_gpt_is_the_published_formula() -> None:
    # arXiv 2104.04473 eq. 3: 96·B·s·l·h²·(1 + s/6h + V/16lh), full recomputation; the head is not recomputed there either
    b, s, layers, h, v = 64, 2048, 96, 12288, 51200
    published = 96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert step_flop(case_of(run("k1"))) == pytest.approx(published, rel=1e-6)


def test_constant_mfu_minimises_the_mean_error() -> None:
    cases = [case_of(run(name)) for name in ("k1", "k2", "v1", "v2")]
    measured = np.array([case.run.step_time_s or 0 for case in cases])
    predicted, fitted = constant_mfu(cases, measured)
    assert list(fitted) == ["A100-80GB fp16"]
    best = np.abs(predicted / measured - 1).mean()
    ideal = np.array([ideal_s(case) for case in cases])
    for u in np.linspace(0.2, 0.9, 71):
        assert np.abs(ideal / u / measured - 1).mean() >= best - 1e-12


def test_a_row_that_ran_but_is_predicted_not_to_fit_is_listed() -> None:
    tight = replace(run("l1"), mem_gib=75.0, tp=1, dp=8)  # 4x the parameters per GPU
    found = validate_runs([tight])
    assert found.memory.refused == ("l1",)
    assert found.memory.errors.rows == 1
