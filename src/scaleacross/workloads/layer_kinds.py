"""The halves of a decoder layer: mixers, which combine tokens, and feed-forwards, which work on each token alone.

Each lowers to ``Part``s. ``LayerKind`` joins one of each, or one alone, to the residual stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from scaleacross.spec.base import Spec
from scaleacross.workloads import layer_profile as profile
from scaleacross.workloads import recurrent_parts
from scaleacross.workloads import transformer_parts as parts
from scaleacross.workloads.identity import Activation, Rope, Router
from scaleacross.workloads.layer_profile import Gemm, LayerProfile, Recurrence
from scaleacross.workloads.modules import NORM_OUTPUT, cheap, recomputed_by, whole
from scaleacross.workloads.transformer_parts import BF16, FP32, Held, Part

Parts = tuple[Part, ...]
DELTA_CHUNK: Final = 64
"""Positions per chunk of the gated delta rule (flash-linear-attention and Megatron Core use 64)."""


class Attention(Spec):
    """Multi-head or grouped-query attention: over the whole sequence, a sliding window, or chunks."""

    kind: Literal["attention"] = "attention"
    num_heads: PositiveInt = Field(description="query heads")
    num_kv_heads: PositiveInt = Field(description="key and value heads")
    head_dim: PositiveInt = Field(description="features of one head")
    window: PositiveInt | None = Field(
        default=None, description="positions that a query sees, itself included; null: all"
    )
    chunk: PositiveInt | None = Field(
        default=None, description="attention stays in chunks of so many positions (Llama 4)"
    )
    qk_norm: parts.QkNorm = Field(
        default="none", description="RMSNorm of q and k: per head, over all heads, or unweighted"
    )
    qkv_bias: bool = Field(default=False, description="biases of the q, k and v projections")
    output_bias: bool = Field(default=False, description="bias of the output projection")
    output_gate: bool = Field(default=False, description="a sigmoid gate as wide as q scales the output (Qwen3-Next)")
    sinks: bool = Field(default=False, description="a learned logit per head takes part in the softmax (gpt-oss)")
    rope: Rope | Literal["none"] | None = Field(
        default=None, description="rotary embedding; none: no position; null: not stated"
    )
    softmax_scale: PositiveFloat | None = Field(default=None, description="null: 1/√head_dim")
    score_cap: PositiveFloat | None = Field(
        default=None, description="scores pass through cap · tanh(x / cap) (Gemma 2)"
    )

    @model_validator(mode="after")
    def _heads_form_groups(self) -> Attention:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}")
        if self.window is not None and self.chunk is not None:
            raise ValueError("state window or chunk, not both")
        return self

    def lower(self, hidden_size: int) -> Parts:
        """Parts of the sub-layer, with a fused q-k-v projection."""
        heads, head_dim = self.num_heads, self.head_dim
        q, kv = heads * head_dim, self.num_kv_heads * head_dim
        projected = q + 2 * kv + (q if self.output_gate else 0)
        core = parts.core(
            profile.Attention(
                heads, self.num_kv_heads, head_dim, head_dim, window=self.window, chunk=self.chunk, sinks=self.sinks
            )
        )
        if self.sinks:
            core = replace(core, num_parameters=heads, autograd_bytes=parts.sink_bytes(heads, head_dim))
        out = [
            parts.linear(Gemm("qkv", hidden_size, projected, "column"), bias=self.qkv_bias),
            core,
            parts.linear(Gemm("attention_output", q, hidden_size, "row"), bias=self.output_bias),
        ]
        if self.qk_norm != "none":
            out.append(parts.norm_of_qk(q, kv, head_dim, self.qk_norm))
        if self.output_gate:
            held = (Held("output gate", BF16 * q), Held("gated output", BF16 * q, recomputed=True))
            out.append(Part(elementwise_bytes=3 * BF16 * q, held=held))
        return tuple(out)


class Latent(Spec):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1)."""

    kind: Literal["latent"] = "latent"
    num_heads: PositiveInt = Field(description="query heads")
    q_lora_rank: PositiveInt | None = Field(description="width of the query latent; null: q is projected directly")
    kv_lora_rank: PositiveInt = Field(description="width of the key-value latent")
    qk_nope_head_dim: PositiveInt = Field(description="features per head of q and k without rotary embedding")
    qk_rope_head_dim: PositiveInt = Field(description="rotary features per head of q; shared by all heads of k")
    v_head_dim: PositiveInt = Field(description="features per head of v")
    rope: Rope | None = Field(default=None, description="rotary embedding; null: not stated")

    def lower(self, hidden_size: int) -> Parts:
        """Parts of the sub-layer in its training form: k and v are expanded to all heads.

        The down-projections and the latent norms are replicated over tp, the up-projections are divided by heads. The
        rotary key of ``qk_rope_head_dim`` features is shared by all heads. Without ``q_lora_rank`` q is projected
        directly.
        """
        heads, rank, kv_rank = self.num_heads, self.q_lora_rank, self.kv_lora_rank
        qk, qk_nope, v = self.qk_nope_head_dim + self.qk_rope_head_dim, self.qk_nope_head_dim, self.v_head_dim
        query: Parts = (_expanded("q", hidden_size, heads * qk),)
        if rank is not None:
            down = parts.linear(Gemm("q_down", hidden_size, rank, "none"))
            query = (down, parts.norm(rank, "rmsnorm", on_stream=False), _expanded("q_up", rank, heads * qk))
        return (
            *query,
            parts.linear(Gemm("kv_down", hidden_size, kv_rank + self.qk_rope_head_dim, "none")),
            parts.norm(kv_rank, "rmsnorm", on_stream=False),
            _expanded("kv_up", kv_rank, heads * (qk_nope + v)),
            recomputed_by(parts.core(profile.Attention(heads, heads, qk, v)), "mla_up_proj", "q", "k, v"),
            parts.linear(Gemm("attention_output", heads * v, hidden_size, "row")),
        )


