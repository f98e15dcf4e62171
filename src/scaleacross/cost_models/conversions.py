"""Cost of recipes for 8- and 4-bit products: HBM bytes of conversions, bytes of kept weights, and kinds of kernels.

A conversion is an element-wise kernel: it reads 16 bit (2 bytes) and writes each layout that a product needs, with its
scales. Recipes of Transformer Engine convert an input and a gradient of an output once, for both of their products.
They convert weights once per step, which is not counted.

delayed     one pass, both layouts                             2 + 2 · 1
tensorwise  a pass that finds the scale, then the same         2 + 2 + 2 · 1
blockwise   one pass, a 4-byte scale per 128                   2 + 2 · (1 + 4/128)
mxfp8       one pass, a 1-byte scale per 32                    2 + 2 · (1 + 1/32)
nvfp4       a pass for both scales of the tensor, one for rows, one that transforms and converts columns, 1-byte scales
            per 16
            2 + 2 · (2 + 1/2 + 1/16)

Sources: NVIDIA/TransformerEngine, transformer_engine/pytorch/csrc/quantizer.cpp (quantize_impl of each quantizer: with
random Hadamard transforms nvte_hadamard_transform_amax, nvte_quantize_v2,
nvte_hadamard_transform_cast_fusion_columnwise), and its recipe classes for the blocks. Newer releases fuse the last two
passes of nvfp4. Block-scaled tensors need both layouts written on every accelerator. Per-tensor scales need the
transposed copy on Hopper, and it is counted on Blackwell too (assumed).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.spec.accelerator import GemmKind, Precision
from scaleacross.spec.conversion import RECIPE_BYTES, GatheredConversion, MovedBytes, Recipe
from scaleacross.spec.job import Job
from scaleacross.workloads.layer_profile import Gemm


def _once(found: float, converted: float) -> MovedBytes:
    return MovedBytes(input_forward_bytes=found + converted, gradient_bytes=found + converted)


def _per_product(along: float, across: float, rescale: float = 0.0) -> MovedBytes:
    """Every product converts its operands anew: along rows forward, gradients both ways, across rows for all others."""
    return MovedBytes(
        input_forward_bytes=along,
        input_backward_bytes=across,
        gradient_bytes=along + across,
        weight_forward_bytes=along,
        weight_backward_bytes=across,
        rescale_bytes=rescale,
    )


# With one scale per row every product of torchao converts its operands anew (pytorch/ao 024fe94, torchao/float8/
# float8_linear.py): along rows 2 read and 1 written; across them the same at 0.65 TB/s for 2.1 along rows, as measured on an
# H100 (pytorch/pytorch issue 149982). Gradients are multiplied as with one scale per tensor and scaled afterwards, 2 read and 2
# written (pytorch/ao 067a632, torchao/float8/float8_ops.py, addmm_float8_unwrapped without use_fast_accum, the default of
# gradients in config.py).
ALONG_BYTES: Final = 3.0
ACROSS_BYTES: Final = ALONG_BYTES * 2.1 / 0.65
RESCALE_BYTES: Final = 4.0

MOVED: Final[Mapping[Recipe, MovedBytes]] = {
    "delayed": _once(0.0, 2.0 + 2 * RECIPE_BYTES["delayed"]),
    "tensorwise": _once(2.0, 2.0 + 2 * RECIPE_BYTES["tensorwise"]),
    "blockwise": _once(0.0, 2.0 + 2 * RECIPE_BYTES["blockwise"]),
    "mxfp8": _once(0.0, 2.0 + 2 * RECIPE_BYTES["mxfp8"]),
    "nvfp4": _once(2.0, 2 * (2.0 + RECIPE_BYTES["nvfp4"])),
    # One scale per tensor (pytorch/ao 0598012, torchao/testing/training/roofline_utils.py, get_tensor_memory_traffic_ovhd_s): a
    # pass finds the scale (2 read), another converts (2 read, 1 written per layout). What tp gathers is converted before and
    # transposed after (2 + 2 + 1, 1 + 1; torchao/float8/float8_tensor_parallel.py).
    "torchao_tensorwise": MovedBytes(
        input_forward_bytes=6.0,
        gradient_bytes=6.0,
        gathered=GatheredConversion(before_bytes=5.0, after_bytes=2.0),
        weight_forward_bytes=5.0,
        weight_backward_bytes=3.0,
    ),
    "torchao_rowwise": _per_product(ALONG_BYTES, ACROSS_BYTES, RESCALE_BYTES),
    # A kernel per layout (MXFP8Linear of torchtitan 0.3.0 is torchao's); 4 bit with a pass for the tensor's scale (assumed).
    "torchao_mxfp8": _per_product(2.0 + RECIPE_BYTES["torchao_mxfp8"], 2.0 + RECIPE_BYTES["torchao_mxfp8"]),
    "torchao_nvfp4": _per_product(4.0 + RECIPE_BYTES["torchao_nvfp4"], 4.0 + RECIPE_BYTES["torchao_nvfp4"]),
}
"""HBM bytes per element in addition to the products, by recipe."""


def moved_bytes(job: Job) -> MovedBytes:
    """HBM bytes of a job's conversions, as stated or by its recipe. Weights kept narrow are not converted."""
    conversion, recipe = job.conversion, job.recipe
    if conversion.moved is not None or recipe is None:
        return conversion.moved or MovedBytes()
    moved = MOVED[recipe]
    if not conversion.narrow_parameters:
        return moved
    return moved.model_copy(update={"weight_forward_bytes": 0.0, "weight_backward_bytes": 0.0})


