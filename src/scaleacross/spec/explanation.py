"""Explanation of a plan: runner-up of every decision, bottleneck of every phase, sensitivities of the step time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from scaleacross.spec.base import Spec
from scaleacross.spec.network_report import NetworkTerm
from scaleacross.spec.plan import Decision
from scaleacross.spec.step_errors import StepInterval

RunnerUpStatus = Literal["proved", "best_found", "none", "not_tried"]


class RunnerUp(Spec):
    """The best plan that differs in one decision."""

    decision: str = Field(description="what is decided otherwise, e.g. 'tp', 'schedule', 'outermost level of tp'")
    chosen: str
    runner_up: str | None = Field(default=None, description="what it has instead; None when there is no such plan")
    step_s: float | None = None
    difference_s: float | None = Field(default=None, description="its step time less the plan's")
    difference_fraction: float | None = Field(default=None, description="difference_s over the plan's step time")
    probability_plan_faster: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="that the plan is measured faster than it; their errors are correlated. None where best_found",
    )
    bound_s: float | None = Field(
        default=None,
        description="no plan of the space that decides this otherwise is faster; 0: nothing is bounded yet",
    )
    status: RunnerUpStatus = Field(
        description="proved: none is faster; best_found: the limit cut the search short, so the true runner-up takes step_s at "
        "most and bound_s at least; none: there is none; not_tried: no time"
    )
    reason: str = Field(description="component by component against the plan, or why there is none")
    alternative: Decision | None = None


class Phase(Spec):
    """One component of the step and the resource that limits it."""

    name: str = Field(description="one of the components of a step, or 'memory'")
    seconds: float | None = Field(description="None for memory")
    resource: str = Field(
        description="compute | HBM | host | scale-up | NIC | <level> uplink | trunk | latency of <level> | memory | none"
    )
    shares: dict[str, float] = Field(
        default_factory=dict,
        description="figure -> % of this component per % of the figure, without sign; memory: share of the capacity",
    )
    why: str


class Sensitivity(Spec):
    """Change of the step time of the same decision if one figure of the topology changes."""

    figure: str = Field(description="e.g. 'zone bandwidth', 'campus latency', 'accelerator FLOP/s'")
    change_fraction: float = Field(description="relative change of the figure in either direction")
    elasticity: float | None = Field(description="% of step time per % of the figure, central difference")
    less_s: float | None = Field(description="change of the step time when the figure falls by that much, s")
    more_s: float | None = Field(description="the same when it rises, s")
    trunks_more_s: float | None = Field(
        default=None,
        description="more_s where inter-building links alone are wider and NICs are not, s; None: no bandwidth of these links",
    )
    note: str = ""


def by_what_more_brings(rows: Iterable[Sensitivity]) -> tuple[Sensitivity, ...]:
    """Figures whose increase changes the step time, sorted by the size of that change, largest first."""
    return tuple(sorted((row for row in rows if row.more_s), key=lambda row: -abs(row.more_s or 0.0)))


class UnitsBreakEven(Spec):
    """Break-even of twice as many fault units at one failure rate: the longest step with which they pay."""

    rate_factor: float = Field(description="failure rate over the plan's own")
    num_units: int
    goodput_fraction: float = Field(description="with so many units")
    step_longer_fraction: float = Field(description="of the step time: more than this, and useful tokens fall")


class SpareBreakEven(Spec):
    """Number of spare hosts up to which a spare is worth more than a host that trains."""

    spares: int = Field(description="the last of them still brings more useful time than a host that trains")
    lost_without_fraction: float = Field(description="of the time, waiting for a host without spares")
    lost_with_fraction: float = Field(description="the same with so many")


class FailureWhatIf(Spec):
    """Effect of other failure rates, more fault units and spare hosts."""

    units: tuple[UnitsBreakEven, ...]
    paying_rate_factor: float | None = Field(
        description="rate over the plan's own beyond which twice the units pay for a step longer by 1 %; None: at none"
    )
    spares: SpareBreakEven | None = Field(description="None: no host needs repair")


class Explanation(Spec):
    """Result of ``explain`` for one plan."""

    name: str
    step_s: float = Field(description="the plan's estimate, against which runner-ups and sensitivities are held")
    simulated_s: float | None = Field(default=None, description="of its simulation; None: it was not simulated")
    interval: StepInterval | None = Field(default=None, description="where the measured step time is expected")
    runner_ups: tuple[RunnerUp, ...]
    phases: tuple[Phase, ...]
    sensitivities: tuple[Sensitivity, ...]
    network: tuple[NetworkTerm, ...] = Field(
        default=(), description="why every collective runs as it does; empty where the library's defaults hold"
    )
    failures: FailureWhatIf | None = Field(default=None, description="None: the plan states no goodput")
    seconds: float = Field(description="time that the explanation took")
