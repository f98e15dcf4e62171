"""One accelerator type: peak rates, memory, and the efficiencies that turn peak rates into times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from scaleacross.spec.base import Name, SourcedSpec, Spec
from scaleacross.spec.kernel_model import AttentionModel, GemmModel
from scaleacross.spec.network_choice import HOST_TOUCHES, BlockCodecName

Precision = Literal["fp16", "bf16", "fp8", "nvfp4"]
CollectiveLibrary = Literal["nccl", "rccl", "hccl"]
GemmKind = Literal[Precision, "fp8_block"]
"""A precision, or ``fp8_block``: fp8 with one scale per 128 × 128 block instead of one per tensor.

The latter is another kernel with the same peak.
"""

DEVICE_RESOURCES: Final[Mapping[CollectiveLibrary, str]] = {
    "nccl": "nvidia.com/gpu",
    "rccl": "amd.com/gpu",
    "hccl": "habana.ai/gaudi",
}
"""Library of an accelerator -> its resource in Kubernetes, which its vendor's device plugin offers."""


class HostShare(Spec):
    """One accelerator's share of its host: a part of the memory, and its own link to it."""

    memory_bytes: PositiveFloat = Field(description="host memory that a job may fill, per accelerator, bytes")
    memory_bandwidth_bytes_per_s: PositiveFloat = Field(description="of that memory, per accelerator, bytes/s")
    link_bandwidth_bytes_per_s: PositiveFloat = Field(
        description="between host memory and the accelerator, per direction, bytes/s"
    )

    @property
    def relay_bytes_per_s(self) -> float:
        """Rate of a host-driven collective per accelerator and direction, bytes/s."""
        return min(self.link_bandwidth_bytes_per_s, self.memory_bandwidth_bytes_per_s / HOST_TOUCHES)


class Accelerator(SourcedSpec):
    """One accelerator type. All rates are dense (no structured sparsity) and per device."""

    name: Name
    peak_flop_per_s: dict[Precision, PositiveFloat] = Field(description="dense matrix peak per precision, FLOP/s")
    memory_bytes: PositiveFloat = Field(description="device memory (HBM) capacity, bytes")
    memory_bandwidth_bytes_per_s: PositiveFloat = Field(description="HBM bandwidth, bytes/s")
    reserved_memory_bytes: float = Field(
        ge=0, description="taken by context, communicator buffers and fragmentation, bytes"
    )
    num_multiprocessors: PositiveInt = Field(
        description="streaming multiprocessors (or compute units) that share a GEMM"
    )
    gemm_tile_rows: PositiveInt = Field(description="rows of the output tile that one multiprocessor computes")
    gemm_tile_cols: PositiveInt = Field(description="columns of that tile")
    gemm_efficiency_fraction: float = Field(
        gt=0,
        le=1,
        description="share of peak that a large, well-shaped GEMM reaches (where no gemm_models entry says more)",
    )
    gemm_models: dict[GemmKind, GemmModel] = Field(
        default_factory=dict,
        description="fitted kernel time per kind of product; a precision without one (fp16: nor bf16's) runs whole "
        "waves of the stated tile at gemm_efficiency_fraction",
    )
    attention_model: AttentionModel | None = Field(
        default=None, description="fitted time of fused attention; absent: attention_efficiency_fraction throughout"
    )
    training_gemm_ratio: dict[Precision, PositiveFloat] = Field(
        default_factory=dict,
        description="rate of products inside a training step over that of the kernel alone, per precision; absent: 1",
    )
    attention_efficiency_fraction: float = Field(
        gt=0, le=1, description="share of peak that fused attention reaches (without attention_model)"
    )
    training_attention_ratio: PositiveFloat = Field(
        default=1.0, description="rate of attention inside a training step over that of the forward kernel alone"
    )
    memory_efficiency_fraction: float = Field(
        gt=0, le=1, description="share of HBM bandwidth that element-wise kernels reach"
    )
    kernel_launch_s: float = Field(ge=0, description="exposed fixed time of one kernel, s")
    collective_launch_s: float | None = Field(
        default=None, ge=0, description="fixed start-up of a collective, s; absent: kernel_launch_s"
    )
    host_moe_pass_s: float = Field(
        default=0.0,
        ge=0,
        description="host time to launch the forward pass of a layer with five products, routed experts among them, s (other "
        "layers in proportion to their operators; backward: twice)",
    )
    step_overhead_s: float = Field(
        default=0.0, ge=0, description="exposed host work per step: data, norms, logging, jitter, s"
    )

    collective_multiprocessors: NonNegativeInt = Field(
        default=0, description="multiprocessors that a collective holds while it overlaps with computation"
    )
    collective_library: CollectiveLibrary = Field(
        default="nccl",
        description="what collectives run on (NVIDIA, AMD, Intel Gaudi), one for all accelerators of a plan; "
        "rccl reads NCCL's variables, hccl none of them: plans leave its settings alone, and launch files hold none",
    )
    host: HostShare | None = Field(
        default=None,
        description="its share of the host, where a building's own host does not say; needed to offload activations or "
        "optimizer states",
    )
    codec_bytes_per_s: dict[BlockCodecName, PositiveFloat] = Field(
        default_factory=dict,
        description="fp32 gradients that a codec encodes, and likewise decodes, bytes/s; a codec without one is bound by memory",
    )
    speed_spread_fraction: float = Field(
        default=0.0,
        ge=0,
        lt=0.25,
        description="standard deviation of the speed of accelerators of this type over their mean; the slowest of those "
        "that a job uses sets its pace",
    )

    step_time_runs: dict[str, PositiveInt] = Field(
        default_factory=dict,
        description="own measured runs that calibrate fitted this entry to, by model and precision: their plans have "
        "narrower intervals; empty: none",
    )

    load_power_watt: PositiveFloat | None = Field(
        default=None,
        description="power while it computes, with its share of the host, W; needed by the energy objective",
    )
    idle_power_watt: float | None = Field(
        default=None, ge=0, description="the same while it waits, W; needed by the energy objective"
    )
    price_per_hour: float | None = Field(
        default=None,
        ge=0,
        description="currency units per hour; needed by the cost objective, unless the building says",
    )

    @model_validator(mode="after")
    def _computing_takes_no_less_than_waiting(self) -> Accelerator:
        load, idle = self.load_power_watt, self.idle_power_watt
        if load is not None and idle is not None and idle > load:
            raise ValueError(f"idle_power_watt {idle:g} exceeds load_power_watt {load:g}")
        return self

    @field_validator("peak_flop_per_s")
    @classmethod
    def _one_peak_at_least(cls, value: dict[Precision, float]) -> dict[Precision, float]:
        if not value:
            raise ValueError("state at least one precision, e.g. peak_tflop_per_s: {bf16: 989}")
        return value

    @property
    def collective_start_s(self) -> float:
        """Fixed start-up of a collective, s."""
        return self.kernel_launch_s if self.collective_launch_s is None else self.collective_launch_s

    @property
    def usable_memory_bytes(self) -> float:
        """Capacity left for the job's own tensors, bytes."""
        return self.memory_bytes - self.reserved_memory_bytes

    def room_bytes(self, headroom_fraction: float) -> float:
        """Usable memory minus the share of all memory that the job keeps free, bytes."""
        return self.usable_memory_bytes - headroom_fraction * self.memory_bytes
