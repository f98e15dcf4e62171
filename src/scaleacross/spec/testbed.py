"""Measurements in emulated buildings, with the planner's predictions for them."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from scaleacross.spec.base import Spec


class Conditions(Spec):
    """Machine, date and software of a measurement."""

    date: str
    machine: str = Field(description="processor and kernel")
    num_cores: PositiveInt
    versions: str = Field(description="of what runs the ranks")
    fixed_shares: bool = Field(description="every host has a share of its core of its own")
    load_average: tuple[float, float] = Field(description="of the last minute, before and after")


class TimedCollective(Spec):
    """Measured and predicted time of one way to run an all-reduce in one setting."""

    name: str
    measured_s: PositiveFloat = Field(description="median of the runs, of the slowest rank")
    fastest_s: PositiveFloat
    slowest_s: PositiveFloat
    predicted_s: PositiveFloat | None = Field(description="None: no plan offers it")
    error_fraction: NonNegativeFloat = Field(description="largest error of an element over the largest sum")

    @property
    def off_fraction(self) -> float | None:
        """(predicted − measured) / measured."""
        return None if self.predicted_s is None else self.predicted_s / self.measured_s - 1


class CollectiveSetting(Spec):
    """All ways to run one all-reduce over one inter-building link."""

    trunk_bytes_per_s: PositiveFloat
    one_way_latency_s: NonNegativeFloat
    size_bytes: PositiveInt
    rows: tuple[TimedCollective, ...]
    chosen: str = Field(description="the row that the planner expects to be fastest")

    @property
    def cut_s(self) -> float:
        """Lower bound S/B in s: the bytes that must cross the inter-building link, at its rate."""
        return self.size_bytes / self.trunk_bytes_per_s

    @property
    def choice(self) -> TimedCollective:
        """The row that the planner chose."""
        return self.row(self.chosen)

    @property
    def best(self) -> TimedCollective:
        """The fastest row among those that a plan offers."""
        return min((row for row in self.rows if row.predicted_s is not None), key=lambda row: row.measured_s)

    @property
    def regret_ratio(self) -> float:
        """Measured time of the choice over that of the best."""
        return self.choice.measured_s / self.best.measured_s

    def row(self, name: str) -> TimedCollective:
        """Row of the given name. Raises KeyError."""
        return {row.name: row for row in self.rows}[name]


class Bar(Spec):
    """A criterion that must hold, and the measured value."""

    what: str
    wanted: str
    measured: str
    is_met: bool


class CollectiveResults(Spec):
    """Results of every setting, and the criteria that they must meet."""

    conditions: Conditions
    settings: tuple[CollectiveSetting, ...]
    bars: tuple[Bar, ...]


class TrainedPlan(Spec):
    """One plan of a job, trained in the emulated buildings."""

    name: str = Field(description="ours, or the baseline whose plan it is")
    same_as: str | None = Field(None, description="the plan of that name is the same one and was trained for both")
    degrees: str
    across: str = Field(description="axes that cross buildings")
    schedule: str
    predicted_s: PositiveFloat
    measured_s: PositiveFloat = Field(description="median step")
    fastest_s: PositiveFloat
    slowest_s: PositiveFloat
    num_steps: PositiveInt = Field(description="timed steps")
    losses: tuple[float, ...] = Field(description="of every step, the mean over the batch")

    @property
    def off_fraction(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def label(self) -> str:
        """Name of the plan, with the name of an identical plan if there is one."""
        return self.name if self.same_as is None else f"{self.name} (as {self.same_as})"


class TrainingSetting(Spec):
    """Plans of one job on one topology: ours first, then those of the baselines."""

    topology: str
    trunks: tuple[str, ...] = Field(description="rate and distance of each")
    thinnest_bytes_per_s: PositiveFloat
    plans: tuple[TrainedPlan, ...]
    refused: dict[str, str] = Field(default_factory=dict, description="baselines that were not trained, and why")

    @property
    def ours(self) -> TrainedPlan:
        """Our plan."""
        return self.plans[0]

    @property
    def loss_difference_fraction(self) -> float:
        """Largest relative difference between two plans' losses of one step."""
        steps = zip(*(plan.losses for plan in self.plans), strict=False)
        return max((max(losses) / min(losses) - 1 for losses in steps), default=0.0)

    def speed_up(self, name: str) -> float:
        """Measured step time of the plan called ``name`` over ours. Raises KeyError."""
        return {plan.name: plan.measured_s for plan in self.plans}[name] / self.ours.measured_s


class Degraded(Spec):
    """An inter-building link that lost bandwidth during a run: its diagnosis, and the gain of planning again."""

    trunk: str
    before_bytes_per_s: PositiveFloat
    after_bytes_per_s: PositiveFloat
    verdict: str = Field(description="of diagnose, on the trace of the run")
    named: tuple[str, ...] = Field(description="hosts of the link that it names")
    is_right: bool = Field(description="the link crosses that trunk")
    measured_bytes_per_s: PositiveFloat = Field(description="of the trunk, afterwards")
    old: TrainedPlan
    new: TrainedPlan
    step_before_s: PositiveFloat = Field(description="median step of the old plan before")


class TrainingResults(Spec):
    """Results of every setting, of the degraded link if one was tried, and the criteria."""

    conditions: Conditions
    settings: tuple[TrainingSetting, ...]
    degraded: Degraded | None = None
    bars: tuple[Bar, ...]
