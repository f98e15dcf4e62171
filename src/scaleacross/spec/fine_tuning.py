"""Fine-tuning: which parameters are trained when training starts from a checkpoint."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from scaleacross.spec.base import Spec

Frozen = Literal["embedding", "mixer", "feed_forward", "experts", "head"]
"""Parts whose weights may be frozen.

``mixer``: attention and other mixers. ``feed_forward``: dense and shared ones. ``experts``: router and routed experts.
"""
Adapted = Literal["mixer", "feed_forward"]


class Lora(Spec):
    """Low-rank adapters (arXiv 2106.09685): weights ``in × out`` get factors ``in × rank`` and ``rank × out``."""

    rank: PositiveInt = Field(description="features between the two factors")
    targets: tuple[Adapted, ...] = Field(
        default=("mixer", "feed_forward"),
        min_length=1,
        description="products that get adapters; routed experts get none",
    )


class FineTuning(Spec):
    """Training from a checkpoint: all parameters, some of them, or adapters alone."""

    checkpoint: str | None = Field(default=None, min_length=1, description="path of the weights to start from")
    frozen: tuple[Frozen, ...] = Field(default=(), description="parts that are not trained")
    lora: Lora | None = Field(default=None, description="train adapters alone: every other parameter is frozen")

    @model_validator(mode="after")
    def _one_way(self) -> FineTuning:
        if self.lora is not None and self.frozen:
            raise ValueError("with lora everything else is frozen already: leave frozen out")
        if len(set(self.frozen)) == 5:
            raise ValueError("every part is frozen: nothing is left to train")
        return self

    @property
    def partial(self) -> bool:
        """Whether some parameters are not trained."""
        return self.lora is not None or bool(self.frozen)
