"""Decoder-only mixture-of-experts transformer (Mixtral, Qwen3-MoE, DeepSeek-V3); shorthand for ``Decoder``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from scaleacross.spec.base import Spec
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.identity import Rope, Router
from scaleacross.workloads.layer_kinds import Attention, Experts, Latent, LayerKind, Mlp
from scaleacross.workloads.layer_profile import ModelProfile
from scaleacross.workloads.workload import MAX_LAYERS, Workload


class GroupedQueryAttention(Spec):
    """Multi-head or grouped-query attention."""

    kind: Literal["gqa"] = "gqa"
    num_kv_heads: PositiveInt = Field(description="key and value heads")
    head_dim: PositiveInt = Field(description="features of one head")
    qk_norm: bool = Field(default=False, description="RMSNorm over the head dimension of q and k (Qwen3)")


class LatentAttention(Spec):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1)."""

    kind: Literal["mla"] = "mla"
    q_lora_rank: PositiveInt | None = Field(description="width of the query latent; null: q is projected directly")
    kv_lora_rank: PositiveInt = Field(description="width of the key-value latent")
    qk_nope_head_dim: PositiveInt = Field(description="features per head of q and k without rotary embedding")
    qk_rope_head_dim: PositiveInt = Field(description="rotary features per head of q; shared by all heads of k")
    v_head_dim: PositiveInt = Field(description="features per head of v")


class MoeTransformer(Workload):
    """Pre-norm blocks (RMSNorm, no biases); the first ``num_dense_layers`` have a gated MLP, the rest routed and shared experts.

    All parameters of the main model are counted, the output matrix once if tied. Multi-token-prediction layers are *not* part of
    it: DeepSeek-V3's 671B excludes its one such layer (14B more in the checkpoint, arXiv 2412.19437 §2.2 drops it at inference).
    A job trains them with ``prediction_layers``.
    """

    family: Literal["moe_transformer"] = "moe_transformer"
    num_layers: PositiveInt = Field(le=MAX_LAYERS, description="transformer blocks, dense ones included")
    hidden_size: PositiveInt = Field(description="features of the residual stream, d")
    num_heads: PositiveInt = Field(description="query heads")
    attention: Annotated[GroupedQueryAttention | LatentAttention, Field(discriminator="kind")]
    num_dense_layers: NonNegativeInt = Field(default=0, description="leading blocks with a dense MLP")
    dense_intermediate_size: PositiveInt | None = Field(default=None, description="MLP width of those blocks")
    num_experts: PositiveInt = Field(description="routed experts per block")
    top_k: PositiveInt = Field(description="routed experts per token")
    expert_intermediate_size: PositiveInt = Field(description="MLP width of one routed expert")
    num_shared_experts: NonNegativeInt = Field(default=0, description="experts that every token visits")
    shared_intermediate_size: PositiveInt | None = Field(
        default=None, description="MLP width of one shared expert; null: that of a routed expert"
    )
    router_bias: bool = Field(default=False, description="per-expert bias for load balancing (DeepSeek-V3)")
    vocabulary_size: PositiveInt = Field(description="rows of the embedding, V")
    tied_embedding: bool = Field(description="the output projection is the embedding transposed")
    rope: Rope | None = Field(default=None, description="rotary embedding; null: not stated")
    norm_epsilon: PositiveFloat | None = Field(default=None, description="added to the variance; null: not stated")
    router: Router | None = Field(default=None, description="how experts are chosen; null: not stated")
    num_prediction_layers: NonNegativeInt = Field(
        default=0,
        description="layers that predict further tokens; planned where the job trains them (prediction_layers)",
    )

    @model_validator(mode="after")
    def _counts_agree(self) -> MoeTransformer:
        if isinstance(self.attention, GroupedQueryAttention) and self.num_heads % self.attention.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.attention.num_kv_heads}")
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} exceeds num_experts {self.num_experts}")
        if self.num_dense_layers >= self.num_layers:
            raise ValueError(
                f"num_dense_layers {self.num_dense_layers} leaves no expert block of num_layers {self.num_layers}: "
                "use family dense_transformer"
            )
        if (self.num_dense_layers > 0) != (self.dense_intermediate_size is not None):
            raise ValueError("state dense_intermediate_size exactly when num_dense_layers is above 0")
        return self

    def _mixer(self) -> Attention | Latent:
        stated = self.attention.model_dump(exclude={"kind", "qk_norm"})
        if isinstance(self.attention, LatentAttention):
            return Latent(num_heads=self.num_heads, rope=self.rope, **stated)
        qk_norm: Literal["head", "none"] = "head" if self.attention.qk_norm else "none"
        return Attention(num_heads=self.num_heads, rope=self.rope, qk_norm=qk_norm, **stated)

    def _experts(self) -> Experts:
        return Experts(
            num_experts=self.num_experts,
            top_k=self.top_k,
            width=self.expert_intermediate_size,
            router_bias="balancing" if self.router_bias else "none",
            shared_width=self.num_shared_experts * (self.shared_intermediate_size or self.expert_intermediate_size),
            router=self.router,
        )

    def decoder(self) -> Decoder:
        """The model as layer kinds: dense layers (if any), then layers with experts."""
        kinds = {"moe_block": LayerKind(mixer=self._mixer(), feed_forward=self._experts())}
        if self.dense_intermediate_size is not None:
            mlp = Mlp(width=self.dense_intermediate_size)
            kinds = {"dense_block": LayerKind(mixer=self._mixer(), feed_forward=mlp), **kinds}
        with_experts = self.num_layers - self.num_dense_layers
        return Decoder(
            name=self.name,
            hidden_size=self.hidden_size,
            vocabulary_size=self.vocabulary_size,
            tied_embedding=self.tied_embedding,
            norm_epsilon=self.norm_epsilon,
            kinds=kinds,
            layers=("dense_block",) * self.num_dense_layers + ("moe_block",) * with_experts,
            num_prediction_layers=self.num_prediction_layers,
        )

    def remarks(self) -> tuple[tuple[str, str], ...]:
        """Remarks of ``decoder()``."""
        return self.decoder().remarks()

    def profile(self) -> ModelProfile:
        """Profile of the model: an embedding, the dense blocks (if any), the expert blocks and a head."""
        return self.decoder().profile()
