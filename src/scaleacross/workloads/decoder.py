"""Decoder-only model of any mix of layer kinds. The other families are shorthand for this one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from scaleacross.spec.base import Name
from scaleacross.workloads import transformer_parts as parts
from scaleacross.workloads.identity import Multipliers
from scaleacross.workloads.layer_kinds import Experts, LayerKind
from scaleacross.workloads.layer_profile import ActivationBytes, LayerProfile, ModelProfile
from scaleacross.workloads.workload import MAX_LAYERS, Workload


class Decoder(Workload):
    """Token embedding, layers of named kinds in any order, final norm and output projection.

    All parameters of the main model are counted, the output matrix once if tied. Prediction layers (multi-token
    prediction) are stated as published. A job decides whether they are trained.
    """

    family: Literal["decoder"] = "decoder"
    hidden_size: PositiveInt = Field(description="features of the residual stream, d")
    vocabulary_size: PositiveInt = Field(description="rows of the embedding, V")
    tied_embedding: bool = Field(description="the output projection is the embedding transposed")
    output_bias: bool = Field(default=False, description="bias of the output projection over the vocabulary")
    norm: parts.Norm = Field(
        default="rmsnorm", description="rmsnorm has a weight, layernorm a bias too unless named otherwise"
    )
    norm_epsilon: PositiveFloat | None = Field(default=None, description="added to the variance; null: not stated")
    unit_offset_norm: bool = Field(default=False, description="norm weights are stored less one (Gemma, Qwen3-Next)")
    num_learned_positions: NonNegativeInt = Field(default=0, description="rows of a learned position table")
    dropout: bool = Field(
        default=False, description="dropout after embedding, mixer and feed-forward: its masks are held"
    )
    kinds: dict[Name, LayerKind] = Field(description="layer kinds by name")
    layers: tuple[Name, ...] = Field(
        min_length=1, max_length=MAX_LAYERS, description="the kind of every layer, in model order"
    )
    multipliers: Multipliers = Field(default_factory=Multipliers, description="constant factors of the forward pass")
    initializer_range: PositiveFloat | None = Field(default=None, description="standard deviation of initial weights")
    num_prediction_layers: NonNegativeInt = Field(
        default=0,
        description="layers that predict further tokens; planned where the job trains them (prediction_layers)",
    )
    published_quantization: str | None = Field(
        default=None, description="how the published weights are quantised; training starts from 16-bit weights"
    )
    unread_keys: tuple[str, ...] = Field(
        default=(), description="keys of the published config.json, with their values, that the reading leaves out"
    )

    @model_validator(mode="after")
    def _kinds_fit(self) -> Decoder:
        unknown = sorted(set(self.layers) - set(self.kinds))
        if unknown:
            raise ValueError(
                f"layers name kinds that are not stated: {', '.join(unknown)}; kinds: {', '.join(self.kinds)}"
            )
        unused = sorted(set(self.kinds) - set(self.layers))
        if unused:
            raise ValueError(f"kinds that no layer is of: {', '.join(unused)}")
        routed = {(experts.num_experts, experts.top_k, *experts.groups) for experts in self.experts()}
        if len(routed) > 1:
            raise ValueError("layers differ in num_experts, top_k or groups: one number of each is planned for")
        return self

    def experts(self) -> Iterator[Experts]:
        """Feed-forwards with routed experts, one per kind that has them."""
        for kind in self.kinds.values():
            if isinstance(kind.feed_forward, Experts):
                yield kind.feed_forward

    def runs(self) -> list[tuple[str, int]]:
        """(kind, layers in a row), in model order."""
        return [(name, len(list(run))) for name, run in groupby(self.layers)]

    def decoder(self) -> Decoder:
        """Return itself."""
        return self

    def remarks(self) -> tuple[tuple[str, str], ...]:
        """(topic, sentence) on quantised published weights, prediction layers and unread keys of its file."""
        out = []
        if self.published_quantization:
            said = f"{self.published_quantization}; training starts from 16-bit weights"
            out.append(("published weights", said))
        if self.num_prediction_layers:
            said = f"{self.num_prediction_layers} in the published model; trained where a job says prediction_layers: 1"
            out.append(("prediction layers", said))
        if self.unread_keys:
            out.append(("keys not read", f"{', '.join(self.unread_keys)}: the plan knows nothing of them"))
        return tuple(out)

    def profile(self, prediction_layers: int = 0) -> ModelProfile:
        """Profile of the model: an embedding, runs of equal layers and a head.

        Args:
            prediction_layers: number of layers appended to predict further tokens, of the last layer's kind, as
                Megatron-LM builds them. Each adds one more pass of the head.
        """
        layers = {
            name: kind.lower(name, self.hidden_size, self.norm, dropout=self.dropout)
            for name, kind in self.kinds.items()
        }
        blocks = [(layers[name], count) for name, count in self.runs()]
        if prediction_layers:
            blocks.append((self._prediction_layer(), prediction_layers))
        groups, chosen = next((experts.groups for experts in self.experts()), (1, 1))
        return ModelProfile(
            name=self.name,
            embedding=parts.embedding(
                self.vocabulary_size, self.hidden_size, num_ranks=self.num_learned_positions, dropout=self.dropout
            ),
            blocks=tuple(blocks),
            head=parts.head(
                self.vocabulary_size,
                self.hidden_size,
                self.norm,
                tied=self.tied_embedding,
                bias=self.output_bias,
                predictions=prediction_layers,
            ),
            vocabulary_size=self.vocabulary_size,
            num_experts=next((experts.num_experts for experts in self.experts()), 0),
            expert_groups=groups,
            chosen_groups=chosen,
            num_prediction_layers=prediction_layers,
        )

    def _prediction_layer(self) -> LayerProfile:
        """A layer of the last layer's kind after its input projection. Full recomputation keeps both of its inputs."""
        before = parts.prediction_input(self.hidden_size, self.norm)
        layer = self.kinds[self.layers[-1]].lower(
            "prediction_layer", self.hidden_size, self.norm, dropout=self.dropout, before=before
        )
        full = ActivationBytes(2 * layer.activations["full"].sharded)
        # two gathers before the projection and one after it: one and a half pairs, rounded up
        return replace(layer, activations={**layer.activations, "full": full}, tp_gathers=layer.tp_gathers + 2)
