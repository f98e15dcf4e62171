"""Decoder-only mixture-of-experts transformer: Mixtral, Qwen3-MoE, DeepSeek-V3 and their relatives."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from scaleacross.spec.base import Spec
from scaleacross.workloads import transformer_parts as parts
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile, Workload


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
    """

    family: Literal["moe_transformer"] = "moe_transformer"
    num_layers: PositiveInt = Field(description="transformer blocks, dense ones included")
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

    def _attention(self) -> tuple[parts.Part, ...]:
        a = self.attention
        if isinstance(a, GroupedQueryAttention):
            return parts.grouped_query_attention(
                self.hidden_size, self.num_heads, a.num_kv_heads, a.head_dim, qk_norm=a.qk_norm
            )
        return parts.latent_attention(
            self.hidden_size,
            self.num_heads,
            a.q_lora_rank,
            a.kv_lora_rank,
            a.qk_nope_head_dim,
            a.qk_rope_head_dim,
            a.v_head_dim,
        )

    def _block(self, name: str, feed_forward: tuple[parts.Part, ...]) -> LayerProfile:
        d = self.hidden_size
        first = (parts.norm(d, "rmsnorm"), *self._attention(), parts.residual(d))
        second = (parts.norm(d, "rmsnorm"), *feed_forward, parts.residual(d))
        return parts.block(name, d, first + second)

    def _feed_forward(self) -> tuple[parts.Part, ...]:
        routed = parts.routed_experts(
            self.hidden_size, self.expert_intermediate_size, self.num_experts, self.top_k, router_bias=self.router_bias
        )
        if not self.num_shared_experts:
            return routed
        width = self.num_shared_experts * (self.shared_intermediate_size or self.expert_intermediate_size)
        return routed + parts.mlp(self.hidden_size, width, gated=True, name="shared")

    def profile(self) -> ModelProfile:
        """The model as an embedding, the dense blocks (if any), the expert blocks and a head."""
        d = self.hidden_size
        blocks = [(self._block("moe_block", self._feed_forward()), self.num_layers - self.num_dense_layers)]
        if self.dense_intermediate_size is not None:
            dense = self._block("dense_block", parts.mlp(d, self.dense_intermediate_size, gated=True))
            blocks.insert(0, (dense, self.num_dense_layers))
        return ModelProfile(
            name=self.name,
            embedding=parts.embedding(self.vocabulary_size, d),
            blocks=tuple(blocks),
            head=parts.head(self.vocabulary_size, d, "rmsnorm", tied=self.tied_embedding),
            vocabulary_size=self.vocabulary_size,
            num_experts=self.num_experts,
        )
