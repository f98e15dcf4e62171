"""Time of one GEMM or one fused attention call, from its shape.

Regime: a kernel alone on an idle accelerator, inputs in HBM, tuned library kernels of 1 GFLOP and more. Effects of a
training step (power shared with communication, gradient layouts and accumulation, launch gaps) are left out:
``training_gemm_ratio`` and similar figures of the accelerator state them, and ``compute.py`` applies them.

Symbols: P peak FLOP/s, B HBM bytes/s, M multiprocessors, (m, n, k) rows, cols, depth, (a, b) rows and cols of a tile, w
= tiles / M waves. All functions broadcast over arrays of shapes; parameters are scalars of ``spec/kernel_model.py``.

Sources: tile and wave quantisation, NVIDIA "Matrix Multiplication Background" user guide; split-K and persistent tiles
with a shared last wave, Osama et al., "Stream-K", arXiv 2301.03598; attention tiles, Dao, "FlashAttention-2", arXiv
2307.08691, §3.2; list-scheduling bound W/M + longest task, Graham 1969, doi 10.1137/0117039.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.spec.accelerator import Accelerator, GemmKind, Precision
from scaleacross.spec.kernel_model import AttentionModel, GemmModel

ELEMENT_BYTES: Final[dict[GemmKind, float]] = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5}
"""Bytes per operand element of a GEMM, without scales."""
RESULT_BYTES: Final = 2.0
"""Bytes per element of a GEMM's result: 16 bit whatever its operands."""
PARTIAL_BYTES: Final = 8.0
"""Bytes per output and part of split-K: an fp32 partial sum, written and read."""
REFERENCE_TILE: Final = 256 * 128
"""Outputs of the tile that ``tile_overhead_s`` is stated for."""
REFERENCE_TRAFFIC: Final = 1.5
"""Operand traffic of that tile: 128 · (1/256 + 1/128)."""
SCORE_SHARE: Final = 0.3
"""Share of a score's time that does not shrink with the head, for q, k and v of 128 features: exponentials and their traffic.

FlashAttention-3 on an H100 runs 648 TFLOP/s with heads of 128 and 497 with heads of 64 (arXiv 2407.08608, figure 5, 16k, not
causal): 0.790 and 0.515 ps a score, 0.240 with none. One for all accelerators: kernel sweeps at hand have heads of 128 alone."""
SCORE_FEATURES: Final = 2 * 128
"""Features of q, k and v per score of that head."""
QUERY_TILE: Final = 128
"""Queries per attention tile."""
ALIGNED_ROWS: Final = 4
"""Rows per 16 bytes of fp32 block scales, the least that a bulk tensor copy addresses."""


@dataclass(frozen=True)
class Machine:
    """The figures of an accelerator that limit a kernel: peak of its precision, HBM, and multiprocessors."""

    peak_flop_per_s: float
    memory_bandwidth_bytes_per_s: float
    num_multiprocessors: int


def precision_of(kind: GemmKind) -> Precision:
    """Precision whose peak limits a kind of product."""
    return "fp8" if kind == "fp8_block" else kind


def machine_of(accelerator: Accelerator, kind: GemmKind) -> Machine:
    """Limits of ``accelerator`` for products of ``kind``. Raises KeyError when it states no peak for it."""
    return Machine(
        accelerator.peak_flop_per_s[precision_of(kind)],
        accelerator.memory_bandwidth_bytes_per_s,
        accelerator.num_multiprocessors,
    )


def gemm_model_of(accelerator: Accelerator, kind: GemmKind) -> GemmModel:
    """The stated model of ``kind`` (fp16 shares bf16's: same peak, same bytes), or one by the stated efficiencies.

    Efficiencies imply whole waves of one tile at ``gemm_efficiency_fraction``, or HBM at
    ``memory_efficiency_fraction``, whichever takes longer.
    """
    same: GemmKind = "bf16" if kind == "fp16" and kind not in accelerator.gemm_models else kind
    if same in accelerator.gemm_models:
        return accelerator.gemm_models[same]
    return GemmModel(
        compute_efficiency_fraction=accelerator.gemm_efficiency_fraction,
        memory_efficiency_fraction=accelerator.memory_efficiency_fraction,
        launch_s=accelerator.kernel_launch_s,
        tiles=((accelerator.gemm_tile_rows, accelerator.gemm_tile_cols),),
        splits=(1,),
    )


def attention_model_of(accelerator: Accelerator) -> AttentionModel:
    """The stated model, or ``attention_efficiency_fraction`` of the peak at every shape."""
    return accelerator.attention_model or AttentionModel(
        compute_efficiency_fraction=accelerator.attention_efficiency_fraction, launch_s=accelerator.kernel_launch_s
    )


def gemm_kernel_s(
    model: GemmModel,
    machine: Machine,
    element_bytes: float,
    rows: Floats,
    cols: Floats,
    depth: Floats,
    count: Floats | float = 1.0,
    result_bytes: float = RESULT_BYTES,
) -> Floats:
    """Seconds of ``count`` equal products (rows × depth)·(depth × cols) in one kernel, without launch and conversion.

    ‖compute, memory‖_p. Compute is that of the best tile and split, lengthened by the clock under sustained load.
    Memory = (operands + result) · count / (B · memory_efficiency_fraction). ``result_bytes``: bytes moved per element
    of the result, more than RESULT_BYTES where the product is added to an existing tensor.
    """
    bandwidth = machine.memory_bandwidth_bytes_per_s
    compute = _slowed(_best_tiling_s(model, machine, rows, cols, depth, count), model)
    moved = (rows * depth + depth * cols) * element_bytes + rows * cols * result_bytes
    memory = moved * count / (bandwidth * model.memory_efficiency_fraction)
    # block scales of rows off the 16-byte alignment need further passes over the other operand
    unaligned = model.unaligned_passes * (rows % ALIGNED_ROWS > 0) * depth * cols * element_bytes * count / bandwidth
    return _joined(compute, memory, model.overlap_exponent) + unaligned


