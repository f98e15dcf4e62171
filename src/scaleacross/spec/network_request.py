"""Limits on how a plan may use the network, and the error allowed in encoded gradients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from scaleacross.spec.base import Spec
from scaleacross.spec.network import LinkLevel
from scaleacross.spec.network_choice import BLOCK_CODEC_NAMES, BlockCodecName, Driver


class CompressionRequest(Spec):
    """Permission to send gradients encoded: fewer bytes, other numerics. It must be stated by the job."""

    max_relative_error: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="error of an element of a reduced gradient over the largest of its block of 256, at most: errors of all "
        "encodings that its partial sums pass through are added up (bf16 0.4 %, int8_block 0.8 %, fp8_block 6.3 %, int4_block "
        "14 % each)"
    )
    levels: tuple[LinkLevel, ...] = Field(
        default=("campus", "region"), min_length=1, description="levels on which messages may travel encoded"
    )
    codecs: tuple[BlockCodecName, ...] = Field(
        default=BLOCK_CODEC_NAMES, min_length=1, description="codecs to choose from"
    )
    min_saving_fraction: float = Field(
        default=0.005,
        ge=0,
        lt=1,
        description="share of the step that a codec must save, or its communicator goes without",
    )


class NetworkRequest(Spec):
    """Limits on how the plan may use the network. Budgets hold per accelerator, for all communicators together."""

    settings: Literal["chosen", "library"] = Field(
        default="chosen",
        description="chosen: the plan decides algorithm, chunks and connections of every communicator; library: nothing is set, "
        "and NCCL's defaults are modelled",
    )
    max_channels: PositiveInt = Field(
        default=64, description="blocks of threads that may drive networks beyond the scale-up domain at once"
    )
    max_queue_pairs: PositiveInt = Field(default=16384, description="queue pairs on one network adapter")
    max_buffer_bytes: PositiveFloat = Field(
        default=8 * 2.0**30, description="bytes in flight or staged on one network adapter (buffers of all connections)"
    )
    max_trunk_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="share of what inter-building links carry during the computation of an overlap window that all "
        "collectives of that window may take together; None: any",
    )
    drivers: tuple[Driver, ...] = Field(
        default=("multiprocessors",),
        min_length=1,
        description="what may move the bytes of gathers and all-to-alls; default: kernels, as NCCL's default CTA policy does "
        "(documentation of NCCL 2.31), since copy_engines need buffers in symmetric windows, which the framework registers, and "
        "host needs the host's link stated; reductions run on multiprocessors in any case",
    )
    compression: CompressionRequest | None = Field(
        default=None,
        description="None: gradients travel as they are; else the plan chooses where and how they are encoded",
    )

    @model_validator(mode="after")
    def _kernels_add_up(self) -> NetworkRequest:
        if "multiprocessors" not in self.drivers:
            raise ValueError("drivers: reductions need multiprocessors, which must be among the drivers")
        if self.settings == "library" and len(self.drivers) > 1:
            raise ValueError("drivers are a choice of the plan: with settings: library nothing is chosen; use chosen")
        return self

    @model_validator(mode="after")
    def _libraries_do_not_compress(self) -> NetworkRequest:
        if self.settings == "library" and self.compression is not None:
            raise ValueError(
                "compression is a choice of the plan: with settings: library nothing is chosen; use chosen"
            )
        return self
