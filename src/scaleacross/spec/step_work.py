"""Computation of a step, stated so that other code can simulate it: seconds and sizes of every model chunk.

Communication is not part of it.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, model_validator

from scaleacross.spec.base import Spec

Phase = Literal["forward", "backward", "message", "gradients", "parameters"]
"""Point of a step at which a collective is issued.

``forward``, ``backward``: in that pass of a layer, for every micro-batch. ``message``: between two stages.
``gradients``: once a layer's gradients are complete. ``parameters``: before a layer's first forward pass.
"""
PHASES: tuple[Phase, ...] = get_args(Phase)


class ChunkWork(Spec):
    """Work of one model chunk (virtual stage) on one accelerator for one micro-batch, without communication."""

    forward_s: NonNegativeFloat
    input_gradient_s: NonNegativeFloat = Field(
        description="backward pass without weight gradients, recomputation included"
    )
    weight_gradient_s: NonNegativeFloat = Field(description="weight gradients, added to those of earlier micro-batches")
    attention_s: NonNegativeFloat = Field(
        description="attention, part of forward_s: what an exchange of keys can overlap with"
    )
    attention_backward_s: NonNegativeFloat = Field(description="its backward pass, part of input_gradient_s")
    shared_s: NonNegativeFloat = Field(
        default=0.0, description="shared experts, part of forward_s, that overlap with all-to-alls of their layers"
    )
    shared_backward_s: NonNegativeFloat = Field(
        default=0.0, description="their backward pass, weight gradients included"
    )
    num_layers: NonNegativeInt = Field(description="transformer layers, without embedding and head")
    num_attention_layers: NonNegativeInt = Field(description="of them with attention")
    num_moe_layers: NonNegativeInt = Field(description="of them with routed experts")
    tp_forward: NonNegativeInt = Field(description="gathers (and as many scatters) over tp in the forward pass")
    tp_backward: NonNegativeFloat = Field(
        description="the same in the backward pass, recomputation included; smaller tensors count in part"
    )
    dense_parameters: NonNegativeFloat = Field(
        description="held before sharding over data parallel, routed experts left out"
    )
    expert_parameters: NonNegativeFloat = Field(description="of routed experts, likewise")


class PipelineWork(Spec):
    """Work of all pipeline ranks on one accelerator type; equal chunks are stated once."""

    kinds: tuple[ChunkWork, ...] = Field(min_length=1, description="the distinct chunks")
    kind_of: tuple[tuple[NonNegativeInt, ...], ...] = Field(description="[pipeline rank][chunk] -> index into kinds")
    optimizer_s: tuple[NonNegativeFloat, ...] = Field(
        description="per pipeline rank: the update at the end of the step"
    )

    @model_validator(mode="after")
    def _indices_exist(self) -> PipelineWork:
        if len(self.kind_of) != len(self.optimizer_s):
            raise ValueError(f"{len(self.kind_of)} ranks of chunks, but {len(self.optimizer_s)} of optimizer_s")
        last = max((kind for chunks in self.kind_of for kind in chunks), default=0)
        if last >= len(self.kinds):
            raise ValueError(f"kind_of names kind {last}, there are {len(self.kinds)}")
        return self

    def chunk(self, rank: int, chunk: int) -> ChunkWork:
        """Work of ``chunk`` of pipeline ``rank``."""
        return self.kinds[self.kind_of[rank][chunk]]
