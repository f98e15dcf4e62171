"""Recipes of 8- and 4-bit matrix products: the bytes that each recipe converts, keeps and gathers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from scaleacross.spec.accelerator import Precision
from scaleacross.spec.base import Spec

Recipe = Literal[
    "delayed",
    "tensorwise",
    "blockwise",
    "mxfp8",
    "nvfp4",
    "torchao_tensorwise",
    "torchao_rowwise",
    "torchao_mxfp8",
    "torchao_nvfp4",
]
RECIPE_PRECISION: Final[Mapping[Recipe, Precision]] = {
    "delayed": "fp8",
    "tensorwise": "fp8",
    "blockwise": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "nvfp4",
    "torchao_tensorwise": "fp8",
    "torchao_rowwise": "fp8",
    "torchao_mxfp8": "fp8",
    "torchao_nvfp4": "nvfp4",
}
DEFAULT_RECIPES: Final[Mapping[Precision, Recipe]] = {"fp8": "delayed", "nvfp4": "nvfp4"}
"""Recipes of Megatron-LM with ``--fp8-format`` or ``--fp4-format`` alone (core/transformer/transformer_config.py)."""
RECIPE_BYTES: Final[Mapping[Recipe, float]] = {
    "delayed": 1.0,
    "tensorwise": 1.0,
    "blockwise": 1.0 + 4 / 128,
    "mxfp8": 1.0 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "torchao_tensorwise": 1.0,
    "torchao_rowwise": 1.0,
    "torchao_mxfp8": 1.0 + 1 / 32,
    "torchao_nvfp4": 0.5 + 1 / 16,
}
"""Bytes per element of an operand, its share of the scales included."""


class GatheredConversion(Spec):
    """HBM bytes per element of a tensor that is converted before tp gathers it; they replace ``MovedBytes``'s."""

    before_bytes: float = Field(ge=0, description="per element of a rank's own part, before it is gathered")
    after_bytes: float = Field(ge=0, description="per element of the whole, afterwards")


class MovedBytes(Spec):
    """HBM bytes moved by a recipe's kernels other than the products.

    A kernel that is not limited by HBM is stated by the bytes that would take its time.
    """

    input_forward_bytes: float = Field(default=0.0, ge=0, description="per element of an input, in the forward pass")
    input_backward_bytes: float = Field(
        default=0.0, ge=0, description="per element of an input, converted again for the weight gradient"
    )
    gradient_bytes: float = Field(default=0.0, ge=0, description="per element of the gradient of an output")
    gathered: GatheredConversion | None = Field(
        default=None,
        description="inputs and gradients that tp gathers are converted before; null: after, as all others",
    )
    weight_forward_bytes: float = Field(
        default=0.0, ge=0, description="per element of a weight and micro-batch, in the forward pass"
    )
    weight_backward_bytes: float = Field(
        default=0.0, ge=0, description="per element of a weight and micro-batch, in the backward pass"
    )
    rescale_bytes: float = Field(
        default=0.0, ge=0, description="per element of a gradient product's result, scaled by a kernel of its own"
    )


class Conversion(Spec):
    """How operands of 8- and 4-bit products are converted. Attention, router and output projection stay in 16 bit."""

    recipe: Recipe | None = Field(
        default=None,
        description="who scales what. Transformer Engine (Megatron): delayed (a scale per tensor, from steps before), tensorwise "
        "(a scale per tensor, found first), blockwise (per 128, of weights per 128 x 128), mxfp8 (per 32), nvfp4 (per 16 and "
        "tensor, Hadamard transforms for weight gradients); torchao (torchtitan): torchao_tensorwise, torchao_rowwise, "
        "torchao_mxfp8, torchao_nvfp4. null: delayed for fp8, nvfp4 for nvfp4",
    )
    narrow_parameters: bool = Field(
        default=False,
        description="weights of such products are kept in 8 or 4 bit without a 16-bit copy, and gathered so but for mxfp8, which "
        "gathers 16 bit (Megatron: --fp8-param-gather, --fp4-param-gather; torchao: enable_fsdp_float8_all_gather)",
    )
    moved: MovedBytes | None = Field(
        default=None, description="what conversions of a recipe of your own move; null: those of the recipe"
    )
