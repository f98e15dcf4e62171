"""The slowest of many accelerators sets the pace of all."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from machines import accelerator, gpt, job, settings

from scaleacross.cost_models.layer_seconds import times_by_type
from scaleacross.cost_models.stragglers import slowest_ratio
from scaleacross.cost_models.work import Work, work_of


def test_one_accelerator_is_the_mean_one() -> None:
    assert slowest_ratio(0.1, 1) == 1.0
    assert slowest_ratio(0.0, [1, 8, 4096]).tolist() == [1.0, 1.0, 1.0]


def test_the_ratio_is_what_drawing_gives() -> None:
    drawn = np.random.default_rng(7).normal(1.0, 0.02, size=(4000, 512)).max(axis=1).mean()
    assert slowest_ratio(0.02, 512) == pytest.approx(drawn, rel=1e-3)
    many = slowest_ratio(0.02, [[8, 64], [512, 16_384]])
    assert many.shape == (2, 2)
    assert np.all(np.diff(many.ravel()) > 0)
    assert many[1, 1] == pytest.approx(1 + 0.02 * 3.97, rel=1e-3)


def test_all_computation_runs_at_the_pace_of_the_slowest() -> None:
    rows = settings(tp=[2, 2], dp_replicate=[1, 64], num_micro_batches=[4, 4])
    even, spread = (
        work_of(gpt().profile(), job(2048, 256), [accelerator(speed_spread_fraction=sigma)], rows)
        for sigma in (0.0, 0.02)
    )
    ratio = slowest_ratio(0.02, [2, 128])
    for name in ("forward_s", "backward_s", "weight_s", "attention_s"):
        assert getattr(spread, name) == pytest.approx(getattr(even, name) * ratio)
    for name in {field.name for field in fields(Work)} - {
        "forward_s",
        "backward_s",
        "weight_s",
        "attention_s",
        "fill_s",
        "fill_backward_s",
        "chunk_backward_s",
        "ahead_attention_s",
        "least_forward_s",
        "least_backward_s",
        "round_forward_s",
        "round_backward_s",
        "every_forward_s",
        "every_backward_s",
        "every_weight_s",
        "every_attention_s",
    }:
        assert getattr(spread, name) == pytest.approx(getattr(even, name), rel=1e-12), name
    (stacked,) = times_by_type(gpt().profile(), job(2048, 256), [accelerator(speed_spread_fraction=0.02)], rows)
    assert stacked.forward[0, 1] / stacked.forward[0, 0] == pytest.approx(ratio[1] / ratio[0])
