"""Linear attention and state-space layers as parts: a short convolution, and a state carried along the sequence.

Training kernels cut the sequence into chunks: matrix products inside a chunk, and a state per head from chunk to chunk.
FLOP are those of the chunked forms with whole chunks (masked halves are computed). The triangular inverse of the delta
rule (C² per head and token) is left out. Held bytes, per token at 2 bytes: convolution input and output, gates, core
output, norm output (dropped by ``selective``). The backward kernels recompute the states of chunks
(flash-linear-attention, mamba-ssm).
"""

from __future__ import annotations

from typing import Final

from scaleacross.workloads.layer_profile import Gemm, Recurrence
from scaleacross.workloads.transformer_parts import BF16, FP32, Held, Part, linear

DELTA_CHUNK: Final = 64
"""Positions per chunk of the gated delta rule (flash-linear-attention and Megatron Core use 64)."""


def _convolution(features: int, kernel: int, *, bias: bool) -> Part:
    """Depthwise causal convolution with SiLU, read and written once; input and output are held."""
    return Part(
        num_parameters=features * (kernel + bias),
        elementwise_bytes=2 * BF16 * features,
        held=(Held("convolution input", BF16 * features), Held("convolution output", BF16 * features)),
    )


def _gated_norm(features: int, weights: int, replicated: int) -> Part:
    """RMSNorm of the core's output, times SiLU(z): two tensors are read and one is written."""
    held = (
        Held("core output", BF16 * features),
        Held("output gate", BF16 * features),
        Held("gated norm output", BF16 * features, recomputed=True),
    )
    return Part(
        num_parameters=weights,
        num_replicated_parameters=replicated,
        elementwise_bytes=3 * BF16 * features,
        held=held,
    )


def _per_head(heads: int, weights: int, scalars: int) -> Part:
    """``weights`` parameters per head, and ``scalars`` fp32 values per head and token that are computed and held."""
    held = (Held("gates", FP32 * scalars * heads),)
    return Part(num_parameters=weights * heads, elementwise_bytes=2 * FP32 * scalars * heads, held=held)


def gated_delta_net(
    hidden_size: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int
) -> tuple[Part, ...]:
    """Gated delta rule (arXiv 2412.06464, §3.3), chunks of C = DELTA_CHUNK.

    Per value head and token: q·kᵀ, k·kᵀ and the inverse times k need 2C·d_k each. The inverse times v and the scores
    times v need 2C·d_v each. State times q, state times k and the state's update need 2·d_k·d_v each.
    """
    q, v = key_heads * key_dim, value_heads * value_dim
    mixed = 2 * q + v
    flop = value_heads * (DELTA_CHUNK * (6.0 * key_dim + 4.0 * value_dim) + 6.0 * key_dim * value_dim)
    state = 2 * FP32 * value_heads * key_dim * value_dim / DELTA_CHUNK
    core = Recurrence(
        heads=(key_heads, value_heads),
        flop_per_token=flop,
        moved_bytes_per_token=BF16 * (mixed + v) + state,
        exchanged_features=mixed + 2 * value_heads + v,
    )
    return (
        linear(Gemm("mixer_in", hidden_size, mixed + v, "column")),
        linear(Gemm("mixer_gates", hidden_size, 2 * value_heads, "column")),
        _convolution(mixed, kernel, bias=False),
        _per_head(value_heads, weights=2, scalars=2),
        Part(recurrence=core),
        _gated_norm(v, value_dim, value_dim),
        linear(Gemm("mixer_out", v, hidden_size, "row")),
    )


def mamba2(
    hidden_size: int,
    heads: int,
    head_dim: int,
    state_size: int,
    groups: int,
    kernel: int,
    chunk: int,
    *,
    conv_bias: bool,
    bias: bool,
) -> tuple[Part, ...]:
    """State-space duality (arXiv 2405.21060, §6), chunks of Q = ``chunk``.

    Per token C·Bᵀ needs 2Q·N per group. Per head scores times x need 2Q·P, the state's update 2·N·P and its reading
    2·N·P. Parameters: projections, convolution, and per head A, D and the bias of Δ; the gated norm has one weight per
    feature.
    """
    inner, shared = heads * head_dim, 2 * groups * state_size
    flop = 2.0 * chunk * state_size * groups + heads * (2.0 * chunk * head_dim + 4.0 * state_size * head_dim)
    state = 2 * FP32 * heads * head_dim * state_size / chunk
    core = Recurrence(
        heads=(heads, groups),
        flop_per_token=flop,
        moved_bytes_per_token=BF16 * (2 * inner + shared) + state,
        exchanged_features=2 * inner + shared + heads,
    )
    return (
        linear(Gemm("mixer_in", hidden_size, 2 * inner + shared + heads, "column"), bias=bias),
        _convolution(inner + shared, kernel, bias=conv_bias),
        _per_head(heads, weights=3, scalars=1),
        Part(recurrence=core),
        _gated_norm(inner, inner, 0),
        linear(Gemm("mixer_out", inner, hidden_size, "row"), bias=bias),
    )