def gemm_call_s(
    model: GemmModel, machine: Machine, element_bytes: float, rows: Floats, cols: Floats, depth: Floats
) -> Floats:
    """Seconds measured by a benchmark of the library call: kernel, launch, and conversion of the left operand."""
    cast = model.cast_bytes * rows * depth / machine.memory_bandwidth_bytes_per_s
    return gemm_kernel_s(model, machine, element_bytes, rows, cols, depth) + model.launch_s + cast


def _best_tiling_s(
    model: GemmModel, machine: Machine, rows: Floats, cols: Floats, depth: Floats, count: Floats | float
) -> Floats:
    """Least compute time over tiles and splits: waves · (2·a·b·k·M / (P · efficiency) + overhead) + partial sums.

    waves = credit · w + (1 − credit) · ⌈w⌉; a split s makes s times the tiles of depth k/s, and s fp32 results to add.
    """
    if not model.tiles or not model.splits:
        raise ValueError("a GemmModel names at least one tile and one split")
    multiprocessors, outputs = machine.num_multiprocessors, rows * cols * count
    apart = (1,) * np.ndim(outputs * depth)  # axes: tile, split, then those of the shapes
    tile_rows, tile_cols = np.array(model.tiles, dtype=np.float64).T.reshape(2, -1, 1, *apart)
    split = np.array(model.splits, dtype=np.float64).reshape(-1, *apart)
    tiles = np.ceil(rows / tile_rows) * np.ceil(cols / tile_cols) * count
    area = tile_rows * tile_cols
    narrow = 128.0 * (1.0 / tile_rows + 1.0 / tile_cols) - REFERENCE_TRAFFIC
    rate = machine.peak_flop_per_s * model.compute_efficiency_fraction
    rate = rate / np.maximum(1.0, 1.0 + model.narrow_tile_slowdown * narrow)  # no tile is faster than the reference
    overhead = model.tile_overhead_s * area / REFERENCE_TILE
    time = _waves(model, tiles * split / multiprocessors) * (
        2.0 * area * multiprocessors / rate * depth / split + overhead
    )
    added = model.split_passes * PARTIAL_BYTES * split / machine.memory_bandwidth_bytes_per_s
    time = time + np.where(split > 1, added, 0.0) * outputs
    best: Floats = time.min(axis=(0, 1))
    return best


def _waves(model: GemmModel, filled: Floats) -> Floats:
    """Number of waves that count for the time, for ``filled`` = tiles / multiprocessors."""
    credit = np.where(filled < 1.0, model.first_wave_credit_fraction, model.wave_credit_fraction)
    return credit * filled + (1.0 - credit) * np.ceil(filled)


def attention_kernel_s(
    model: AttentionModel,
    machine: Machine,
    sequences: Floats,
    queries: Floats,
    keys: Floats,
    heads: Floats,
    kv_heads: Floats,
    qk_head_dim: float | Floats,
    v_head_dim: float | Floats,
) -> Floats:
    """Seconds of fused causal attention, forward, of ``queries`` positions per sequence against up to ``keys``, without
    launch.

    The causal half of 2·(qk + v) FLOP per query, key and head at P · efficiency, plus overhead / M per tile of 128
    queries, plus drain · the longest tile (128 queries against all keys on one multiprocessor), all lengthened by the
    clock; then the exposed passes over query, key and value. Under context parallelism ``queries`` = keys / cp, spread
    evenly over the triangle. Heads of fewer features than SCORE_FEATURES save SCORE_SHARE less than their FLOP.
    """
    rate = machine.peak_flop_per_s * model.compute_efficiency_fraction
    features = qk_head_dim + v_head_dim
    head_flop_per_pair = 2.0 * np.maximum(features, SCORE_SHARE * SCORE_FEATURES + (1.0 - SCORE_SHARE) * features)
    tiles = sequences * heads * queries / QUERY_TILE
    triangle = 0.5 * head_flop_per_pair * sequences * heads * queries * keys / rate
    tile = head_flop_per_pair * QUERY_TILE * keys * machine.num_multiprocessors / rate + model.tile_overhead_s
    compute = triangle + tiles * model.tile_overhead_s / machine.num_multiprocessors + model.drain_tiles * tile
    elements = sequences * queries * (heads * qk_head_dim + kv_heads * (qk_head_dim + v_head_dim))
    passes = model.unhidden_passes * 2.0 * elements / machine.memory_bandwidth_bytes_per_s
    return _slowed(compute, model) + passes


def _slowed(seconds: Floats, model: GemmModel | AttentionModel) -> Floats:
    """t · (1 + slowdown · t / (t + slowdown_s)): short kernels run at boost clock, long ones under the power limit."""
    slowed: Floats = seconds * (1.0 + model.slowdown_fraction * seconds / (seconds + model.slowdown_s))
    return slowed


def _joined(first: Floats, second: Floats, exponent: float | None) -> Floats:
    """(first^p + second^p)^(1/p), or the maximum without an exponent; scaled so that no power underflows."""
    longer = np.maximum(first, second)
    if exponent is None:
        return longer
    share = np.minimum(first, second) / np.maximum(longer, np.finfo(np.float64).tiny)
    joined: Floats = longer * (1.0 + share**exponent) ** (1.0 / exponent)
    return joined
