"""Parameters of the kernel-time models: efficiency of one accelerator's GEMM and attention kernels.

Every model belongs to one accelerator and one precision. Fractions refer to that accelerator's stated peak, bandwidth
and multiprocessor count. The formulas that read them are in ``cost_models/kernels.py``.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from scaleacross.spec.base import Spec

TileShape = tuple[PositiveInt, PositiveInt]
Fraction = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class GemmModel(Spec):
    """Time of (rows × depth)·(depth × cols) products: tiles over multiprocessors, HBM traffic, fixed costs."""

    compute_efficiency_fraction: Share = Field(description="share of matrix peak inside the main loop of a tile")
    memory_efficiency_fraction: Share = Field(description="share of HBM bandwidth that operands and result reach")
    launch_s: float = Field(ge=0, description="time of an empty product: launch and all kernels that come with it, s")
    tile_overhead_s: float = Field(
        default=0.0, ge=0, description="prologue and epilogue of a tile of 32,768 outputs, s (scaled with the area)"
    )
    tiles: tuple[TileShape, ...] = Field(
        default=((256, 128), (128, 256), (128, 128)),
        min_length=1,
        description="rows × cols of the output tiles that the library chooses from",
    )
    splits: tuple[PositiveInt, ...] = Field(
        default=(1, 2, 4, 8), min_length=1, description="parts that the library may cut depth into (split-K)"
    )
    narrow_tile_slowdown: float = Field(
        default=0.0,
        ge=0,
        description="rise of a tile's time per 128·(1/rows + 1/cols) − 1.5, the operand traffic beyond a 256 × 128 tile",
    )
    wave_credit_fraction: Fraction = Field(
        default=0.0, description="share of the idle part of the last wave that is not paid (0: whole waves)"
    )
    first_wave_credit_fraction: Fraction = Field(
        default=0.0, description="the same where the tiles do not fill even one wave"
    )
    split_passes: float = Field(
        default=1.0,
        ge=0,
        description="HBM passes of 8 bytes per output and part that adding the partial results of split-K costs",
    )
    slowdown_fraction: Fraction = Field(
        default=0.0, description="rise of the compute time of long kernels (clock under the power limit)"
    )
    slowdown_s: PositiveFloat = Field(
        default=1e-3, description="compute time at which half of slowdown_fraction is reached, s"
    )
    overlap_exponent: float | None = Field(
        default=None,
        ge=1,
        description="p of (compute^p + memory^p)^(1/p): 1 adds them; absent: the longer of the two",
    )
    cast_bytes: float = Field(
        default=0.0,
        ge=0,
        description="HBM bytes per element of the left operand to convert it, where that is timed too",
    )
    unaligned_passes: float = Field(
        default=0.0, ge=0, description="extra HBM passes over the right operand where rows are no multiple of 4"
    )


class AttentionModel(Spec):
    """Time of fused causal attention, forward: tiles of 128 queries over multiprocessors, a drain, HBM, launch."""

    compute_efficiency_fraction: Share = Field(description="share of 16-bit matrix peak below the causal diagonal")
    launch_s: float = Field(ge=0, description="time of an empty call, with the kernels that prepare its inputs, s")
    tile_overhead_s: float = Field(
        default=0.0, ge=0, description="per tile of 128 queries of one head: prologue, diagonal block, epilogue, s"
    )
    drain_tiles: float = Field(
        default=0.0, ge=0, description="multiprocessors that idle at the end, in durations of the longest tile"
    )
    unhidden_passes: float = Field(
        default=0.0,
        ge=0,
        description="exposed passes of 2 bytes per element of query, key and value over HBM",
    )
    slowdown_fraction: Fraction = Field(
        default=0.0, description="rise of the compute time of long kernels (clock under the power limit)"
    )
    slowdown_s: PositiveFloat = Field(
        default=1e-3, description="compute time at which half of slowdown_fraction is reached, s"
    )
