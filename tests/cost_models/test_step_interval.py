"""Intervals of step times by known facts, and the certainty of one plan's lead."""

from __future__ import annotations

import math

import pytest

from scaleacross.catalogue import load_accelerator, step_errors
from scaleacross.cost_models.step_interval import probability_faster, run_key, step_interval
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.step_errors import StepErrors, StepInterval

H100 = load_accelerator("h100-sxm")
ERRORS = StepErrors.model_validate(
    {
        "low_log": -0.1,
        "high_log": 0.2,
        "median_log": 0.05,
        "unseen_ratio": 2.0,
        "experts_ratio": 3.0,
        "drift_per_doubling": 0.01,
        "calibrated_fraction": (0.6, 0.5, 0.4),
        "paired_log": {"dense": 0.05, "experts": 0.2},
        "seen": ({"accelerator": "h100-sxm", "precision": "bf16", "rows": 9, "sources": 2, "largest": 1024},),
    }
)


def interval(*accelerators: Accelerator, **changes: object) -> StepInterval:
    stated = {"model": "llama3.1-70b", "precision": "bf16", "experts": False, "num_accelerators": 512} | changes
    return step_interval(ERRORS, 10.0, accelerators or (H100,), **stated)  # type: ignore[arg-type]


def logs(found: StepInterval) -> tuple[float, float]:
    return math.log(found.p10_s / 10), math.log(found.p90_s / 10)


def test_a_known_dense_model_has_the_stated_limits() -> None:
    found = interval()
    assert logs(found) == pytest.approx((-0.1, 0.2))
    assert (found.seen, found.experts, found.calibrated_runs, found.doublings_beyond) == (True, False, 0, 0)


def test_what_was_never_seen_and_experts_widen_both_ends() -> None:
    unseen = interval(precision="fp8")
    assert logs(unseen) == pytest.approx((-0.2, 0.4))
    assert not unseen.seen
    assert logs(interval(experts=True)) == pytest.approx((-0.3, 0.6))
    mixed = interval(H100, load_accelerator("b200"))
    assert not mixed.seen  # one type that nobody has measured is enough


def test_every_other_fleet_is_slower_than_the_median_unless_own_runs_say_better() -> None:
    assert math.log((interval().p50_s or 0) / 10) == pytest.approx(0.05)
    assert math.log((interval(experts=True).p50_s or 0) / 10) == pytest.approx(0.15)
    mine = H100.model_copy(update={"name": "mine", "step_time_runs": {run_key("llama3.1-70b", "bf16"): 2}})
    assert interval(mine).p50_s == 10


def test_scale_beyond_the_largest_run_moves_the_upper_end() -> None:
    found = interval(num_accelerators=4096)
    assert found.doublings_beyond == pytest.approx(2)
    assert logs(found) == pytest.approx((-0.1, 0.22))


def test_own_runs_of_the_model_narrow_and_count_as_seen() -> None:
    mine = H100.model_copy(update={"name": "mine", "step_time_runs": {run_key("Llama3.1 70B", "bf16"): 2}})
    found = interval(mine)
    assert (found.calibrated_runs, found.seen) == (2, False)
    assert logs(found) == pytest.approx((-0.05, 0.1))
    many = mine.model_copy(update={"step_time_runs": {run_key("llama3.1-70b", "bf16"): 50}})
    assert logs(interval(many)) == pytest.approx((-0.04, 0.08))  # three or more count alike
    assert logs(interval(mine, model="mixtral")) == pytest.approx((-0.2, 0.4))
    assert interval(mine, H100).calibrated_runs == 0


def test_a_lead_is_as_sure_as_pairs_of_errors_are_alike() -> None:
    assert probability_faster(ERRORS, 1.0, 1.0, experts=False) == 0.5
    sure = probability_faster(ERRORS, 1.0, math.exp(0.05), experts=False)
    assert sure == pytest.approx(1 - math.exp(-1) / 2)
    assert probability_faster(ERRORS, math.exp(0.05), 1.0, experts=False) == pytest.approx(1 - sure)
    assert 0.5 < probability_faster(ERRORS, 1.0, math.exp(0.05), experts=True) < sure


def test_the_shipped_constants_are_asymmetric_and_name_their_file() -> None:
    shipped = step_errors()
    assert shipped.high_log > -shipped.low_log > 0  # rows are slower than predicted more often than faster
    assert 1 >= shipped.calibrated_fraction[0] > shipped.calibrated_fraction[-1] > 0
    figures = set(StepErrors.model_fields) - {"provenance", "seen"}
    assert set(shipped.provenance) == figures
    assert {one.status for one in shipped.provenance.values()} == {"fitted", "assumed"}
    for one in shipped.seen:
        assert one.precision in load_accelerator(one.accelerator).peak_flop_per_s
