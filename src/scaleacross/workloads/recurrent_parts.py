"""Linear attention and state-space layers as parts: a short convolution, and a state carried along the sequence.

Training kernels cut the sequence into chunks: matrix products inside a chunk, and a state per head from chunk to chunk.
FLOP are those of the chunked forms with whole chunks (masked halves are computed). The triangular inverse of the delta
rule (C² per head and token) is left out. Held bytes, per token at 2 bytes: convolution input and output, gates, core
output, norm output (dropped by ``selective``). The backward kernels recompute the states of chunks
(flash-linear-attention, mamba-ssm).
"""

from __future__ import annotations

from scaleacross.workloads.transformer_parts import BF16, FP32, Held, Part


def convolution(features: int, kernel: int, *, bias: bool) -> Part:
    """Depthwise causal convolution with SiLU, read and written once; input and output are held."""
    return Part(
        num_parameters=features * (kernel + bias),
        elementwise_bytes=2 * BF16 * features,
        held=(Held("convolution input", BF16 * features), Held("convolution output", BF16 * features)),
    )


def gated_norm(features: int, weights: int, replicated: int) -> Part:
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


def per_head(heads: int, weights: int, scalars: int) -> Part:
    """``weights`` parameters per head, and ``scalars`` fp32 values per head and token that are computed and held."""
    held = (Held("gates", FP32 * scalars * heads),)
    return Part(num_parameters=weights * heads, elementwise_bytes=2 * FP32 * scalars * heads, held=held)
