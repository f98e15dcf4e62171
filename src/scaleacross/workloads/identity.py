"""Properties that identify a model but do not change its step time: rotary embedding, router rule, multipliers.

A target that builds the model needs these values. Only the router's groups change a prediction (``equal_copies``). None
means that the workload does not state the value.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from scaleacross.spec.base import Spec

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_silu"]
"""``gelu_tanh``: the tanh approximation; ``relu2``: squared ReLU; ``clamped_silu``: gpt-oss's (up + 1) · gate · σ(1.702 gate)."""


class RopeScaling(Spec):
    """How rotary frequencies are stretched beyond the trained length (keys as in transformers' ``rope_parameters``)."""

    kind: Literal["linear", "dynamic", "llama3", "yarn", "longrope"]
    factor: PositiveFloat | None = None
    original_positions: PositiveInt | None = Field(
        default=None, description="length that the base model was trained at"
    )
    low_freq_factor: PositiveFloat | None = Field(default=None, description="llama3")
    high_freq_factor: PositiveFloat | None = Field(default=None, description="llama3")
    beta_fast: PositiveFloat | None = Field(default=None, description="yarn")
    beta_slow: PositiveFloat | None = Field(default=None, description="yarn")
    mscale: float | None = Field(default=None, description="yarn")
    mscale_all_dim: float | None = Field(default=None, description="yarn")
    rounded: bool = Field(default=True, description="yarn rounds the range of its correction")


class Rope(Spec):
    """Rotary position embedding (arXiv 2104.09864)."""

    base: PositiveFloat = Field(description="base of the frequencies, θ")
    rotated_fraction: PositiveFloat = Field(default=1.0, le=1.0, description="share of a head's features that rotates")
    interleaved: bool = Field(default=False, description="neighbouring features are pairs, not halves of the head")
    scaling: RopeScaling | None = None


class Router(Spec):
    """How a token's experts are chosen and weighted."""

    score_function: Literal["softmax", "sigmoid"] = "softmax"
    normalized: bool = Field(default=True, description="the weights of the chosen experts add up to one before scaling")
    scaling: PositiveFloat = Field(default=1.0, description="factor on the weights of routed experts")
    num_groups: PositiveInt = Field(
        default=1, description="groups that the experts are divided into, blocks of them in order"
    )
    group_top_k: PositiveInt = Field(default=1, description="groups that a token's experts lie in")

    @model_validator(mode="after")
    def _groups_suffice(self) -> Router:
        if self.group_top_k > self.num_groups:
            raise ValueError(f"group_top_k {self.group_top_k} exceeds num_groups {self.num_groups}")
        return self


class Multipliers(Spec):
    """Constant factors and caps of the forward pass (Gemma, Granite)."""

    embedding: float | None = Field(default=None, description="factor on the embedding")
    residual: float | None = Field(default=None, description="factor on the output of every sub-layer")
    logits: float | None = Field(default=None, description="factor on the logits")
    logit_cap: PositiveFloat | None = Field(default=None, description="logits pass through cap · tanh(x / cap)")
