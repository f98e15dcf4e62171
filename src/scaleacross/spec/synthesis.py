"""A synthesized collective: every message with its times, and lower bounds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from scaleacross.spec.base import Spec

SynthesizedOp = Literal["all_reduce", "all_gather", "reduce_scatter"]


class SynthesizedMessage(Spec):
    """One chunk sent from one rank to another."""

    source: int
    destination: int
    block: int = Field(description="chunk; rank r owns the r-th run of num_chunks of them")
    start_s: float = Field(description="when it is sent, from the beginning of its phase, s")
    end_s: float = Field(description="when it has arrived, s")


class SynthesisPhase(Spec):
    """One phase of the collective: a reduce-scatter or an all-gather."""

    op: Literal["reduce_scatter", "all_gather"]
    time_s: float
    bound_s: float = Field(description="no schedule of whole chunks of this size is faster, s")
    status: Literal["optimal", "time_limit"] = Field(description="optimal: time_s is bound_s, up to rounding")
    messages: tuple[SynthesizedMessage, ...]


class SynthesisStudy(Spec):
    """The fastest schedule found, and lower bounds on any schedule."""

    op: SynthesizedOp
    size_bytes: PositiveFloat = Field(description="full tensor")
    network: str = Field(description="graph or topology")
    num_ranks: PositiveInt
    num_chunks: PositiveInt = Field(description="chunks per rank")
    time_s: float
    algorithm_bytes_per_s: float = Field(description="size over time, as nccl-tests' algbw")
    bus_bytes_per_s: float = Field(description="algbw times nccl-tests' factor of the operation")
    bound_s: float = Field(description="no schedule of any chunking is faster on this network, s")
    gap: float = Field(description="(time_s − bound_s) / time_s")
    elapsed_s: float = Field(description="seconds that the search took")
    seed: int
    solver: str = Field(description="solver and version")
    phases: tuple[SynthesisPhase, ...]
