"""Goodput: failures that hit the fault units of a plan, and the share of the time that trains.

A *fault unit* is the smallest set of ranks whose loss leaves the others with a complete state: one ``dp_replicate``
group.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from scaleacross.spec.base import Name, Spec
from scaleacross.spec.reliability import BatchPolicy, RecoveryPolicy

LossCause = Literal["stall", "units_out", "restart", "lost_work", "checkpoint", "waiting_for_host", "slow_steps"]
LOSS_CAUSES: tuple[LossCause, ...] = get_args(LossCause)
"""Causes of time that trains nothing, in the order of display."""


class Strike(Spec):
    """Failures of one class that hit the same number of fault units."""

    cause: str = Field(description="class of the failure: host, rack, zone, ...")
    rate_per_s: NonNegativeFloat = Field(description="failures per second of the whole job")
    units_hit: PositiveInt = Field(description="fault units with a member in what fails")
    host_swap_fraction: float = Field(
        default=0.0, ge=0, le=1, description="share of the failures that takes a host until it is repaired"
    )


class SlowSpell(Spec):
    """Periods in which every step takes longer: an accelerator throttles, a link flaps."""

    cause: str = Field(description="what is slower")
    rate_per_s: NonNegativeFloat = Field(description="spells per second of the whole job")
    lasts_s: NonNegativeFloat = Field(description="seconds of each")
    speed: float = Field(gt=0, le=1, description="useful time per second while it lasts")


class FaultModel(Spec):
    """All inputs of the useful share of the time; the closed form and the long-run simulation both read this object."""

    num_units: PositiveInt = Field(description="R; 1 where the policy is to restart all")
    strikes: tuple[Strike, ...] = ()
    recover_s: NonNegativeFloat = Field(description="D: from a failure to the next useful step of a unit that is hit")
    restart_s: NonNegativeFloat = Field(description="the same where no unit is left: everybody restarts")
    stall_s: NonNegativeFloat = Field(description="s: everybody waits when a unit leaves or joins")
    unit_loss: float = Field(gt=0, le=1, description="share of the tokens per second that a missing unit takes")
    checkpoint_interval_s: float | None = Field(
        default=None, gt=0, description="training between checkpoints; None: nothing is lost on a restart"
    )
    checkpoint_blocking_s: NonNegativeFloat = Field(default=0.0, description="a checkpoint stops training so long")
    spares: NonNegativeInt | None = Field(default=None, description="spare hosts; None: always enough")
    num_hosts: PositiveInt | None = Field(
        default=None, description="hosts of all units; None: so many that no more than one unit waits for a host"
    )
    repair_s: NonNegativeFloat = Field(default=0.0, description="until a host that was taken is back")
    idle_hosts_fail: bool = Field(
        default=True,
        description="hosts of a job that waits or restarts, and of units that wait, fail as often as those that train",
    )
    slow_spells: tuple[SlowSpell, ...] = Field(default=(), description="of a long run; a plan's goodput has none")
    unit_shares: tuple[PositiveFloat, ...] = Field(
        default=(), description="of a long run: share of the tokens of each unit; none: unit_loss says what one takes"
    )
    short_pace: float = Field(
        default=1.0, gt=0, description="of a long run: steps per second while units are out, over those of all units"
    )

    @model_validator(mode="after")
    def _hits_no_more_than_there_are(self) -> FaultModel:
        if self.unit_shares and (len(self.unit_shares) != self.num_units or abs(sum(self.unit_shares) - 1) > 1e-6):
            raise ValueError(
                f"{len(self.unit_shares)} shares of {self.num_units} units, {sum(self.unit_shares):g} in all"
            )
        for strike in self.strikes:
            if strike.units_hit > self.num_units:
                raise ValueError(f"{strike.cause}: {strike.units_hit} units hit of {self.num_units}")
        return self

    @property
    def rate_per_s(self) -> float:
        """Failures of all classes per second."""
        return sum(strike.rate_per_s for strike in self.strikes)

    @property
    def swaps_per_s(self) -> float:
        """Failures per second after which the host needs repair."""
        return sum(strike.rate_per_s * strike.host_swap_fraction for strike in self.strikes)

    def scaled(self, factor: float) -> FaultModel:
        """Return a copy in which all failures are ``factor`` times as frequent."""
        strikes = tuple(one.model_copy(update={"rate_per_s": one.rate_per_s * factor}) for one in self.strikes)
        return self.model_copy(update={"strikes": strikes})


class RateShare(Spec):
    """Goodput at one published failure rate."""

    name: Name
    failures_per_1000_node_days: float
    goodput_fraction: float
    useful_tokens_per_s: float


class Goodput(Spec):
    """Useful tokens per second of a plan, and the assumptions behind them."""

    goodput_fraction: float = Field(description="useful time over wall time")
    useful_tokens_per_s: float = Field(description="tokens per second times goodput_fraction")
    mtbf_s: float | None = Field(description="mean time between failures of the job; None: nothing fails")
    lost: dict[LossCause, float] = Field(description="share of the time lost by cause, in the order of the closed form")
    model: FaultModel
    policy: RecoveryPolicy
    batch_policy: BatchPolicy
    hosts_in_repair: float = Field(description="mean number of hosts that are being repaired")
    spares_advised: int = Field(description="spare hosts that cover 99.9 % of the time")
    hosts_free: int | None = Field(
        default=None,
        description="hosts of the topology that the plan does not use, spare_hosts included; None: unknown",
    )
    at_published_rates: tuple[RateShare, ...] = Field(description="the same plan at every published rate")
    assumed: dict[str, str] = Field(description="figures that nobody stated: value and origin")

    @property
    def spares_taken(self) -> int:
        """Spare hosts that the goodput assumes."""
        return self.spares_advised if self.model.spares is None else self.model.spares

    @property
    def spares_lacking(self) -> int:
        """Number of those spare hosts that the topology lacks."""
        return 0 if self.hosts_free is None else max(0, self.spares_taken - self.hosts_free)


class LongRun(Spec):
    """Many days of training, simulated failure by failure, over several draws of the failures."""

    days: float = Field(gt=0)
    draws: PositiveInt
    seed: int
    goodput_fraction: dict[Literal["p5", "p50", "p95", "mean"], float] = Field(description="over draws")
    closed_form_fraction: float | None = Field(description="of the same fault model; None: failures come from a trace")
    lost: dict[LossCause, float] = Field(description="share of the time lost by cause, mean over draws")
    interruptions: float = Field(description="failures, mean over draws")
    interruptions_by_cause: dict[str, float]
    interruptions_range: dict[Literal["p5", "p50", "p95"], float] = Field(description="failures over draws")
    assumed: dict[str, str] = Field(default_factory=dict, description="figures that nobody stated: value and origin")
    slow_spells: tuple[SlowSpell, ...] = Field(default=(), description="what made steps longer, and how fast they were")
    timeline: tuple[float, ...] = Field(description="useful share of equal parts of the time, first draw")
    tokens: dict[Literal["p5", "p50", "p95", "mean"], float] | None = Field(
        default=None, description="useful tokens over draws; None: no plan states tokens per second"
    )


class TracedFailure(Spec):
    """One failure of a trace."""

    time_s: NonNegativeFloat = Field(description="since the job began")
    cause: str = Field(default="host", description="class of the failure, as in the fault model")
    host_swap: bool = Field(default=False, description="the host needs repair")
    unit: NonNegativeInt | None = Field(default=None, description="fault unit that is hit; None: drawn")
