"""GPT-3's shape from three numbers: heads of 128, an MLP four times as wide, learned positions."""

from typing import Literal

from pydantic import Field, PositiveInt

from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.layer_profile import ModelProfile
from scaleacross.workloads.workload import Workload


class ClassicTransformer(Workload):
    """``family`` is the name under which the entry point stands."""

    family: Literal["classic_transformer"] = "classic_transformer"
    num_layers: PositiveInt = Field(description="blocks")
    hidden_size: PositiveInt = Field(multiple_of=128, description="features of the residual stream")
    vocabulary_size: PositiveInt = Field(description="rows of the embedding")

    def decoder(self) -> Decoder:
        """The model as layer kinds, from which targets are written."""
        heads = self.hidden_size // 128
        return DenseTransformer(
            name=self.name,
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=128,
            intermediate_size=4 * self.hidden_size,
            vocabulary_size=self.vocabulary_size,
            gated_mlp=False,
            tied_embedding=True,
            norm="layernorm",
            bias=True,
            num_learned_positions=2048,
        ).decoder()

    def profile(self) -> ModelProfile:
        """The model as layers, which is all that a plan needs."""
        return self.decoder().profile()
