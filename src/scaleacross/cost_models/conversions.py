"""HBM bytes that converting the operands of 8- and 4-bit products takes, by the recipe of the job (``spec.job.Conversion``)."""

from __future__ import annotations

import numpy as np

from scaleacross.cost_models.settings import Floats, Ints
from scaleacross.spec.framework import Conversion
from scaleacross.workloads.layer_profile import Gemm


def conversion_bytes(
    gemm: Gemm, conversion: Conversion, tp: Ints, rows: Floats, cols: Floats, depth: Floats
) -> tuple[Floats, Floats, Floats]:
    """HBM bytes beside one narrow product (rows × depth)·(depth × cols): forward, for the gradient of its input, for that of
    its weight. tp gathers the input of a product divided by columns and the gradient of one divided by rows. Siblings convert
    their input each for itself, but for what happens before it is gathered; the kernel that adds their gradients up scales
    them too.
    """
    entered, left, weights = rows * depth, rows * cols, depth * cols
    into = out = np.ones_like(tp)
    if gemm.shard == "column":
        into = tp
    elif gemm.shard == "row":
        out = tp
    forward = _gathered_bytes(conversion, conversion.input_forward_bytes, into, gemm.siblings) * entered
    gradient = _gathered_bytes(conversion, conversion.gradient_bytes, out, 1) * left
    if gemm.siblings == 1:
        gradient = gradient + conversion.rescale_bytes * rows * depth
    return (
        forward + conversion.weight_forward_bytes * weights,
        gradient + conversion.weight_backward_bytes * weights,
        conversion.input_backward_bytes * entered + conversion.rescale_bytes * weights,
    )


def _gathered_bytes(conversion: Conversion, alone: float, ranks: Ints, sharers: int) -> Floats:
    """HBM bytes per element to convert a tensor that ``ranks`` ranks gather once for ``sharers`` products, ``alone`` where
    one rank holds it.
    """
    parts = conversion.gathered
    if parts is None:
        return np.full(ranks.shape, alone)
    return np.where(ranks > 1, parts.before_bytes / (ranks * sharers) + parts.after_bytes, alone)
