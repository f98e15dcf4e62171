"""Kernel times: every term by hand, and laws that hold for any parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import accelerator
from pydantic import ValidationError

from scaleacross.catalogue import load_accelerator
from scaleacross.cost_models.compute import attainable_flop_per_s
from scaleacross.cost_models.kernels import (
    Machine,
    attention_kernel_s,
    attention_model_of,
    gemm_call_s,
    gemm_kernel_s,
    gemm_model_of,
    machine_of,
)
from scaleacross.spec.kernel_model import AttentionModel, GemmModel

# ten multiprocessors of 10 TFLOP/s, 1 TB/s
CHIP = Machine(peak_flop_per_s=100e12, memory_bandwidth_bytes_per_s=1e12, num_multiprocessors=10)
TILE_S = 2 * 128 * 128 * 4096 / 10e12
"""One 128 × 128 tile of depth 4,096 on one multiprocessor."""


def plain(**changes: Any) -> GemmModel:
    """Parameters of whole waves of 128 × 128 tiles at full rate, without other costs."""
    figures = {"compute_efficiency_fraction": 1.0, "memory_efficiency_fraction": 1.0, "launch_s": 0.0}
    return GemmModel.model_validate({**figures, "tiles": [(128, 128)], "splits": [1], **changes})


def seconds(
    model: GemmModel, rows: float, cols: float, depth: float, count: float = 1.0, chip: Machine = CHIP
) -> float:
    return float(gemm_kernel_s(model, chip, 2.0, *(np.array(float(x)) for x in (rows, cols, depth)), count))


def test_whole_waves_by_hand() -> None:
    assert seconds(plain(), 1280, 128, 4096) == pytest.approx(TILE_S)  # ten tiles on ten multiprocessors
    assert seconds(plain(), 1281, 128, 4096) == pytest.approx(2 * TILE_S)
    assert seconds(plain(), 1, 1, 65_536) == pytest.approx(16 * TILE_S)  # an edge tile takes as long as a full one


def test_credit_pays_part_of_the_idle_wave() -> None:
    later = plain(wave_credit_fraction=0.75)
    # eleven tiles are 1.1 waves that count as 2: 0.75 · 1.1 + 0.25 · 2
    assert seconds(later, 1408, 128, 4096) == pytest.approx(1.325 * TILE_S)
    assert seconds(later, 640, 128, 4096) == pytest.approx(TILE_S)  # half a wave has the other credit
    first = plain(first_wave_credit_fraction=0.5)
    assert seconds(first, 640, 128, 4096) == pytest.approx(0.75 * TILE_S)
    assert seconds(first, 1408, 128, 4096) == pytest.approx(2 * TILE_S)


def test_the_best_tile_is_taken_and_narrow_ones_are_slower() -> None:
    both = plain(tiles=[(256, 128), (128, 128)], narrow_tile_slowdown=0.2)
    # 128 rows: half of a 256-row tile would be idle; 128 · (1/128 + 1/128) − 1.5 = 0.5, so 10 % slower than the reference
    assert seconds(both, 128, 1280, 4096) == pytest.approx(1.1 * TILE_S)
    assert seconds(both, 256, 1280, 4096) == pytest.approx(2 * TILE_S)
    wide = plain(tiles=[(256, 256)], narrow_tile_slowdown=0.2)
    assert seconds(wide, 256, 2560, 4096) == pytest.approx(4 * TILE_S)  # never faster than the reference


def test_overhead_comes_with_every_tile_and_grows_with_it() -> None:
    assert seconds(plain(tile_overhead_s=1e-5), 1408, 128, 4096) == pytest.approx(2 * (TILE_S + 0.5e-5))


def test_depth_is_split_where_tiles_are_few() -> None:
    split = plain(splits=[1, 4], split_passes=3.0)
    # one tile: a quarter of the depth on each of four, then three passes over four partial results of 8 bytes
    assert seconds(split, 128, 128, 65_536) == pytest.approx(4 * TILE_S + 3 * 4 * 8 * 128 * 128 / 1e12)
    assert seconds(split, 1280, 128, 4096) == pytest.approx(TILE_S)  # full already: no split


def test_memory_joins_compute_by_the_exponent() -> None:
    compute, moved = TILE_S, (1280 * 4096 + 4096 * 128) * 2 + 1280 * 128 * 2
    slow = Machine(100e12, moved / TILE_S, 10)  # as long as the products take
    assert seconds(plain(memory_efficiency_fraction=0.5), 1280, 128, 4096, chip=slow) == pytest.approx(2 * compute)
    for exponent, factor in ((1.0, 2.0), (2.0, 2**0.5), (400.0, 1.0)):
        joined = seconds(plain(overlap_exponent=exponent), 1280, 128, 4096, chip=slow)
        assert joined == pytest.approx(factor * compute, rel=2e-3)


def test_long_kernels_slow_down_by_the_stated_share() -> None:
    model = plain(slowdown_fraction=0.2, slowdown_s=TILE_S)
    assert seconds(model, 1280, 128, 4096) == pytest.approx(1.1 * TILE_S)
    assert seconds(model, 1280, 128 * 10_000, 4096) == pytest.approx(1.2 * 10_000 * TILE_S, rel=1e-4)


def test_unaligned_rows_read_the_right_operand_again() -> None:
    model = plain(unaligned_passes=1.5)
    extra = seconds(model, 1279, 128, 4096) - seconds(plain(), 1279, 128, 4096)
    assert extra == pytest.approx(1.5 * 4096 * 128 * 2 / 1e12)
    assert seconds(model, 1276, 128, 4096) == seconds(plain(), 1276, 128, 4096)


def test_a_call_adds_launch_and_conversion() -> None:
    model = plain(launch_s=5e-6, cast_bytes=9.0)
    sizes = (np.array(1280.0), np.array(128.0), np.array(4096.0))
    call, kernel = gemm_call_s(model, CHIP, 1.0, *sizes), gemm_kernel_s(model, CHIP, 1.0, *sizes)
    assert call - kernel == pytest.approx(5e-6 + 9 * 1280 * 4096 / 1e12)


FITTED = [load_accelerator(name) for name in ("a100-80gb", "h100-sxm", "b200", "mi300x")]
SIZES = st.integers(1, 40_000)


@given(st.sampled_from(FITTED), SIZES, SIZES, SIZES, st.integers(1, 16))
def test_no_fitted_product_beats_peak_or_bandwidth_and_none_shrinks(chip, rows, cols, depth, count) -> None:  # type: ignore[no-untyped-def]
    model, machine = gemm_model_of(chip, "bf16"), machine_of(chip, "bf16")
    sizes = np.array([rows, cols, depth, count], dtype=np.float64)
    base = seconds(model, *sizes, chip=machine)
    moved = 2 * (rows * depth + depth * cols + rows * cols) * count
    rate = machine.peak_flop_per_s * model.compute_efficiency_fraction
    bounds = (2.0 * rows * cols * depth * count / rate, moved / machine.memory_bandwidth_bytes_per_s)
    assert base >= max(bounds) * (1 - 1e-9)
    assert rate <= attainable_flop_per_s(chip, "bf16") * (1 + 1e-9)
    for each in np.eye(4):
        assert seconds(model, *(sizes + each), chip=machine) >= base * (1 - 1e-9)


def test_shapes_broadcast() -> None:
    model, machine = gemm_model_of(FITTED[1], "bf16"), machine_of(FITTED[1], "bf16")
    rows, cols = np.array([[100.0], [5000.0]]), np.array([64.0, 4096.0, 28_672.0])
    times = gemm_kernel_s(model, machine, 2.0, rows, cols, np.array(4096.0), 2.0)
    assert times.shape == (2, 3)
    assert times[1, 2] == pytest.approx(seconds(model, 5000, 28_672, 4096, 2, machine))


def test_without_a_fit_the_stated_efficiencies_hold() -> None:
    chip = accelerator()
    model = gemm_model_of(chip, "bf16")
    assert (model.tiles, model.splits) == (((64, 128),), (1,))
    assert model.compute_efficiency_fraction == 0.5
    assert attention_model_of(chip).compute_efficiency_fraction == 0.25


def test_half_precision_shares_a_fit_and_blockwise_scales_share_a_peak() -> None:
    chip = load_accelerator("h100-sxm")
    assert gemm_model_of(chip, "fp16") is chip.gemm_models["bf16"]
    assert gemm_model_of(chip, "fp8_block") is chip.gemm_models["fp8_block"]
    assert machine_of(chip, "fp8_block") == machine_of(chip, "fp8")
    with pytest.raises(KeyError, match="nvfp4"):
        machine_of(chip, "nvfp4")


def attend(
    model: AttentionModel, sequences: float, queries: float, keys: float, kv_heads: float = 2.0, head: float = 192.0
) -> float:
    sizes = (np.array(float(x)) for x in (sequences, queries, keys, 8, kv_heads))
    return float(attention_kernel_s(model, CHIP, *sizes, head, head / 3))


def test_attention_terms_by_hand() -> None:
    plain = AttentionModel(compute_efficiency_fraction=0.5, launch_s=0.0)
    half = 0.5 * 2 * (192 + 64) * 3 * 8 * 1024 * 1024 / 50e12  # 3 sequences of 8 heads, the causal half
    assert attend(plain, 3, 1024, 1024) == pytest.approx(half)
    assert attend(plain, 3, 256, 1024) == pytest.approx(half / 4)  # context parallelism by four
    tiled = plain.model_copy(update={"tile_overhead_s": 1e-6})
    assert attend(tiled, 3, 1024, 1024) == pytest.approx(half + 3 * 8 * 8 * 1e-6 / 10)  # 8 tiles a head, 10 at a time
    drained = plain.model_copy(update={"drain_tiles": 0.5})
    longest = 2 * (192 + 64) * 128 * 1024 / 5e12
    assert attend(drained, 3, 1024, 1024) == pytest.approx(half + 0.5 * longest)
    passes = plain.model_copy(update={"unhidden_passes": 3.0})
    elements = 3 * 1024 * (8 * 192 + 2 * (192 + 64))
    assert attend(passes, 3, 1024, 1024) == pytest.approx(half + 3 * 2 * elements / 1e12)
    slowed = plain.model_copy(update={"slowdown_fraction": 0.2, "slowdown_s": half})
    assert attend(slowed, 3, 1024, 1024) == pytest.approx(1.1 * half)


def test_narrow_heads_save_less_than_their_flop() -> None:
    # FlashAttention-3 on an H100, heads of 64 and 128 (arXiv 2407.08608, figure 5): 497 and 648 TFLOP/s
    plain = AttentionModel(compute_efficiency_fraction=0.5, launch_s=0.0)
    whole, half, twice = (attend(plain, 3, 1024, 1024, head=1.5 * features) for features in (128, 64, 256))
    assert half / whole == pytest.approx(0.5 * 648 / 497, rel=0.01)
    assert twice == 2 * whole


@pytest.mark.parametrize("change", [{"wave_credit_fraction": 1.1}, {"tiles": []}, {"overlap_exponent": 0.5}])
def test_parameters_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        plain(**change)
