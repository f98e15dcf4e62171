"""Time of the computation of one layer and one micro-batch on one accelerator.

Regime: dense training kernels of at least a few microseconds; clocks and power at the level that the stated
efficiencies imply. Rates and efficiencies come from the accelerator's catalogue entry, each with source and status; no
constant lives here but the algorithmic ratios below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleacross.cost_models.settings import Floats, Ints
from scaleacross.spec.accelerator import Accelerator, Precision
from scaleacross.workloads.layer_profile import Attention, Gemm, LayerProfile

ELEMENT_BYTES: Final[dict[Precision, float]] = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5}
ATTENTION_BACKWARD_RATIO: Final = 2.5
"""Backward over forward FLOP of fused attention: 5 matrix products against 2 (FlashAttention, arXiv 2205.14135, §3)."""
ELEMENTWISE_BACKWARD_RATIO: Final = 2.0
"""HBM bytes of element-wise work, backward over forward: output gradients are read too, input gradients written."""


@dataclass(frozen=True)
class Shards:
    """What divides a layer's work, arrays of shape (n,): degrees and sequences per micro-batch."""

    tp: Ints
    cp: Ints
    ep: Ints
    micro_batch: Ints

    def tokens(self, sequence_length: int) -> Floats:
        """Tokens of one micro-batch on one rank, before tp: micro_batch · sequence / cp."""
        return self.micro_batch * (sequence_length / self.cp)


@dataclass(frozen=True)
class LayerTimes:
    """Seconds per micro-batch and layer, shape (n,).

    Attributes:
        forward_s: forward pass.
        backward_s: both gradients, without recomputation.
        selective_s: what selective recomputation adds to backward.
        attention_s: fused attention, part of ``forward_s``.
    """

    forward_s: Floats
    backward_s: Floats
    selective_s: Floats
    attention_s: Floats


def gemm_time_s(
    accelerator: Accelerator, precision: Precision, rows: Floats, cols: Floats, depth: Floats, count: Floats
) -> Floats:
    """``count`` equal products (rows × depth)·(depth × cols), arrays broadcast, in one grouped launch.

        max(waves · tile FLOP · multiprocessors / (peak · efficiency), bytes / HBM) + launch,
        waves = ⌈tiles / multiprocessors⌉

    The last wave and the edge tiles are paid in full (tile and wave quantisation, NVIDIA matrix multiplication
    background guide).
    """
    tiles = np.ceil(rows / accelerator.gemm_tile_rows) * np.ceil(cols / accelerator.gemm_tile_cols) * count
    waves = np.ceil(tiles / accelerator.num_multiprocessors)
    wave_flop = 2.0 * accelerator.num_multiprocessors * accelerator.gemm_tile_rows * accelerator.gemm_tile_cols * depth
    rate = accelerator.peak_flop_per_s[precision] * accelerator.gemm_efficiency_fraction
    moved = (rows * depth + depth * cols) * ELEMENT_BYTES[precision] + rows * cols * 2.0
    memory_rate = accelerator.memory_bandwidth_bytes_per_s * accelerator.memory_efficiency_fraction
    return np.maximum(waves * wave_flop / rate, moved * count / memory_rate) + accelerator.kernel_launch_s


def _gemm_shape(gemm: Gemm, shards: Shards, tokens: Floats, num_experts: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Rows, cols, depth and count of a Gemm on one rank."""
    cols = gemm.out_features / (shards.tp if gemm.shard.endswith("column") else np.ones_like(tokens))
    depth = gemm.in_features / (shards.tp if gemm.shard.endswith("row") else np.ones_like(tokens))
    if not gemm.shard.startswith("expert"):
        return tokens * gemm.tokens_per_token, cols, depth, np.ones_like(tokens)
    # ep ranks pool their tokens: a rank receives as many token copies as it sends, spread over its own experts
    local_experts = np.maximum(1.0, num_experts / shards.ep.astype(np.float64))
    return tokens * gemm.tokens_per_token / local_experts, cols, depth, local_experts


def _attention_time_s(attention: Attention, accelerator: Accelerator, shards: Shards, sequence_length: int) -> Floats:
    flop = attention.flop_per_token(sequence_length) * shards.tokens(sequence_length) / shards.tp
    precision: Precision = "bf16" if "bf16" in accelerator.peak_flop_per_s else "fp16"
    rate = accelerator.peak_flop_per_s[precision] * accelerator.attention_efficiency_fraction
    return flop / rate + accelerator.kernel_launch_s


def layer_times(
    layer: LayerProfile,
    num_experts: int,
    accelerator: Accelerator,
    precision: Precision,
    shards: Shards,
    sequence_length: int,
) -> LayerTimes:
    """Times of ``layer`` for every row of ``shards``.

    ``num_experts`` routed experts of the model share the tokens of expert Gemms evenly (balanced routing).
    Backward = the two gradient products of every Gemm with their own shapes, attention at ATTENTION_BACKWARD_RATIO,
    element-wise work at ELEMENTWISE_BACKWARD_RATIO. Attention runs in 16 bit whatever the precision of the Gemms.

    Raises:
        KeyError: the accelerator states no peak for ``precision``.
    """
    tokens = shards.tokens(sequence_length)
    forward, backward = np.zeros_like(tokens), np.zeros_like(tokens)
    for gemm in layer.gemms:
        rows, cols, depth, count = _gemm_shape(gemm, shards, tokens, num_experts)
        forward = forward + gemm_time_s(accelerator, precision, rows, cols, depth, count)
        backward = backward + gemm_time_s(accelerator, precision, rows, depth, cols, count)
        backward = backward + gemm_time_s(accelerator, precision, depth, cols, rows, count)
    memory_rate = accelerator.memory_bandwidth_bytes_per_s * accelerator.memory_efficiency_fraction
    elementwise = layer.elementwise_bytes * tokens / shards.tp / memory_rate
    attention = np.zeros_like(tokens)
    if layer.attention is not None:
        attention = _attention_time_s(layer.attention, accelerator, shards, sequence_length)
    return LayerTimes(
        forward_s=forward + attention + elementwise,
        backward_s=backward + ATTENTION_BACKWARD_RATIO * attention + ELEMENTWISE_BACKWARD_RATIO * elementwise,
        selective_s=elementwise,
        attention_s=attention,
    )


def optimizer_time_s(accelerator: Accelerator, parameters: Floats, bytes_per_parameter: float) -> Floats:
    """Optimizer update of ``parameters`` at memory speed, ``bytes_per_parameter`` read and written in all."""
    rate = accelerator.memory_bandwidth_bytes_per_s * accelerator.memory_efficiency_fraction
    return parameters * bytes_per_parameter / rate + accelerator.kernel_launch_s
