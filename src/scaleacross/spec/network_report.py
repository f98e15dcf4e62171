"""How the network settings of a plan were chosen, collective by collective, with reasons."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scaleacross.spec.base import Spec
from scaleacross.spec.network import LinkLevel
from scaleacross.spec.network_choice import CodecName, CollectiveOp, Communicator, Driver

CompressionVerdict = Literal["on", "saves_too_little", "slower", "error", "stays_near", "not_gradients", "not_fp32"]


class CompressionReason(Spec):
    """Why a collective is encoded or not, in a job that allows codecs.

    Seconds are those of one call, except ``saved_s``.
    """

    verdict: CompressionVerdict = Field(
        description="on, or why not: saves_too_little of the step, slower than as it is, no codec keeps the error, stays_near: "
        "crosses none of the job's levels, not_gradients, not_fp32: gradients are not reduced in 4 bytes"
    )
    codec: CodecName | None = Field(default=None, description="the one that is used, or the best of those that are not")
    levels: tuple[LinkLevel, ...] = ()
    encoded_s: float | None = None
    plain_s: float | None = None
    saved_s: float | None = Field(default=None, description="seconds of the step that the codec saves")
    relative_error: float | None = Field(
        default=None, description="of all encodings of a result together; error: the least of any codec"
    )


class DriverReason(Spec):
    """The driver of a collective, and the time that kernels would take instead."""

    driver: Driver
    held_fraction: float = Field(description="of their speed that products lose while it runs concurrently")
    kernels_s: float = Field(description="one call by kernels on the same connections")
    kernels_held_fraction: float


class NetworkTerm(Spec):
    """Why one kind of collective runs as it does; seconds are those of one call, alone on the network."""

    communicator: Communicator
    op: CollectiveOp
    payload: str
    time_s: float
    library_s: float = Field(description="under the library's defaults")
    decided_by: str = Field(
        description="what the time depends on most: scale-up domain, network adapter, uplinks, latency or window of a level"
    )
    instead: str | None = Field(default=None, description="the best other algorithm; None: there is no other")
    instead_s: float | None = Field(default=None, description="seconds of that one")
    compression: CompressionReason | None = Field(default=None, description="None: the job allows no codec")
    driver: DriverReason | None = Field(
        default=None, description="what moves the bytes, and why; None: the job allows kernels only, or it adds up"
    )


class NetworkReport(Spec):
    """How the network settings of a placed plan were chosen."""

    status: Literal["optimal", "feasible"] = Field(description="optimal: no choice among the options is faster")
    step_s: float
    bound_s: float = Field(description="no choice of the network makes this plan's step shorter")
    library_step_s: float = Field(description="the same plan under the library's defaults")
    library_kept: bool = Field(
        default=False,
        description="what the model chose is estimated slower than the library's defaults, which the plan therefore states",
    )
    num_options: int = Field(description="combinations of options that the choice was made from")
    held_channels: int = Field(description="blocks of threads on one accelerator, all communicators together")
    held_queue_pairs: int
    held_buffer_bytes: int
    terms: tuple[NetworkTerm, ...]
