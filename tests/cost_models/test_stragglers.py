"""The slowest of many accelerators determines the pace of all."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from machines import accelerator, candidates, gpt, job

import scaleacross as sa
from instances import moe, plain_job
from scaleacross.cost_models.layer_seconds import times_by_type
from scaleacross.cost_models.stragglers import busiest_load, slowest_ratio
from scaleacross.cost_models.work import Work, work_of


def test_one_accelerator_is_the_mean_one() -> None:
    assert slowest_ratio(0.1, 1) == 1.0
    assert slowest_ratio(0.0, [1, 8, 4096]).tolist() == [1.0, 1.0, 1.0]


def test_the_ratio_is_what_drawing_gives() -> None:
    drawn = np.random.default_rng(7).laplace(1.0, 0.02 / np.sqrt(2), size=(4000, 512)).max(axis=1).mean()
    assert slowest_ratio(0.02, 512) == pytest.approx(drawn, rel=1e-3)
    many = slowest_ratio(0.02, [[8, 64], [512, 16_384]])
    assert many.shape == (2, 2)
    assert np.all(np.diff(many.ravel()) > 0)
    assert many[1, 1] == pytest.approx(1 + 0.02 * 6.79, rel=1e-3)


def test_the_busiest_rank_has_what_drawing_gives() -> None:
    experts = np.random.default_rng(3).laplace(1.0, 0.3 / np.sqrt(2), size=(4000, 64))  # as many as ranks
    assert busiest_load(0.3, 64, 64) == pytest.approx(experts.max(axis=1).mean(), rel=5e-3)
    assert busiest_load(0.3, 256, 64) == pytest.approx((1 + busiest_load(0.3, 64, 64)) / 2)  # four experts on a rank
    assert busiest_load(0.0, 128, [1, 32]).tolist() == [1.0, 1.0]
    assert busiest_load(10.0, 8, 2) == 2.0  # never more than all tokens
    assert busiest_load(0.3, 128, 1) == 1.0  # one rank has all experts


def test_all_computation_runs_at_the_pace_of_the_slowest() -> None:
    rows = candidates(tp=[2, 2], dp_replicate=[1, 64], num_micro_batches=[4, 4])
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
    assert stacked.forward_s[0, 1] / stacked.forward_s[0, 0] == pytest.approx(ratio[1] / ratio[0])


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_layer_waits_for_the_rank_with_the_busiest_experts(lanes: int) -> None:
    """A layer waits for the rank with the busiest experts.

    Eight experts are on eight ranks: of dp_shard, or on two lanes of tp and four ranks of dp_shard.
    """
    over = 8 // lanes
    degrees = {"tp": lanes, "cp": 1, "pp": 1, "dp_shard": over, "dp_replicate": 1, "ep": over, "expert_lanes": lanes}
    fixed = {"degrees": degrees, "shard": "optimizer", "expert_folding": ["tp_cp"] if lanes > 1 else ["none"]}
    jobs = (plain_job(8, workload=moe(), experts={"load_spread": spread}, **fixed) for spread in (0.0, 0.3))
    even, unequal = (sa.plan(one, overrides=["recompute=none"], alternatives=False) for one in jobs)
    load = float(busiest_load(0.3, 8, 8))
    assert unequal.cost.component("ep") == pytest.approx(even.cost.component("ep") * load, rel=0.02)
    assert even.cost.compute_s < unequal.cost.compute_s < even.cost.compute_s * load
    assert unequal.estimated.step_s == pytest.approx(sa.simulate(unequal).step_s, rel=0.01)
