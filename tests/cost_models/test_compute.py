"""Computation: roofline limits, quantisation, shards, recomputation and attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import accelerator, candidates, gpt, job

from scaleacross.catalogue import load_accelerator
from scaleacross.cost_models.compute import (
    ELEMENTWISE_BACKWARD_RATIO,
    RING_BACKWARD_BYTES,
    RING_FORWARD_BYTES,
    Shards,
    accumulation_time_s,
    attainable_flop_per_s,
    gemm_time_s,
    layer_times,
    optimizer_time_s,
)
from scaleacross.cost_models.kernels import gemm_model_of
from scaleacross.cost_models.runtime import Runtime, runtime_of
from scaleacross.cost_models.work import work_of
from scaleacross.spec.conversion import GatheredConversion, MovedBytes
from scaleacross.spec.framework import Optimizer
from scaleacross.spec.parallelism import CONTEXT_EXCHANGES, ContextExchange
from scaleacross.workloads.layer_profile import ActivationBytes, Attention, Gemm, LayerProfile, Recurrence

CHIP = accelerator()
QUIET = accelerator(kernel_launch_s=0.0)
PLAIN = Runtime()
RATE = 100e12 * 0.5
HBM = 1e12 * 0.8


def gemm(rows: float, cols: float, depth: float, count: float = 1, chip=QUIET) -> float:  # type: ignore[no-untyped-def]
    sizes = (np.array(float(value)) for value in (rows, cols, depth, count))
    return float(gemm_time_s(chip, "bf16", *sizes))


def layer(*gemms: Gemm, attention: Attention | None = None, elementwise_bytes: float = 0.0) -> LayerProfile:
    held = dict.fromkeys(("none", "selective", "full"), ActivationBytes(0.0))
    return LayerProfile("layer", gemms, attention, 0, 0, 0, elementwise_bytes, held, 64, 0)


def shards(
    tp: int = 1, cp: int = 1, ep: int = 1, micro_batch: int = 1, context: ContextExchange = "ring", lanes: int = 1
) -> Shards:
    return Shards(
        *(np.array([value]) for value in (tp, cp, ep, micro_batch, 0, CONTEXT_EXCHANGES.index(context), lanes, 1))
    )


def test_one_full_wave_by_hand() -> None:
    # ten tiles of 64 × 128 on ten multiprocessors: nothing is wasted
    assert gemm(640, 128, 4096) == pytest.approx(2 * 640 * 128 * 4096 / RATE)


def test_the_eleventh_tile_pays_a_second_wave() -> None:
    one = gemm(640, 128, 4096)
    assert gemm(641, 128, 4096) == pytest.approx(2 * one)
    assert gemm(1280, 128, 4096) == pytest.approx(2 * one)
    assert gemm(1281, 128, 4096) == pytest.approx(3 * one)


def test_edge_tiles_are_paid_in_full() -> None:
    assert gemm(640, 1, 65_536) == gemm(1, 128, 65_536, count=10) == pytest.approx(2 * 640 * 128 * 65_536 / RATE)


@pytest.mark.parametrize("name", ["a100-80gb", "h100-sxm", "h200", "b200", "mi300x"])
@pytest.mark.parametrize("n", [16_384, 32_768])
def test_a_large_square_product_runs_at_peak_times_efficiency(name: str, n: int) -> None:
    # as the stated efficiencies have it: without the fitted kernels and what a training step adds
    chip = load_accelerator(name).model_copy(update={"gemm_models": {}, "training_gemm_ratio": {}})
    ideal = 2 * n**3 / (chip.peak_flop_per_s["bf16"] * chip.gemm_efficiency_fraction)
    assert ideal < gemm(n, n, n, chip=chip) < 1.05 * ideal + chip.kernel_launch_s


def test_a_thin_product_is_bound_by_memory() -> None:
    # one row: the weights of 8192 × 8192, 134 MB, pass HBM once, at a fifth of the usual rate; else the tile's 64 rows limit
    slow = accelerator(kernel_launch_s=0.0, memory_bandwidth_bytes_per_s=2e11)
    moved = 2 * (8192 + 8192 * 8192) + 2 * 8192
    assert gemm(1, 8192, 8192, chip=slow) == pytest.approx(moved / (2e11 * 0.8))


def test_a_tiny_product_costs_its_launch() -> None:
    assert gemm(1, 1, 1, chip=CHIP) == pytest.approx(CHIP.kernel_launch_s, rel=1e-3)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 16))
def test_no_product_beats_the_roofline(rows: int, cols: int, depth: int, count: int) -> None:
    flop, moved = 2 * rows * cols * depth * count, 2 * (rows * depth + depth * cols + rows * cols) * count
    assert gemm(rows, cols, depth, count) >= max(flop / RATE, moved / HBM) * (1 - 1e-12)
    assert gemm(rows + 1, cols, depth, count) >= gemm(rows, cols, depth, count)


def test_a_grouped_product_shares_waves() -> None:
    # ten experts of one tile each occupy the machine once; one by one they would take ten waves
    quick = accelerator(kernel_launch_s=0.0, memory_bandwidth_bytes_per_s=1e13)  # so that HBM does not bind
    assert gemm(64, 128, 4096, count=10, chip=quick) == pytest.approx(gemm(64, 128, 4096, chip=quick))


def test_tensor_parallelism_divides_columns_or_depth() -> None:
    column, row, whole = (Gemm("g", 1024, 4096, shard) for shard in ("column", "row", "none"))
    tokens = 512
    sharded = shards(tp=4)
    times = [layer_times(layer(g), 0, QUIET, "bf16", sharded, tokens, PLAIN).forward_s[0] for g in (column, row, whole)]
    assert times == pytest.approx([gemm(512, 1024, 1024), gemm(512, 4096, 256), gemm(512, 4096, 1024)])


def test_backward_multiplies_by_the_weight_and_by_the_input() -> None:
    # 100 tokens, so that every product has edge tiles of its own
    timed = layer_times(layer(Gemm("g", 1024, 4096, "column")), 0, QUIET, "bf16", shards(tp=2), 100, PLAIN)
    assert timed.backward_s[0] == pytest.approx(gemm(100, 1024, 2048) + gemm(1024, 2048, 100))


def test_experts_share_the_tokens_of_their_expert_parallel_group() -> None:
    # 8 experts, top 2, 100 tokens per rank: with ep 4 two local experts of 100·2/2 rows, as 4 ranks pool their tokens
    expert = layer(Gemm("up", 256, 1024, "expert_column", tokens_per_token=2))
    timed = layer_times(expert, 8, QUIET, "bf16", shards(ep=4), 100, PLAIN)
    assert timed.forward_s[0] == pytest.approx(gemm(100, 1024, 256, count=2))
    alone = layer_times(expert, 8, QUIET, "bf16", shards(), 100, PLAIN)
    assert alone.forward_s[0] == pytest.approx(gemm(25, 1024, 256, count=8))
    divided = layer_times(expert, 8, QUIET, "bf16", shards(ep=4, tp=2), 100, PLAIN)
    assert divided.forward_s[0] == pytest.approx(gemm(100, 512, 256, count=2))


def test_causal_attention_is_half_of_the_square() -> None:
    core = Attention(num_heads=16, num_kv_heads=4, qk_head_dim=128, v_head_dim=128)
    s = 512
    square = 2 * 16 * (128 + 128) * s * s  # scores and weighted values, multiply and add
    gathered = shards(tp=2, cp=4, micro_batch=8, context="gather")
    timed = layer_times(layer(attention=core), 0, QUIET, "bf16", gathered, s, PLAIN)
    assert timed.attention_s[0] == pytest.approx(8 * square / 2 / (2 * 4) / (100e12 * 0.25))
    assert timed.forward_s[0] == timed.attention_s[0]
    assert timed.backward_s[0] == pytest.approx(5 / 2 * timed.attention_s[0])  # five products of the forward pass's two


def test_attention_round_a_ring_is_the_same_work_in_more_calls() -> None:
    # 4 calls of 128 queries against 128 keys; every call's result of 8 local heads × 32 features is put together
    chip = accelerator(kernel_launch_s=1e-6)
    core = layer(attention=Attention(num_heads=16, num_kv_heads=4, qk_head_dim=64, v_head_dim=32))
    one, ring, swapped = (
        layer_times(core, 0, chip, "bf16", shards(tp=2, cp=4, micro_batch=8, context=kind), 512, PLAIN)
        for kind in ("gather", "ring", "all_to_all")
    )
    assert swapped.forward_s == pytest.approx(one.forward_s)  # whole sequences of 2 heads each, one call
    combined = 4 * 8 * 128 * (8 * 32) / HBM
    assert ring.forward_s[0] - one.forward_s[0] == pytest.approx(3e-6 + RING_FORWARD_BYTES * combined)
    more = 5 / 2 * 3e-6 + RING_BACKWARD_BYTES * combined
    assert ring.backward_s[0] - one.backward_s[0] == pytest.approx(more)
    alone = layer_times(core, 0, chip, "bf16", shards(tp=2), 512, PLAIN)
    assert alone.forward_s == layer_times(core, 0, chip, "bf16", shards(tp=2, context="gather"), 512, PLAIN).forward_s


def test_gradients_of_weights_are_added_in_their_product_or_after_it() -> None:
    # a product bound by memory: 2 bytes written per parameter, or 4 read and 4 written where it adds to fp32
    slow = accelerator(kernel_launch_s=0.0, memory_bandwidth_bytes_per_s=1e9)
    thin = layer(Gemm("g", 1024, 4096, "none"))
    fused, separate = (Optimizer(fused_accumulation=flag) for flag in (True, False))
    once, added = (
        layer_times(thin, 0, slow, "bf16", shards(), 1, runtime_of(job().model_copy(update={"optimizer": each})))
        for each in (separate, fused)
    )
    assert added.forward_s == once.forward_s
    assert added.backward_s[0] - once.backward_s[0] == pytest.approx((8 - 2) * 1024 * 4096 / (1e9 * 0.8))
    assert accumulation_time_s(slow, fused, np.array(1e6)) == 0
    assert accumulation_time_s(slow, separate, np.array(1e6)) == pytest.approx((2 + 8) * 1e6 / (1e9 * 0.8))


def test_whole_experts_keep_their_width() -> None:
    # 8 experts over tp 2 · ep 2: two local ones, each with the tokens that four ranks of half as many tokens send it
    whole = layer(Gemm("up", 256, 1024, "expert_column", tokens_per_token=2))
    timed = layer_times(whole, 8, QUIET, "bf16", shards(ep=2, tp=2, lanes=2), 100, PLAIN)
    assert timed.forward_s[0] == pytest.approx(gemm(50, 1024, 256, count=2))


def test_elementwise_work_runs_at_memory_speed() -> None:
    timed = layer_times(
        layer(elementwise_bytes=1000.0), 0, QUIET, "bf16", shards(tp=2, cp=2, micro_batch=4), 512, PLAIN
    )
    seconds = 1000 * 512 * 4 / 2 / 2 / HBM
    assert timed.forward_s[0] == pytest.approx(seconds)
    assert timed.backward_s[0] == pytest.approx(ELEMENTWISE_BACKWARD_RATIO * seconds)
    assert timed.partly_s[0] == timed.forward_s[0]


def test_a_recurrence_whose_result_is_not_kept_runs_again() -> None:
    """A recurrence whose result is not kept runs again.

    SelectiveAC of torchtitan recomputes by operator and keeps no result of it (``variants.with_operator_recompute``).
    """
    core = replace(layer(), recurrence=Recurrence((8,), 1e6, 1e3, 64))
    every, by_operator = (
        layer_times(replace(core, by_operator=said), 0, QUIET, "bf16", shards(), 512, PLAIN) for said in (False, True)
    )
    assert every.partly_s[0] == 0.0
    assert by_operator.partly_s[0] == by_operator.forward_s[0] == every.forward_s[0] > 0.0


def test_eight_bit_products_run_at_their_own_peak_but_attention_does_not() -> None:
    chip = accelerator(peak_flop_per_s={"bf16": 100e12, "fp8": 200e12}, kernel_launch_s=0.0)
    heavy = layer(Gemm("g", 8192, 8192, "none"))
    core = layer(attention=Attention(16, 16, 64, 64))
    for part, ratio in ((heavy, 2.0), (core, 1.0)):
        slow, fast = (layer_times(part, 0, chip, p, shards(), 4096, PLAIN).forward_s[0] for p in ("bf16", "fp8"))
        assert fast == pytest.approx(slow / ratio)
    with pytest.raises(KeyError, match="nvfp4"):
        layer_times(heavy, 0, chip, "nvfp4", shards(), 4096, PLAIN)


NARROW = accelerator(peak_flop_per_s={"bf16": 100e12, "fp8": 200e12}, kernel_launch_s=0.0)


def conversion_bytes(moved: MovedBytes, part: Gemm, tp: int = 1) -> tuple[float, float, float]:
    """HBM bytes that ``moved`` adds to ``part`` with 512 tokens: forward, backward, and in the weight gradient."""
    with_it, without = (
        layer_times(layer(part), 0, NARROW, "fp8", shards(tp=tp), 512, Runtime(moved=each))
        for each in (moved, MovedBytes())
    )
    return (
        HBM * float(with_it.forward_s[0] - without.forward_s[0]),
        HBM * float(with_it.backward_s[0] - without.backward_s[0]),
        HBM * float(with_it.weight_s[0] - without.weight_s[0]),
    )


def test_conversions_of_every_operand_in_the_pass_that_needs_it() -> None:
    conversion = MovedBytes(
        input_forward_bytes=3.0,
        input_backward_bytes=10.0,
        gradient_bytes=13.0,
        weight_forward_bytes=5.0,
        weight_backward_bytes=7.0,
        rescale_bytes=4.0,
    )
    entered, left, weights = 512 * 256, 512 * 1024, 256 * 1024
    again = 10 * entered + 4 * weights
    back = 13 * left + 7 * weights + 4 * entered
    part = Gemm("g", 256, 1024, "none")
    assert conversion_bytes(conversion, part) == pytest.approx((3 * entered + 5 * weights, back + again, again))
    # one of three siblings: the kernel that adds their gradients up scales them too
    unscaled = (3 * entered + 5 * weights, back - 4 * entered + again, again)
    assert conversion_bytes(conversion, replace(part, siblings=3)) == pytest.approx(unscaled)
    assert conversion_bytes(conversion, replace(part, always_16_bit=True)) == pytest.approx((0, 0, 0))


def test_what_tp_gathers_is_converted_in_parts() -> None:
    conversion = MovedBytes(
        input_forward_bytes=6.0, gradient_bytes=6.0, gathered=GatheredConversion(before_bytes=5.0, after_bytes=2.0)
    )
    column, row = Gemm("g", 256, 1024, "column"), Gemm("g", 1024, 256, "row")
    gathered = (5 / 4 + 2) * 512 * 256
    assert conversion_bytes(conversion, column, tp=4)[:2] == pytest.approx((gathered, 6 * 512 * 1024 / 4))
    shared = conversion_bytes(conversion, replace(column, siblings=3), tp=4)[0]  # before, once for all three
    assert shared == pytest.approx((5 / 4 / 3 + 2) * 512 * 256)
    assert conversion_bytes(conversion, row, tp=4)[:2] == pytest.approx((6 * 512 * 1024 / 4, gathered))
    assert conversion_bytes(conversion, column)[:2] == pytest.approx((6 * 512 * 256, 6 * 512 * 1024))


def test_gradients_of_siblings_are_read_once_each_and_their_sum_is_written_once() -> None:
    part = Gemm("g", 1024, 4096, "none")
    alone, three = (
        layer_times(layer(replace(part, siblings=n)), 0, QUIET, "bf16", shards(), 100, PLAIN) for n in (1, 3)
    )
    assert 3 * HBM * float(three.backward_s[0] - alone.backward_s[0]) == pytest.approx((3 * 2 + 2) * 100 * 1024)
    assert three.weight_s[0] == alone.weight_s[0]


def test_the_host_takes_as_long_as_a_routed_layer_has_operators() -> None:
    tiny = tuple(Gemm(f"g{index}", 1, 1, "none") for index in range(10))
    chip = accelerator(kernel_launch_s=0.0, host_moe_pass_s=1.0)
    routed = (replace(layer(*tiny[:count]), routed_tokens=2) for count in (5, 10))
    five, ten = (layer_times(each, 4, chip, "bf16", shards(), 8, PLAIN) for each in routed)
    # 5 products, 5 others and 10 of the routing are 20; 10 products make them 30
    assert (float(five.forward_s[0]), float(ten.forward_s[0])) == (pytest.approx(1.0), pytest.approx(1.5))
    assert float(ten.backward_s[0]) == pytest.approx(3.0)
    assert float(layer_times(layer(*tiny), 0, chip, "bf16", shards(), 8, PLAIN).forward_s[0]) < 1e-3


def test_recomputation_adds_what_it_repeats() -> None:
    profile = gpt().profile()
    work = work_of(profile, job(), [CHIP], candidates(recompute=["none", "selective", "full"]))
    assert len(set(work.forward_s)) == 1
    block = profile.blocks[0][0]
    timed = layer_times(block, 0, CHIP, "bf16", shards(), 512, PLAIN)
    none, selective, full = work.backward_s
    # embedding and head are not repeated; of their gathers over tp, only those of the layers come again
    assert selective - none == pytest.approx(8 * timed.partly_s[0])
    assert full - none == pytest.approx(8 * timed.forward_s[0])
    layers, head = 8 * block.tp_gathers, profile.head.tp_gathers
    assert work.tp_gathers.tolist() == [4 * (layers + head), 4 * (layers + head), 6 * layers + 4 * head]


def test_the_work_of_a_stage_is_that_of_its_layers() -> None:
    # 8 layers on 4 ranks: two each; the last one has the head too and is the busiest
    profile = gpt().profile()
    work = work_of(profile, job(), [CHIP], candidates(pp=4, num_micro_batches=4))
    block = layer_times(profile.blocks[0][0], 0, CHIP, "bf16", shards(), 512, PLAIN)
    head = layer_times(profile.head, 0, CHIP, "bf16", shards(), 512, PLAIN)
    assert work.forward_s[0] == pytest.approx(2 * block.forward_s[0] + head.forward_s[0])
    assert work.attention_s[0] == pytest.approx(2 * block.attention_s[0])
    assert work.layers[0] == 2


def test_the_slowest_accelerator_sets_the_time() -> None:
    fast = accelerator("fast", peak_flop_per_s={"bf16": 400e12})
    both = work_of(gpt().profile(), job(), [fast, CHIP], candidates())
    assert both.forward_s == work_of(gpt().profile(), job(), [CHIP], candidates()).forward_s


def test_the_update_reads_and_writes_every_state() -> None:
    assert optimizer_time_s(QUIET, np.array(1e9), 30.0) == pytest.approx(30e9 / HBM)
    # Adam: 12 bytes of state read and written, 4 of gradient read, 2 of parameter written; halved by two shards
    work = work_of(gpt().profile(), job(), [QUIET], candidates(dp_shard=2, shard="optimizer"))
    assert work.optimizer_s[0] == pytest.approx(gpt().profile().total_parameters / 2 * 30 / HBM)


def test_blocks_of_128_have_kernels_of_their_own_and_scales_of_32_do_not() -> None:
    plain_model = gemm_model_of(NARROW, "fp8")
    halved = plain_model.model_copy(update={"compute_efficiency_fraction": plain_model.compute_efficiency_fraction / 2})
    chip = NARROW.model_copy(update={"gemm_models": {"fp8_block": halved}})
    part = layer(Gemm("g", 8192, 8192, "none"))
    plain, scaled, blocks = (
        float(layer_times(part, 0, chip, "fp8", shards(), 4096, Runtime(recipe=recipe)).forward_s[0])
        for recipe in ("delayed", "mxfp8", "blockwise")
    )
    assert scaled == plain
    assert blocks == pytest.approx(2 * plain)
    best = [attainable_flop_per_s(one, "fp8") for one in (NARROW, chip)]
    assert best[0] == best[1]