class GatedDeltaNet(Spec):
    """Linear attention with a gated delta rule (arXiv 2412.06464), as in Qwen3-Next."""

    kind: Literal["gated_delta_net"] = "gated_delta_net"
    num_key_heads: PositiveInt = Field(description="heads of q and k")
    num_value_heads: PositiveInt = Field(description="heads of v, each with a state of its own")
    key_head_dim: PositiveInt = Field(description="features per head of q and k")
    value_head_dim: PositiveInt = Field(description="features per head of v")
    conv_kernel: PositiveInt = Field(description="positions of the depthwise convolution on q, k and v")

    def lower(self, hidden_size: int) -> Parts:
        """Parts of the sub-layer: the gated delta rule (arXiv 2412.06464, §3.3), chunks of C = DELTA_CHUNK.

        Per value head and token: q·kᵀ, k·kᵀ and the inverse times k need 2C·d_k each. The inverse times v and the
        scores times v need 2C·d_v each. State times q, state times k and the state's update need 2·d_k·d_v each.
        """
        heads, key_dim, value_dim = self.num_value_heads, self.key_head_dim, self.value_head_dim
        q, v = self.num_key_heads * key_dim, heads * value_dim
        mixed = 2 * q + v
        flop = heads * (DELTA_CHUNK * (6.0 * key_dim + 4.0 * value_dim) + 6.0 * key_dim * value_dim)
        state = 2 * FP32 * heads * key_dim * value_dim / DELTA_CHUNK
        core = Recurrence(
            heads=(self.num_key_heads, heads),
            flop_per_token=flop,
            moved_bytes_per_token=BF16 * (mixed + v) + state,
            exchanged_features=mixed + 2 * heads + v,
        )
        return (
            parts.linear(Gemm("mixer_in", hidden_size, mixed + v, "column")),
            parts.linear(Gemm("mixer_gates", hidden_size, 2 * heads, "column")),
            recurrent_parts.convolution(mixed, self.conv_kernel, bias=False),
            recurrent_parts.per_head(heads, weights=2, scalars=2),
            Part(recurrence=core),
            recurrent_parts.gated_norm(v, value_dim, value_dim),
            parts.linear(Gemm("mixer_out", v, hidden_size, "row")),
        )


