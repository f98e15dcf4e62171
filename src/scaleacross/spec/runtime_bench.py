"""Measurements of ``scaleacross bench``, in nccl-tests' terms."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveInt

from scaleacross.spec.base import Spec


class BenchRow(Spec):
    """Measurements of one size."""

    size_bytes: PositiveInt = Field(description="full tensor; of an all-to-all what one rank sends")
    num_elements: PositiveInt
    time_s: float = Field(gt=0, description="mean over the timed runs, of the slowest rank")
    algorithm_bytes_per_s: float = Field(description="size over time: algbw")
    bus_bytes_per_s: float = Field(description="algbw times nccl-tests' factor of the operation: busbw")
    num_wrong: NonNegativeInt = Field(description="elements that differ from the exact result, all ranks together")
    gloo_time_s: float = Field(gt=0, description="torch's gloo backend, same run, same tensors")
    predicted_s: float | None = Field(description="the plan's time of this size; None if it says nothing")
    error_fraction: float | None = Field(description="(measured − predicted) / predicted")


class BenchResult(Spec):
    """All sizes of one operation on the groups of one axis."""

    plan_name: str
    host: str | None = Field(default=None, description="machine that all ranks ran on; None: benches before 2026-11-29")
    op: str
    axis: str
    algorithm: str = Field(description="schedule that ran; 'gloo' where the plan leaves it to the transport")
    num_ranks: PositiveInt = Field(description="ranks per group")
    num_groups: PositiveInt = Field(description="groups that ran at the same time")
    dtype: str
    iterations: PositiveInt
    rows: tuple[BenchRow, ...] = Field(min_length=1)
