"""Time of the computation of one layer and one micro-batch on one accelerator.

Regime: training kernels of at least a few microseconds. Products and attention take the time of the kernel alone
(``kernels.py``), at the rate that remains in a training step (``training_gemm_ratio``, ``training_attention_ratio``).
Every figure comes from the accelerator's catalogue entry, with source and status; all constants here are ratios.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import ALL_TO_ALL, ALL_TO_ALL_RING, ANY_EXCHANGE, RING, Bools, Floats, Ints
from scaleacross.cost_models.columns import columns_of
from scaleacross.cost_models.conversions import conversion_bytes, gemm_kind
from scaleacross.cost_models.kernels import (
    ELEMENT_BYTES,
    RESULT_BYTES,
    attention_kernel_s,
    attention_model_of,
    gemm_kernel_s,
    gemm_model_of,
    machine_of,
    precision_of,
)
from scaleacross.cost_models.runtime import HOST_BACKWARD_RATIO, Runtime, host_s, permutation_bytes, sorting_bytes
from scaleacross.cost_models.stragglers import busiest_load
from scaleacross.spec.accelerator import Accelerator, GemmKind, Precision
from scaleacross.spec.framework import Optimizer
from scaleacross.spec.parallelism import CONTEXT_EXCHANGES, ContextExchange
from scaleacross.spec.recomputation import MODULES, Module
from scaleacross.workloads.layer_profile import Attention, Gemm, LayerProfile, Recurrence

SHARED: Final[Module] = "shared_experts"
ATTENTION_BACKWARD_RATIO: Final = 2.5
"""Backward over forward FLOP of fused attention: 5 matrix products against 2 (FlashAttention, arXiv 2205.14135, §3)."""
RECURRENCE_BACKWARD_RATIO: Final = 2.5
"""Backward over forward of a chunked recurrence: two gradients per product, and the states recomputed (assumed; the
kernels of flash-linear-attention and mamba-ssm store no states)."""
ELEMENTWISE_BACKWARD_RATIO: Final = 2.0
"""HBM bytes of element-wise work, backward over forward: output gradients are read too, input gradients written."""

RING_FORWARD_BYTES: Final = 10.0
"""HBM bytes per output element and call of ring attention: 2 read, 4 read and 4 written of the fp32 sum (Transformer
Engine's context-parallel attention; Ring Attention, arXiv 2310.01889)."""
RING_BACKWARD_BYTES: Final = 6.0
"""HBM bytes per output element, backward: the query gradient of every call is read and added to a 16-bit sum."""
SUM_BYTES: Final = 2.0
"""HBM bytes per element of a 16-bit tensor read or written by a kernel that adds up several products."""
UNFUSED_FORWARD_BYTES: Final = 9.0
"""HBM bytes per attention score besides the products: softmax reads 2 and writes 2, dropout too and a 1-byte mask."""
UNFUSED_BACKWARD_BYTES: Final = 11.0
"""The same, backward: dropout reads gradient and mask and writes (5), softmax reads gradient, output, writes (6)."""


@dataclass(frozen=True)
class Shards:
    """Columns of ``Candidates`` that divide a layer's work, (n,); ``modules`` has the recomputed modules as bits."""

    tp: Ints
    cp: Ints
    ep: Ints
    micro_batch: Ints
    modules: Ints
    context: Ints
    expert_lanes: Ints
    cp_inner: Ints

    def tokens(self, sequence_length: int) -> Floats:
        """Tokens of one micro-batch on one rank, before tp: micro_batch · sequence / cp."""
        return self.micro_batch * (sequence_length / self.cp)

    def runs_again(self, modules: tuple[Module, ...]) -> Bools:
        """Mask of the rows that recompute one of ``modules``, (n,)."""
        out: Bools = (self.modules & sum(1 << MODULES.index(module) for module in modules)) > 0
        return out


@dataclass(frozen=True)
class LayerTimes:
    """Seconds per micro-batch and layer, shape (n,), or (layers, n) of several layers.

    Attributes:
        forward_s: forward pass.
        backward_s: both gradients, without recomputation.
        weight_s: weight gradients, part of ``backward_s``: every Gemm has one, attention and element-wise work none.
        partly_s: recomputation of the row's modules, selective where it names none; adds to backward.
        full_s: recomputation of the whole layer; adds to backward.
        attention_s: fused attention, part of ``forward_s``.
        elementwise_s: work by bytes, part of ``forward_s``; ELEMENTWISE_BACKWARD_RATIO times as much of ``backward_s``.
        shared_s, shared_backward_s: shared experts, parts of ``forward_s`` and ``backward_s``.
    """

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    partly_s: Floats
    full_s: Floats
    attention_s: Floats
    elementwise_s: Floats
    shared_s: Floats
    shared_backward_s: Floats

    def take(self, rows: Ints) -> LayerTimes:
        """The candidates selected by an index array."""
        return LayerTimes(*(column[..., rows] for column in columns_of(self)))

    def slowed(self, ratio: Floats) -> LayerTimes:
        """All times multiplied by a ratio per candidate."""
        return LayerTimes(*(column * ratio for column in columns_of(self)))


def gemm_time_s(
    accelerator: Accelerator,
    kind: GemmKind,
    rows: Floats,
    cols: Floats,
    depth: Floats,
    count: Floats,
    result_bytes: float = RESULT_BYTES,
) -> Floats:
    """Seconds of ``count`` equal products (rows × depth)·(depth × cols) in one launch of a training step; arrays
    broadcast.

    The kernel alone (``kernels.gemm_kernel_s``) at ``training_gemm_ratio`` of its compute rate, plus the launch: the
    kernel's own or that of a training step, whichever is longer. Conversion of narrow operands is not included.

    Raises:
        KeyError: the accelerator states no peak for ``kind``.
    """
    model, alone = gemm_model_of(accelerator, kind), machine_of(accelerator, kind)
    rate = alone.peak_flop_per_s * accelerator.training_gemm_ratio.get(precision_of(kind), 1.0)
    machine = replace(alone, peak_flop_per_s=rate)
    kernel = gemm_kernel_s(model, machine, ELEMENT_BYTES[kind], rows, cols, depth, count, result_bytes)
    return kernel + max(model.launch_s, accelerator.kernel_launch_s)


def _gemm_shape(gemm: Gemm, shards: Shards, tokens: Floats, num_experts: int, spread: float) -> tuple[Floats, ...]:
    """Rows, cols, depth and count of a Gemm on one rank; for experts on the busiest rank."""
    routed, one = gemm.shard.startswith("expert"), np.ones_like(tokens)
    divided = np.where(routed & (shards.expert_lanes > 1), 1, shards.tp)
    cols = gemm.out_features / (divided if gemm.shard.endswith("column") else one)
    depth = gemm.in_features / (divided if gemm.shard.endswith("row") else one)
    if not routed:
        return tokens * gemm.tokens_per_token, cols, depth, one
    # ranks pool their tokens: a rank receives as many token copies as it sends, spread over its own experts
    over = shards.ep * shards.expert_lanes
    held = np.maximum(1.0, num_experts / over.astype(np.float64))
    pooled = tokens * gemm.tokens_per_token * (divided / shards.tp) * busiest_load(spread, num_experts, over)
    return pooled / held, cols, depth, held


def _attention_times_s(
    attention: Attention,
    accelerator: Accelerator,
    shards: Shards,
    sequence_length: int,
    exchanges: Iterable[ContextExchange],
) -> tuple[Floats, Floats, Floats]:
    """Seconds forward and backward of the attention core, and the forward seconds that an exchange can overlap with.

    Where the exchange is still to be chosen, these are the least times and the most overlap: no choice waits less.
    """
    chosen = [_attention_of_s(attention, accelerator, shards, sequence_length)]
    if (open_ := shards.context == ANY_EXCHANGE).any():
        codes = (CONTEXT_EXCHANGES.index(kind) for kind in exchanges if kind != "all_to_all_ring")
        kinds = (np.where(open_, code, shards.context) for code in codes)
        of_kinds = (replace(shards, context=kind) for kind in kinds)
        chosen = [_attention_of_s(attention, accelerator, one, sequence_length) for one in of_kinds]
    forward, backward = np.min(chosen, axis=0)
    return forward, backward, np.max(chosen, axis=0)[0]


def _attention_of_s(
    attention: Attention, accelerator: Accelerator, shards: Shards, sequence_length: int
) -> tuple[Floats, Floats]:
    """Seconds forward and backward of the attention core.

    * ring         cp calls of sequence / cp queries against as many keys. The first call is causal, the others are full
                   over half of the keys, so all have the same work (zigzag order). RING_*_BYTES per query feature
                   combine the results of all calls.
    * gathered     one call against all keys.
    * all-to-all   one call of whole sequences with the heads divided by cp, too.
    * both         around a ring of cp / cp_inner ranks, with the heads divided by cp_inner.
    """
    if not attention.fused:
        return _unfused_attention_times_s(attention, accelerator, shards, sequence_length)
    model, machine = attention_model_of(accelerator), machine_of(accelerator, _sixteen_bit(accelerator))
    inner = np.where(shards.context == ALL_TO_ALL, shards.cp, shards.cp_inner)
    heads_over, outer = shards.tp * inner, shards.cp // inner
    queries, calls = sequence_length / outer, np.where(np.isin(shards.context, (RING, ALL_TO_ALL_RING)), outer, 1)
    kernel = attention_kernel_s(
        model,
        machine,
        sequences=shards.micro_batch.astype(np.float64),
        queries=queries,
        keys=attention.reach(sequence_length) / calls,
        heads=attention.num_heads / heads_over,
        kv_heads=np.maximum(1.0, attention.num_kv_heads / heads_over),
        qk_head_dim=attention.qk_head_dim,
        v_head_dim=attention.v_head_dim,
    )
    slower = accelerator.training_attention_ratio * attention.rate_ratio
    forward = calls * (kernel / slower + max(model.launch_s, accelerator.kernel_launch_s))
    features = attention.num_heads * attention.v_head_dim / heads_over
    combined = np.where(calls > 1, calls, 0) * shards.micro_batch * queries * features / memory_bytes_per_s(accelerator)
    backward = ATTENTION_BACKWARD_RATIO * forward + RING_BACKWARD_BYTES * combined
    return forward + RING_FORWARD_BYTES * combined, backward


def _unfused_attention_times_s(
    attention: Attention, accelerator: Accelerator, shards: Shards, sequence_length: int
) -> tuple[Floats, Floats]:
    """Two batched products forward and four backward over the whole s × s square, and UNFUSED_*_BYTES per score."""
    precision = _sixteen_bit(accelerator)
    heads = shards.micro_batch * (
        attention.num_heads / shards.tp
    )  # an all-to-all divides these by cp, not the queries: the same
    length, whole = sequence_length / shards.cp, np.full_like(heads, sequence_length, dtype=np.float64)
    scores = gemm_time_s(accelerator, precision, length, whole, np.full_like(whole, attention.qk_head_dim), heads)
    values = gemm_time_s(accelerator, precision, length, np.full_like(whole, attention.v_head_dim), whole, heads)
    moved = heads * length * whole / memory_bytes_per_s(accelerator)
    forward = scores + values + UNFUSED_FORWARD_BYTES * moved
    return forward, 2 * (scores + values) + UNFUSED_BACKWARD_BYTES * moved


def _recurrence_s(recurrence: Recurrence, accelerator: Accelerator, shards: Shards, tokens: Floats) -> Floats:
    """Forward seconds of a linear-attention or state-space core, heads divided by tp, whole sequences on every rank.

    The longer of its matrix products, at the rate of fused attention (assumed: both are chains of small products), and
    of its HBM bytes, plus a launch.
    """
    model, machine = attention_model_of(accelerator), machine_of(accelerator, _sixteen_bit(accelerator))
    rate = machine.peak_flop_per_s * model.compute_efficiency_fraction * accelerator.training_attention_ratio
    products = recurrence.flop_per_token / rate
    moved = recurrence.moved_bytes_per_token / memory_bytes_per_s(accelerator)
    seconds: Floats = tokens / shards.tp * max(products, moved) + max(model.launch_s, accelerator.kernel_launch_s)
    return seconds


def _sixteen_bit(accelerator: Accelerator) -> Precision:
    return "bf16" if "bf16" in accelerator.peak_flop_per_s else "fp16"


def memory_bytes_per_s(accelerator: Accelerator) -> float:
    """HBM bytes per second that element-wise kernels reach."""
    return accelerator.memory_bandwidth_bytes_per_s * accelerator.memory_efficiency_fraction


def attainable_flop_per_s(accelerator: Accelerator, precision: Precision) -> float:
    """A rate in FLOP/s that no product and no attention call exceeds: full waves, no other cost, no contention."""
    kinds: set[GemmKind] = {precision, _sixteen_bit(accelerator)} | ({"fp8_block"} if precision == "fp8" else set())
    products = (
        machine_of(accelerator, kind).peak_flop_per_s
        * gemm_model_of(accelerator, kind).compute_efficiency_fraction
        * max(1.0, accelerator.training_gemm_ratio.get(precision_of(kind), 1.0))
        for kind in kinds
    )
    attention = attention_model_of(accelerator).compute_efficiency_fraction
    attention *= machine_of(accelerator, _sixteen_bit(accelerator)).peak_flop_per_s
    return max(*products, attention * max(1.0, accelerator.training_attention_ratio))


def layer_times(
    layer: LayerProfile,
    num_experts: int,
    accelerator: Accelerator,
    precision: Precision,
    shards: Shards,
    sequence_length: int,
    runtime: Runtime,
) -> LayerTimes:
    """Times of ``layer`` for every row of ``shards``.

    The tokens of expert Gemms are spread over ``num_experts`` routed experts, as evenly as ``load_spread`` says.
    Backward = the two gradient products of every Gemm with their own shapes, attention at ATTENTION_BACKWARD_RATIO,
    element-wise work at ELEMENTWISE_BACKWARD_RATIO. Attention and Gemms marked ``always_16_bit`` run in 16 bit. The
    operands of all others are converted to ``precision``. Selective recomputation repeats the element-wise work and the
    share ``selective`` of every Gemm, or unfused attention where the layer has that. Modules repeat the Gemms that
    carry their name, their element-wise work, and attention (``workloads.modules``).

    Raises:
        KeyError: the accelerator states no peak for ``precision``.
    """
    tokens = shards.tokens(sequence_length)
    forward, backward, weight, repeated, selective, launches, shared, shared_backward = (
        np.zeros_like(tokens) for _ in range(8)
    )
    for gemm in layer.gemms:
        shape = _gemm_shape(gemm, shards, tokens, num_experts, runtime.load_spread)
        used = _sixteen_bit(accelerator) if gemm.always_16_bit else gemm_kind(precision, runtime.recipe)
        launches = launches + (shape[-1] - 1) * (2 if ELEMENT_BYTES[used] < 2 else 1)
        ahead, back, own = _product_times_s(gemm, accelerator, used, shards.tp, shape, runtime)
        forward, backward, weight = forward + ahead, backward + back, weight + own
        repeated = repeated + np.where(shards.runs_again(gemm.modules), ahead, 0.0)
        selective = selective + gemm.selective * ahead
        if SHARED in gemm.modules:
            shared, shared_backward = shared + ahead, shared_backward + back
    divided = layer.elementwise_bytes - layer.replicated_elementwise_bytes
    sorted_bytes = np.where(launches > 0, sorting_bytes(layer, runtime), 0.0)
    elementwise = (
        tokens
        * ((divided + sorted_bytes) / shards.tp + layer.replicated_elementwise_bytes)
        / memory_bytes_per_s(accelerator)
    )
    permuted = tokens / shards.tp * permutation_bytes(layer, runtime) / memory_bytes_per_s(accelerator)
    attention, attention_backward, hiding = (np.zeros_like(tokens) for _ in range(3))
    selective = selective + elementwise + permuted * layer.by_operator
    if layer.attention is not None:
        attention, attention_backward, hiding = _attention_times_s(
            layer.attention, accelerator, shards, sequence_length, runtime.exchanges
        )
        selective = selective if layer.attention.fused else attention
    for module, share in layer.modules.items():
        stream = share.stream_elementwise_bytes if layer.replicated_elementwise_bytes else 0.0
        moved = (share.elementwise_bytes - stream) / shards.tp + stream
        passed = tokens * moved / memory_bytes_per_s(accelerator)
        if module == SHARED:
            shared, shared_backward = shared + passed, shared_backward + ELEMENTWISE_BACKWARD_RATIO * passed
        own = passed + permuted * share.experts + (attention if share.attention else 0.0)
        repeated = repeated + np.where(shards.runs_again((module,)), own, 0.0)
    if layer.recurrence is not None:
        core = _recurrence_s(layer.recurrence, accelerator, shards, tokens)
        forward, backward = forward + core, backward + RECURRENCE_BACKWARD_RATIO * core
        selective = selective + core * layer.by_operator
    host = host_s(layer, accelerator, runtime, launches)
    # the host may launch kernels more slowly than the accelerator runs them
    whole = np.maximum(forward + attention + elementwise + permuted, host)
    return LayerTimes(
        forward_s=whole,
        backward_s=np.maximum(
            backward + attention_backward + ELEMENTWISE_BACKWARD_RATIO * elementwise + permuted,
            HOST_BACKWARD_RATIO * host,
        ),
        weight_s=weight,
        partly_s=np.where(shards.modules > 0, repeated, selective),
        full_s=whole * layer.full_recompute_fraction,
        attention_s=hiding,
        elementwise_s=elementwise,
        shared_s=shared,
        shared_backward_s=shared_backward,
    )


def _product_times_s(
    gemm: Gemm, accelerator: Accelerator, used: GemmKind, tp: Ints, shape: tuple[Floats, ...], runtime: Runtime
) -> tuple[Floats, Floats, Floats]:
    """Seconds of one product with its conversions: forward, backward, and the weight gradient, part of backward."""
    rows, cols, depth, count = shape
    forward = gemm_time_s(accelerator, used, rows, cols, depth, count)
    backward, weight = gemm_time_s(accelerator, used, rows, depth, cols, count), np.zeros_like(forward)
    if gemm.trained:
        weight = gemm_time_s(accelerator, used, depth, cols, rows, count, runtime.gradient_result_bytes)
        backward = backward + weight
    rate = memory_bytes_per_s(accelerator) / count
    if gemm.siblings > 1:
        backward = backward + (SUM_BYTES + SUM_BYTES / gemm.siblings) * rows * depth / rate
    if ELEMENT_BYTES[used] < 2:
        ahead, back, again = conversion_bytes(gemm, runtime.moved, tp, rows, cols, depth)
        again = again * gemm.trained
        forward, backward, weight = forward + ahead / rate, backward + (back + again) / rate, weight + again / rate
    return forward, backward, weight


def accumulation_time_s(accelerator: Accelerator, optimizer: Optimizer, parameters: Floats) -> Floats:
    """Seconds of a separate kernel that adds the gradients of one micro-batch to earlier ones; 0 where it is fused.

    Reads the new 16-bit gradient, reads and writes the accumulated one: RESULT_BYTES + 2 · gradient_bytes per
    parameter.
    """
    if optimizer.fused_accumulation:
        return np.zeros_like(parameters)
    return parameters * (RESULT_BYTES + 2.0 * optimizer.gradient_bytes) / memory_bytes_per_s(accelerator)


def optimizer_time_s(accelerator: Accelerator, parameters: Floats, bytes_per_parameter: float) -> Floats:
    """Seconds to update ``parameters`` at memory speed; ``bytes_per_parameter`` are read and written in all."""
    rate = memory_bytes_per_s(accelerator)
    return parameters * bytes_per_parameter / rate + accelerator.kernel_launch_s + accelerator.step_overhead_s