class Mamba2(Spec):
    """State-space layer (Mamba-2, arXiv 2405.21060)."""

    kind: Literal["mamba2"] = "mamba2"
    num_heads: PositiveInt = Field(description="heads, each with a state of its own")
    head_dim: PositiveInt = Field(description="features per head")
    state_size: PositiveInt = Field(description="features of the state per head feature")
    num_groups: PositiveInt = Field(description="groups of heads that share B and C")
    conv_kernel: PositiveInt = Field(description="positions of the depthwise convolution on x, B and C")
    conv_bias: bool = Field(default=True, description="bias of that convolution")
    bias: bool = Field(default=False, description="biases of the projections")
    chunk: PositiveInt = Field(default=128, description="positions that the scan handles as a matrix product")

    def lower(self, hidden_size: int) -> Parts:
        """Parts of the sub-layer: state-space duality (arXiv 2405.21060, §6), chunks of Q = ``chunk``.

        Per token C·Bᵀ needs 2Q·N per group. Per head scores times x need 2Q·P, the state's update 2·N·P and its reading
        2·N·P. Parameters: projections, convolution, and per head A, D and the bias of Δ; the gated norm has one weight
        per feature.
        """
        heads, head_dim, size = self.num_heads, self.head_dim, self.state_size
        groups, chunk = self.num_groups, self.chunk
        inner, shared = heads * head_dim, 2 * groups * size
        core = Recurrence(
            heads=(heads, groups),
            flop_per_token=2.0 * chunk * size * groups + heads * (2.0 * chunk * head_dim + 4.0 * size * head_dim),
            moved_bytes_per_token=BF16 * (2 * inner + shared) + 2 * FP32 * heads * head_dim * size / chunk,
            exchanged_features=2 * inner + shared + heads,
        )
        return (
            parts.linear(Gemm("mixer_in", hidden_size, 2 * inner + shared + heads, "column"), bias=self.bias),
            recurrent_parts.convolution(inner + shared, self.conv_kernel, bias=self.conv_bias),
            recurrent_parts.per_head(heads, weights=3, scalars=1),
            Part(recurrence=core),
            recurrent_parts.gated_norm(inner, inner, 0),
            parts.linear(Gemm("mixer_out", inner, hidden_size, "row"), bias=self.bias),
        )


class Mlp(Spec):
    """A dense feed-forward layer."""

    kind: Literal["mlp"] = "mlp"
    width: PositiveInt = Field(description="features between the projections, f")
    gated: bool = Field(default=True, description="gate, up and down projection instead of up and down")
    activation: Activation = "silu"
    bias: bool = Field(default=False, description="biases of the projections")

    def lower(self, hidden_size: int) -> Parts:
        """Parts of the sub-layer."""
        return whole(parts.mlp(hidden_size, self.width, gated=self.gated, bias=self.bias), "mlp")


class Experts(Spec):
    """Routed experts, with or without shared experts that every token visits."""

    kind: Literal["experts"] = "experts"
    num_experts: PositiveInt = Field(description="routed experts")
    top_k: PositiveInt = Field(description="routed experts per token")
    width: PositiveInt = Field(description="features between the projections of one expert")
    gated: bool = Field(default=True, description="gate, up and down projection instead of up and down")
    activation: Activation = "silu"
    bias: bool = Field(default=False, description="biases in every expert (gpt-oss)")
    router_bias: Literal["none", "learned", "balancing"] = Field(
        default="none", description="learned: a bias of the scores; balancing: moved to balance load, not by gradients"
    )
    shared_width: NonNegativeInt = Field(default=0, description="width of all shared experts together")
    shared_gate: bool = Field(default=False, description="a sigmoid gate scales the shared experts (Qwen3-Next)")
    weights_on_input: bool = Field(default=False, description="routing weights scale the experts' input (Llama 4)")
    router: Router | None = Field(default=None, description="how experts are chosen; null: not stated")

    @model_validator(mode="after")
    def _enough_experts(self) -> Experts:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} exceeds num_experts {self.num_experts}")
        if self.router is not None and self.num_experts % self.router.num_groups:
            raise ValueError(f"num_experts {self.num_experts} do not divide into {self.router.num_groups} groups")
        groups, chosen = self.groups
        if self.top_k * groups > chosen * self.num_experts:
            raise ValueError(f"top_k {self.top_k} exceeds the experts of {chosen} of {groups} groups")
        if self.shared_gate and not self.shared_width:
            raise ValueError("shared_gate without shared experts: state shared_width")
        return self

    @property
    def groups(self) -> tuple[int, int]:
        """(number of groups of experts, number of groups that a token may choose from)."""
        return (self.router.num_groups, self.router.group_top_k) if self.router else (1, 1)

    def lower(self, hidden_size: int) -> Parts:
        """Parts of the sub-layer."""
        activation = parts.activation(self.width, float(self.top_k), gated=self.gated)
        activation = parts.clamped(activation) if self.activation == "clamped_silu" else activation
        routed = (*self._products(hidden_size), cheap(activation, "moe_act"))
        if not self.shared_width:
            return whole(routed, "moe")
        shared = parts.mlp(hidden_size, self.shared_width, gated=self.gated, name="shared")
        gate = (parts.shared_gate(hidden_size),) if self.shared_gate else ()
        return whole((*routed, *whole((*shared, *gate), "shared_experts")), "moe")

    def _products(self, hidden_size: int) -> Parts:
        """Router and products of the experts, dropless and balanced: each token is computed ``top_k`` times.

        The routing weight scales the activation product before the down-projection, as in Megatron-Core, so expert
        outputs are not held. The token copies sent to the experts are held: fetching them again would be another
        all-to-all. Traffic: router softmax 8·experts, copy out 2d + 2·k·d, add up 2·k·d + 2d.
        """
        number, k = self.num_experts, self.top_k
        router = number * hidden_size + (number if self.router_bias != "none" else 0)
        up = self.width * (2 if self.gated else 1)
        scores = Gemm("router", hidden_size, number, "none", always_16_bit=True, bias=self.router_bias == "learned")
        return (
            Part(
                gemms=(scores,),
                num_parameters=router,
                num_replicated_parameters=router,
                elementwise_bytes=2 * FP32 * number + 2 * BF16 * hidden_size * (1 + k),
                held=(Held("router scores", FP32 * number), Held("token copies", BF16 * hidden_size * k)),
                routed_tokens=k,
            ),
            Part(
                gemms=(
                    Gemm("expert_up", hidden_size, up, "expert_column", float(k)),
                    Gemm("expert_down", self.width, hidden_size, "expert_row", float(k)),
                ),
                num_expert_parameters=number
                * ((up + self.width) * hidden_size + (up + hidden_size if self.bias else 0)),
            ),
        )


