"""Decoder-only dense transformer (Llama, GPT-3 and relatives); shorthand for ``Decoder``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from scaleacross.workloads import transformer_parts as parts
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.identity import Rope
from scaleacross.workloads.layer_kinds import Attention, LayerKind, Mlp
from scaleacross.workloads.layer_profile import ModelProfile
from scaleacross.workloads.workload import MAX_LAYERS, Workload


class DenseTransformer(Workload):
    """Pre-norm blocks of (grouped-query) attention and a gated or plain MLP.

    All parameters are counted: both norms per block, the final norm, biases where ``bias`` is set, learned positions, and the
    output matrix once if it is tied to the embedding. Rotary embeddings have none.
    """

    family: Literal["dense_transformer"] = "dense_transformer"
    num_layers: PositiveInt = Field(le=MAX_LAYERS, description="transformer blocks")
    hidden_size: PositiveInt = Field(description="features of the residual stream, d")
    num_heads: PositiveInt = Field(description="query heads")
    num_kv_heads: PositiveInt = Field(description="key and value heads (equal to num_heads: multi-head attention)")
    head_dim: PositiveInt = Field(description="features of one head")
    intermediate_size: PositiveInt = Field(description="MLP width, f")
    vocabulary_size: PositiveInt = Field(description="rows of the embedding, V")
    gated_mlp: bool = Field(description="gate, up and down projection (SwiGLU) instead of up and down")
    tied_embedding: bool = Field(description="the output projection is the embedding transposed")
    norm: parts.Norm = Field(
        default="rmsnorm", description="rmsnorm has a weight, layernorm a bias too unless named otherwise"
    )
    bias: bool = Field(default=False, description="projections have biases (GPT-3)")
    qk_norm: bool = Field(default=False, description="RMSNorm over the head dimension of q and k (Qwen3)")
    num_learned_positions: NonNegativeInt = Field(
        default=0, description="rows of a learned position table (GPT-3: 2048)"
    )
    dropout: bool = Field(default=False, description="dropout after embedding, attention and MLP: its masks are held")
    rope: Rope | None = Field(default=None, description="rotary embedding; null: not stated")
    norm_epsilon: PositiveFloat | None = Field(default=None, description="added to the variance; null: not stated")

    @model_validator(mode="after")
    def _heads_form_groups(self) -> DenseTransformer:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}")
        return self

    def decoder(self) -> Decoder:
        """The model as ``num_layers`` layers of one kind."""
        attention = Attention(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            qk_norm="head" if self.qk_norm else "none",
            qkv_bias=self.bias,
            output_bias=self.bias,
            rope="none" if self.num_learned_positions else self.rope,
        )
        mlp = Mlp(
            width=self.intermediate_size,
            gated=self.gated_mlp,
            activation="silu" if self.gated_mlp else "gelu",
            bias=self.bias,
        )
        return Decoder(
            name=self.name,
            hidden_size=self.hidden_size,
            vocabulary_size=self.vocabulary_size,
            tied_embedding=self.tied_embedding,
            norm=self.norm,
            norm_epsilon=self.norm_epsilon,
            num_learned_positions=self.num_learned_positions,
            dropout=self.dropout,
            kinds={"dense_block": LayerKind(mixer=attention, feed_forward=mlp)},
            layers=("dense_block",) * self.num_layers,
        )

    def profile(self) -> ModelProfile:
        """Profile of the model: an embedding, ``num_layers`` equal blocks and a head."""
        return self.decoder().profile()
