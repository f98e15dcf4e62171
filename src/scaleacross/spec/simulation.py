"""Result of simulating a plan event by event, next to the step time of the cost model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt

from scaleacross.spec.base import Spec
from scaleacross.spec.plan import COMPONENTS

SpanKind = Literal["compute", "tp", "cp", "ep", "pp", "dp", "optimizer"]


class ComponentDifference(Spec):
    """One component of a step, by the cost model and by the simulation."""

    component: str
    predicted_s: float
    simulated_s: float
    share: float = Field(description="difference over the simulated step time")
    flagged: bool = Field(description="more than the threshold")
    cause: str = Field(default="", description="what the simulation can see of why; empty where nothing is flagged")


class LinkUse(Spec):
    """Traffic of an inter-building link or oversubscribed uplink during the step."""

    name: str
    capacity_bytes_per_s: float
    carried_bytes: float
    mean_utilisation: float
    time_s: tuple[float, ...] = Field(default=(), description="moments at which the rate changes")
    rate_bytes_per_s: tuple[float, ...] = Field(default=(), description="rate from each moment on")


class Span(Spec):
    """One interval of activity of a class of ranks."""

    kind: SpanKind
    label: str
    start_s: float
    end_s: float
    beside: bool = Field(default=False, description="ran concurrently with the actions of the rank")
    critical: bool = Field(
        default=False, description="on the critical path: the longest chain of waiting, which ends last"
    )
    message: int | None = Field(default=None, description="of a pipeline message: its number in the step's messages")


class Delivery(Spec):
    """Receiver and arrival time of a pipeline message."""

    row: NonNegativeInt = Field(description="receiving class of ranks, by its number in the step's rows")
    arrival_s: float


class SimulatedRow(Spec):
    """Time of one class of ranks, by component."""

    name: str
    stage: NonNegativeInt
    num_ranks: int = Field(description="accelerators that do the same")
    components_s: dict[str, float] = Field(
        description="its time by component; idle: waiting for messages and for the end"
    )
    spans: tuple[Span, ...] = ()


class SimulatedStep(Spec):
    """One optimizer step of a plan, simulated."""

    plan_name: str
    step_s: float
    predicted_step_s: float
    components_s: dict[str, float] = Field(description="of the busiest class of ranks; they add up to step_s")
    differences: tuple[ComponentDifference, ...]
    num_ranks: int
    num_classes: int = Field(description="classes of ranks that were played for all")
    folding: Literal["exact", "rounded", "none"] = Field(
        description="exact: ranks of a class are alike; rounded: they differ far away, loads are means; none: all are played"
    )
    num_tasks: int
    what_if: tuple[str, ...] = ()
    undisturbed_s: float | None = Field(
        default=None, description="with what_if: the simulated step of the plan without it, where the plan states that"
    )
    notes: tuple[str, ...] = ()
    links: tuple[LinkUse, ...] = ()
    rows: tuple[SimulatedRow, ...] = ()
    messages: tuple[Delivery, ...] = Field(default=(), description="pipeline messages; with the timeline only")

    @property
    def change(self) -> str | None:
        """Effect of the what-if on the step time, in words; None without one."""
        if not self.what_if:
            return None
        changed, plain_s = ", ".join(self.what_if), self.undisturbed_s
        return (
            changed if plain_s is None else f"{changed}: {self.step_s / plain_s:.3g} times the {plain_s:.4g} s without"
        )

    @property
    def flags(self) -> tuple[ComponentDifference, ...]:
        """Differences above the threshold."""
        return tuple(one for one in self.differences if one.flagged)

    @property
    def difference(self) -> float:
        """(predicted − simulated) / simulated step time."""
        return (self.predicted_step_s - self.step_s) / self.step_s

    def without_timeline(self) -> SimulatedStep:
        """Return a copy without spans, link rates and messages."""
        rows = tuple(row.model_copy(update={"spans": ()}) for row in self.rows)
        links = tuple(link.model_copy(update={"time_s": (), "rate_bytes_per_s": ()}) for link in self.links)
        return self.model_copy(update={"rows": rows, "links": links, "messages": ()})

    def component(self, name: str) -> float:
        """Seconds of one of COMPONENTS."""
        return self.components_s.get(name, 0.0) if name in COMPONENTS else 0.0


class StepDraws(Spec):
    """Distribution of the step time over random speeds of hosts and accelerators."""

    plan_name: str
    what_if: tuple[str, ...]
    draws: int
    seed: int = Field(description="of the first draw; the next ones count up")
    steady_s: float = Field(description="simulated step without jitter, everything else as in what_if")
    step_s: dict[Literal["p5", "p50", "p95", "mean"], float]
    seconds: tuple[float, ...] = Field(description="of every draw")


class TablePhase(Spec):
    """A part of a recommendation step: from the end of the previous part until the last rank ends this one."""

    name: str
    seconds: float


class SimulatedTables(Spec):
    """One step of a recommendation plan, simulated."""

    plan_name: str
    step_s: float
    predicted_step_s: float
    phases: tuple[TablePhase, ...] = Field(description="they add up to step_s")
    num_ranks: int
    num_tasks: int
    what_if: tuple[str, ...] = ()
    links: tuple[LinkUse, ...] = Field(
        default=(), description="inter-building links and oversubscribed uplinks, most used first"
    )

    @property
    def difference(self) -> float:
        """(predicted − simulated) / simulated step time."""
        return (self.predicted_step_s - self.step_s) / self.step_s
