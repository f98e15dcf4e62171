"""Errors of step times against measured ones: the interval of one plan, and the constants that define intervals."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from scaleacross.spec.accelerator import Precision
from scaleacross.spec.base import Name, SourcedSpec, Spec


class SeenSteps(Spec):
    """Number and size of the measured runs of one accelerator in one precision."""

    accelerator: Name
    precision: Precision
    rows: PositiveInt
    sources: PositiveInt = Field(description="publications that these come from")
    largest: PositiveInt = Field(description="accelerators of the largest of these runs")


class StepErrors(SourcedSpec):
    """Constants of the error of a step time, fitted by ``scaleacross validate --left-out --table``.

    They describe x = log(measured / predicted) of a dense model, on an accelerator and in a precision with measured
    step times.
    """

    low_log: float = Field(lt=0, description="lower end of the interval of x")
    high_log: float = Field(gt=0, description="upper end of the interval of x")
    median_log: float = Field(description="median of x over sources, each with the same weight")
    unseen_ratio: float = Field(
        ge=1, description="times as wide where no step time of accelerator and precision was seen"
    )
    experts_ratio: float = Field(ge=1, description="times as wide for a model with routed experts")
    drift_per_doubling: float = Field(
        ge=0, description="added to high_log for every doubling of accelerators beyond the largest measured run"
    )
    calibrated_fraction: tuple[float, ...] = Field(
        description="times as wide once the accelerator was fitted to 1, 2, 3 or more own runs of the model in the precision"
    )
    paired_log: dict[str, PositiveFloat] = Field(
        description="dense, experts: mean size of the difference between the x of two plans of one model on one cluster"
    )
    seen: tuple[SeenSteps, ...] = Field(description="what step times were measured of")


class StepInterval(Spec):
    """Interval of the measured step time, 10th to 90th percentile.

    It comes from the errors on sources that were each left out whole.
    """

    p10_s: PositiveFloat = Field(description="one measured step time in ten is expected to be shorter")
    p50_s: PositiveFloat | None = Field(
        default=None,
        description="every other one is expected to be longer: most clusters run slower than the best that is published; the "
        "step time itself after own runs; null in plans of versions that did not state it",
    )
    p90_s: PositiveFloat = Field(description="one in ten is expected to be longer")
    seen: bool = Field(
        description="step times of every accelerator type of the plan in its precision were measured by someone; "
        "false: the interval rests on other accelerators"
    )
    experts: bool = Field(description="the model has routed experts, whose step times are less certain")
    calibrated_runs: int = Field(
        ge=0, description="own runs of this model in this precision that the accelerators were fitted to"
    )
    spans_buildings: bool = Field(
        default=False,
        description="the plan crosses buildings: no measured run does, and the interval knows nothing of it",
    )
    doublings_beyond: float = Field(
        ge=0, description="doublings of accelerators beyond the largest measured run; 0 where none was seen"
    )