def gemm_kind(precision: Precision, recipe: Recipe | None) -> GemmKind:
    """Kind of kernel of a product. fp8 in blocks of 128 has its own; hardware applies scales of 32 and 16."""
    return "fp8_block" if precision == "fp8" and recipe == "blockwise" else precision


def kept_weight_bytes(job: Job) -> float:
    """Bytes per weight of 8- and 4-bit products beyond ``optimizer.parameter_bytes``, where parameters are not sharded.

    Transformer Engine keeps both layouts from the first micro-batch of a step to the last. They are kept in addition to
    the 16-bit weight or, with ``narrow_parameters``, in its place. torchao keeps none.
    """
    recipe = job.recipe
    if recipe is None or recipe.startswith("torchao"):
        return 0.0
    instead = job.optimizer.parameter_bytes if job.conversion.narrow_parameters else 0.0
    return 2 * RECIPE_BYTES[recipe] - instead


def conversion_bytes(
    gemm: Gemm, moved: MovedBytes, tp: Ints, rows: Floats, cols: Floats, depth: Floats
) -> tuple[Floats, Floats, Floats]:
    """HBM bytes of conversions for one narrow product (rows × depth)·(depth × cols).

    The three values are those of the forward pass, the gradient of its input, and the gradient of its weight. tp
    gathers the input of a product divided by columns and the gradient of one divided by rows. Each of several siblings
    converts their input after it is gathered; work before the gather is shared. The kernel that adds up the gradients
    of siblings scales them too.
    """
    entered, left, weights = rows * depth, rows * cols, depth * cols
    into = out = np.ones_like(tp)
    if gemm.shard == "column":
        into = tp
    elif gemm.shard == "row":
        out = tp
    forward = _gathered_bytes(moved, moved.input_forward_bytes, into, gemm.siblings) * entered
    gradient = _gathered_bytes(moved, moved.gradient_bytes, out, 1) * left
    if gemm.siblings == 1:
        gradient = gradient + moved.rescale_bytes * rows * depth
    return (
        forward + moved.weight_forward_bytes * weights,
        gradient + moved.weight_backward_bytes * weights,
        moved.input_backward_bytes * entered + moved.rescale_bytes * weights,
    )


def _gathered_bytes(moved: MovedBytes, alone: float, ranks: Ints, sharers: int) -> Floats:
    """HBM bytes per element to convert a tensor that ``ranks`` ranks gather once for ``sharers`` products.

    ``alone``: the same where one rank holds the tensor.
    """
    parts = moved.gathered
    if parts is None:
        return np.full(ranks.shape, alone)
    return np.where(ranks > 1, parts.before_bytes / (ranks * sharers) + parts.after_bytes, alone)
