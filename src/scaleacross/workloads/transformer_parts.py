"""The parts that transformer blocks are made of; a family puts them in order and ``block`` sums them up.

Conventions, per token and at 2-byte precision (BF16 bytes = 2), before any sharding. d hidden size, f MLP width, h heads,
q / k / v features of all heads together, V vocabulary.

*Held for the backward pass* (``Held``), with sequence parallelism (every tensor of a block is divided by tp) and fused attention
(no s × s tensor is ever stored):

=====================  =======  ==================================================
tensor                 bytes    dropped by ``selective`` (recomputed element by element)
=====================  =======  ==================================================
norm input             2d       no
norm output            2d       yes (also the input of the projections that follow)
q, k, v                2(q+k+v) no
attention output       2v·h     no (input of the output projection)
softmax statistics     4h       no (fp32 log-sum-exp per head)
gate, up               4f       no (a plain MLP: 2f, input of GELU)
SiLU(gate), product    4f       yes (a plain MLP: 2f, output of GELU)
dropout mask           d        no (1 byte each, where the model trains with dropout)
=====================  =======  ==================================================

A gated block with GQA (α = KV heads / heads) holds (12 + 4α)d + 8f + 4h bytes, the count of CrossPipe (arXiv 2507.00217) plus
the softmax statistics. A GPT block with dropout and f = 4d holds 34d + 4h: Korthikanti et al. (arXiv 2205.05198, table 2,
34·s·b·h + 5·a·s²·b) without the attention square. ``full`` recomputation keeps the block input, 2d.

*HBM traffic of element-wise kernels*, forward, each kernel reading its inputs and writing its output once: norm 4d, rotary
embedding (or assembly of q and k in MLA) 4(q+k), gated activation 6f (one kernel), GELU 4f, residual addition 6d. The
attention kernel and the GEMMs carry their own traffic and are not in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from scaleacross.spec.recomputation import Module
from scaleacross.workloads.layer_profile import ActivationBytes, Attention, Gemm, LayerProfile, Recurrence
from scaleacross.workloads.modules import module_shares

BF16 = 2.0
FP32 = 4.0

Norm = Literal["rmsnorm", "layernorm", "layernorm_unbiased", "layernorm_unweighted"]
NORM_WEIGHTS: Mapping[Norm, int] = {"rmsnorm": 1, "layernorm": 2, "layernorm_unbiased": 1, "layernorm_unweighted": 0}
"""Parameters of a norm per feature."""
QkNorm = Literal["none", "head", "full", "unweighted"]
"""RMSNorm of q and k: none, one weight per feature of a head, one per feature of all heads, or without weights."""


@dataclass(frozen=True)
class Held:
    """A tensor kept for the backward pass: bytes per token, and whether ``selective`` recomputes it instead."""

    name: str
    num_bytes: float
    recomputed: bool = False


@dataclass(frozen=True)
class Part:
    """One part of a layer; fields that ``LayerProfile`` also has mean the same.

    ``on_stream``: it works on the tensor between layers (norms, dropout, residuals). ``modules``: modules that rerun
    it. ``frees``: module -> names of the held tensors that it frees. ``autograd_bytes``: further bytes held without
    fused operators.
    """

    gemms: tuple[Gemm, ...] = ()
    attention: Attention | None = None
    recurrence: Recurrence | None = None
    num_parameters: int = 0
    num_replicated_parameters: int = 0
    num_expert_parameters: int = 0
    elementwise_bytes: float = 0.0
    rms_features: int = 0
    held: tuple[Held, ...] = ()
    kv_features: int = 0
    routed_tokens: int = 0
    on_stream: bool = False
    modules: tuple[Module, ...] = ()
    frees: Mapping[Module, tuple[str, ...]] = field(default_factory=dict)
    autograd_bytes: float = 0.0


def norm(features: int, kind: Norm, *, on_stream: bool = True) -> Part:
    """A normalisation over ``features``, with weight and bias if its kind has them."""
    weights = features * NORM_WEIGHTS[kind]
    held = (Held("norm input", BF16 * features), Held("norm output", BF16 * features, recomputed=True))
    return Part(
        num_parameters=weights,
        num_replicated_parameters=weights,
        elementwise_bytes=2 * BF16 * features,
        rms_features=features if kind == "rmsnorm" else 0,
        held=held,
        on_stream=on_stream,
    )


def stream_input(features: int) -> Part:
    """The tensor between layers as input of a sub-layer that has no norm before it."""
    return Part(held=(Held("sub-layer input", BF16 * features),), on_stream=True)


def output_norm(features: int, kind: Norm) -> Part:
    """A normalisation of a sub-layer's output. The addition that follows needs no copy of the norm's output."""
    whole = norm(features, kind)
    return replace(whole, held=whole.held[:1])


def residual(features: int, *, dropout: bool = False) -> Part:
    """The residual addition that ends a sub-layer, with the dropout before it."""
    held = (Held("dropout mask", float(features)),) if dropout else ()
    return Part(elementwise_bytes=3 * BF16 * features, held=held, on_stream=True)


def linear(gemm: Gemm, *, bias: bool = False) -> Part:
    """A projection. A row-parallel product adds its bias after the reduction, so every tp rank holds that bias."""
    weights = gemm.in_features * gemm.out_features
    num_bias = gemm.out_features if bias else 0
    replicated = weights + num_bias if gemm.shard == "none" else num_bias if gemm.shard == "row" else 0
    return Part(
        gemms=(replace(gemm, bias=bias),), num_parameters=weights + num_bias, num_replicated_parameters=replicated
    )


def core(attention: Attention) -> Part:
    """Fused attention: its inputs and output, and the element-wise work on q and k."""
    q = attention.num_heads * attention.qk_head_dim
    k = attention.num_kv_heads * attention.qk_head_dim
    v = attention.num_kv_heads * attention.v_head_dim
    held = (
        Held("q", BF16 * q),
        Held("k, v", BF16 * (k + v)),
        Held("attention output", BF16 * attention.num_heads * attention.v_head_dim),
        Held("softmax statistics", FP32 * attention.num_heads),
    )
    return Part(
        attention=attention,
        elementwise_bytes=2 * BF16 * (q + k),
        held=held,
        kv_features=k + v,
        frees={"core_attn": ("softmax statistics",)},
    )


def sink_bytes(num_heads: int, head_dim: int) -> float:
    """Bytes of rescaled outputs, and per head of a sigmoid in fp32 and 16 bit (torchtitan, models/gpt_oss/model.py)."""
    return num_heads * (BF16 * head_dim + FP32 + BF16)


def clamped(activation: Part) -> Part:
    """Return a gated activation whose gate and up are clamped before the product."""
    # clamped gate, clamped up and sigmoid, each a quarter of ``held`` (swiglu of torchtitan, models/gpt_oss/moe.py)
    return replace(activation, autograd_bytes=0.75 * sum(tensor.num_bytes for tensor in activation.held))


def norm_of_qk(q: int, kv: int, head_dim: int, kind: QkNorm) -> Part:
    """RMSNorm of q and k: tp replicates weights per head feature, and divides weights over all heads."""
    weights = {"head": 2 * head_dim, "full": q + kv, "unweighted": 0}[kind]
    return Part(
        num_parameters=weights,
        num_replicated_parameters=weights if kind == "head" else 0,
        elementwise_bytes=2 * BF16 * (q + kv),
        rms_features=q + kv,
        held=(Held("q, k before their norm", BF16 * (q + kv)),),
    )


def activation(width: int, copies: float, *, gated: bool) -> Part:
    """SiLU-gated product or GELU over ``width`` features, for ``copies`` rows per token."""
    rows = BF16 * width * copies
    if gated:
        held = (Held("gate, up", 2 * rows), Held("SiLU(gate), product", 2 * rows, recomputed=True))
        return Part(elementwise_bytes=3 * rows, held=held)
    held = (Held("GELU input", rows), Held("GELU output", rows, recomputed=True))
    return Part(elementwise_bytes=2 * rows, held=held)


def mlp(hidden_size: int, width: int, *, gated: bool, bias: bool = False, name: str = "mlp") -> tuple[Part, ...]:
    """A feed-forward layer: gated (gate and up in one product) or plain."""
    return (
        linear(Gemm(f"{name}_up", hidden_size, width * (2 if gated else 1), "column"), bias=bias),
        activation(width, 1.0, gated=gated),
        linear(Gemm(f"{name}_down", width, hidden_size, "row"), bias=bias),
    )


def shared_gate(hidden_size: int) -> Part:
    """One sigmoid per token that scales the output of the shared experts."""
    gate = linear(Gemm("shared_gate", hidden_size, 1, "none", always_16_bit=True))
    return replace(gate, elementwise_bytes=2 * BF16 * hidden_size, held=(Held("shared output", BF16 * hidden_size),))


def block(name: str, hidden_size: int, parts: Iterable[Part], sub_layers: int = 2) -> LayerProfile:
    """Sum up the parts as one block of ``sub_layers`` sub-layers."""
    parts = tuple(parts)
    copies = sum(part.routed_tokens for part in parts)
    held = [tensor for part in parts for tensor in part.held]
    gathered = BF16 * hidden_size * copies
    return LayerProfile(
        name=name,
        gemms=tuple(replace(gemm, modules=part.modules) for part in parts for gemm in part.gemms),
        attention=next((part.attention for part in parts if part.attention), None),
        recurrence=next((part.recurrence for part in parts if part.recurrence), None),
        num_parameters=sum(part.num_parameters for part in parts),
        num_replicated_parameters=sum(part.num_replicated_parameters for part in parts),
        num_expert_parameters=sum(part.num_expert_parameters for part in parts),
        elementwise_bytes=sum(part.elementwise_bytes for part in parts),
        stream_bytes=sum(part.elementwise_bytes for part in parts if part.on_stream),
        rms_features=sum(part.rms_features for part in parts),
        stream_rms_features=sum(part.rms_features for part in parts if part.on_stream),
        stream_activation_bytes=sum(tensor.num_bytes for part in parts if part.on_stream for tensor in part.held),
        activations={
            "none": ActivationBytes(sum(one.num_bytes for one in held), of_divided=gathered),
            "selective": ActivationBytes(sum(one.num_bytes for one in held if not one.recomputed), of_divided=gathered),
            "full": ActivationBytes(BF16 * hidden_size),
        },
        hidden_size=hidden_size,
        # routed experts gather every token copy instead, shared ones the hidden tensor once more (d98e8a64:
        # megatron/core/transformer/moe, shared_experts.py and MoEAlltoAllTokenDispatcher)
        tp_gathers=sub_layers - (copies > 0) + any("shared_experts" in part.modules for part in parts),
        routed_gathers=copies,
        kv_features=sum(part.kv_features for part in parts),
        routed_tokens=copies,
        modules=module_shares(parts, hidden_size),
        autograd_bytes=sum(part.autograd_bytes for part in parts),
    )


def embedding(vocabulary_size: int, hidden_size: int, *, num_ranks: int = 0, dropout: bool = False) -> LayerProfile:
    """Token table (divided by tp along the vocabulary) and learned positions, if any (replicated).

    Held: the token index (8 bytes) and the dropout mask. Its scatter over tp is counted with the head's gather.
    """
    positions = num_ranks * hidden_size
    held = ActivationBytes(8.0 + (hidden_size if dropout else 0))
    return LayerProfile(
        name="embedding",
        gemms=(),
        attention=None,
        num_parameters=vocabulary_size * hidden_size + positions,
        num_replicated_parameters=positions,
        num_expert_parameters=0,
        elementwise_bytes=(2 if not positions else 5) * BF16 * hidden_size,
        activations={"none": held, "selective": held, "full": held},
        hidden_size=hidden_size,
        tp_gathers=0,
    )


def prediction_input(hidden_size: int, kind: Norm) -> tuple[Part, ...]:
    """Parts before a prediction layer's transformer layer: norms of its two inputs, and their projection.

    Inputs are the tensor between layers and the embedding of a further token
    (megatron/core/transformer/multi_token_prediction.py, d98e8a64). Further traffic: embedding 4d, both 8d.
    """
    each = norm(hidden_size, kind)
    projection = linear(Gemm("prediction_input", 2 * hidden_size, hidden_size, "column"))
    return (each, replace(each, elementwise_bytes=each.elementwise_bytes + 6 * BF16 * hidden_size), projection)


def head(
    vocabulary_size: int, hidden_size: int, kind: Norm, *, tied: bool, bias: bool = False, predictions: int = 0
) -> LayerProfile:
    """Final norm, output projection and loss; each of ``predictions`` repeats all but the projection's weights.

    Held under every policy (its backward pass follows at once): norm input and output 4d, fp32 softmax 4V.
    Traffic: norm 4d, logits BF16 in and fp32 out 6V, softmax and loss 8V.
    A tied output matrix counts its FLOP here and its parameters in the embedding.
    """
    final_norm, passes = norm(hidden_size, kind), 1 + predictions
    weights = (0 if tied else vocabulary_size * hidden_size) + (vocabulary_size if bias else 0)
    held = ActivationBytes(passes * (2 * BF16 * hidden_size + FP32 * vocabulary_size))
    return LayerProfile(
        name="head",
        gemms=(Gemm("logits", hidden_size, vocabulary_size, "column", float(passes), always_16_bit=True),),
        attention=None,
        num_parameters=passes * final_norm.num_parameters + weights,
        num_replicated_parameters=passes * final_norm.num_replicated_parameters,
        num_expert_parameters=0,
        elementwise_bytes=passes * (final_norm.elementwise_bytes + (BF16 + 3 * FP32) * vocabulary_size),
        activations={"none": held, "selective": held, "full": held},
        hidden_size=hidden_size,
        tp_gathers=passes,
    )