Mixer = Annotated[Attention | Latent | GatedDeltaNet | Mamba2, Field(discriminator="kind")]
FeedForward = Annotated[Mlp | Experts, Field(discriminator="kind")]


class LayerKind(Spec):
    """One kind of layer: a mixer, a feed-forward, or both, each with its residual addition."""

    mixer: Mixer | None = None
    feed_forward: FeedForward | None = None
    norms: Literal["before", "after", "both"] = Field(default="before", description="where a sub-layer is normalised")
    parallel: bool = Field(default=False, description="both sub-layers work on the layer's input (GPT-NeoX)")
    shared_norm: bool = Field(default=False, description="parallel sub-layers share one norm (Falcon, Phi, Command R)")

    @model_validator(mode="after")
    def _not_empty(self) -> LayerKind:
        if self.mixer is None and self.feed_forward is None:
            raise ValueError("a layer needs a mixer, a feed_forward, or both")
        if self.shared_norm and (
            not self.parallel or self.norms != "before" or None in (self.mixer, self.feed_forward)
        ):
            raise ValueError("shared_norm needs a mixer and a feed_forward in parallel, normalised before")
        return self

    def lower(
        self, name: str, hidden_size: int, norm: parts.Norm, *, dropout: bool, before: Parts = ()
    ) -> LayerProfile:
        """Profile of the layer, called ``name``; ``before`` are parts that run before its first sub-layer."""
        out: list[Part] = []
        halves = [half for half in (self.mixer, self.feed_forward) if half is not None]
        for half in halves:
            if self.norms == "after":
                out.append(parts.stream_input(hidden_size))
            elif not (out and self.shared_norm):
                out.append(_input_norm(half, hidden_size, norm))
            out.extend(half.lower(hidden_size))
            out.extend([parts.output_norm(hidden_size, norm)] if self.norms != "before" else [])
            out.append(parts.residual(hidden_size, dropout=dropout))
        return parts.block(name, hidden_size, (*before, *out), sub_layers=len(halves))


def _input_norm(half: Mixer | FeedForward, hidden_size: int, kind: parts.Norm) -> Part:
    """The norm before a sub-layer, tagged with the module that reruns it."""
    norm = parts.norm(hidden_size, kind)
    if isinstance(half, Latent | Experts):
        return recomputed_by(norm, "layernorm", NORM_OUTPUT)
    return recomputed_by(norm, "mlp", NORM_OUTPUT) if isinstance(half, Mlp) else norm


def _expanded(name: str, rank: int, features: int) -> Part:
    """An up-projection of latent attention, tagged with the module that reruns it."""
    return recomputed_by(parts.linear(Gemm(name, rank, features, "column")), "mla_up_proj")
